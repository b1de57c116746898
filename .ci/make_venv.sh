#!/usr/bin/env bash
# Usage: make_venv.sh FOLDER [PYTHON [PYSPARK]]. Makes a virtual environment and installs the project and its tools into it.
set -euo pipefail

folder=$1
wanted=${2:-}
pyspark=${3:-}
enough='import sys; sys.exit(sys.version_info < (3, 11))'

find_python() {
    local name
    for name in ${wanted:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if command -v "$name" >/dev/null 2>&1 && "$name" -c "$enough" >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
    if [ -n "$wanted" ]; then
        echo "PYTHON is $wanted, which is not there or older than 3.11." >&2
    else
        echo "No Python 3.11 or newer on PATH." >&2
    fi
    echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv; macOS: brew install python)," >&2
    echo "or name it: make PYTHON=/path/to/python3 ..." >&2
    exit 1
}

if ! "$folder/bin/python" -c "$enough" >/dev/null 2>&1; then
    python=$(find_python)
    echo "Setting up $folder with $("$python" --version) ..."
    rm -rf "$folder"
    if ! "$python" -m venv "$folder"; then
        rm -rf "$folder"
        echo "$python can't make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 1
    fi
fi
echo "Installing the project and its tools into $folder (a minute or two, once) ..."
pip=("$folder/bin/python" -m pip --disable-pip-version-check --quiet install)
# The Kerberos library has no wheels for Linux, and is compiled while the others are fetched (a minute of CPU, once per machine).
kerberos=$(mktemp -d)
trap 'rm -rf "$kerberos"' EXIT
if command -v krb5-config >/dev/null; then
    "$folder/bin/python" -m pip --disable-pip-version-check --quiet wheel --wheel-dir "$kerberos" "gssapi>=1.8" \
        >"$kerberos/output" 2>&1 &
fi
"${pip[@]}" --upgrade "setuptools>=77"
# Without isolation the kernels are built by the setuptools of above, and not by one that is fetched anew each time.
# Spark looks for data sources in the folders of sys.path: of setuptools' ways to be editable only `compat` puts ours there.
"${pip[@]}" --no-build-isolation --config-settings editable_mode=compat --editable ".[dev]" \
    ${pyspark:+"pyspark[connect]==$pyspark.*"}
wait
if ! command -v krb5-config >/dev/null; then
    echo "No Kerberos library: its headers are missing (Debian, Ubuntu: apt-get install libkrb5-dev; then rm $folder/.installed). Its tests are skipped."
elif compgen -G "$kerberos/gssapi-*.whl" >/dev/null; then
    "${pip[@]}" --no-index --find-links "$kerberos" gssapi
else
    echo "No Kerberos library, so its tests are skipped: its build failed with $(grep -i error "$kerberos/output" | tail -n 1)"
fi
"$folder/bin/python" .ci/compile_workers.py
kernels='from spark_kafka_native.kafka.records.kernel import COMPILED
print("The compiled kernel is in use." if COMPILED else "No compiled kernel (is there a C compiler?): NumPy serves.")'
"$folder/bin/python" -c "$kernels"
