#!/usr/bin/env bash
# Usage: wheels.sh FOLDER. Builds the sdist and all wheels into dist/ (wheels.py), installs the one for this machine into a clean
# environment of each Python that is here, and runs there the unit tests and one write and read through Spark. FOLDER takes the environments.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mkdir -p "$1" && cd "$1" && pwd)
root=$PWD
# They look at the sources, which are not installed.
sources=(--deselect tests/unit/test_packaging.py --deselect tests/unit/test_words.py)

python3 -m venv "$folder/tools"
"$folder/tools/bin/pip" --disable-pip-version-check --quiet install "setuptools>=77" build ziglang auditwheel abi3audit basedpyright
PATH=$folder/tools/bin:$PATH "$folder/tools/bin/python" .ci/wheels.py

case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) ours=manylinux_2_17_x86_64 ;;
    Linux-aarch64) ours=manylinux_2_17_aarch64 ;;
    Darwin-arm64) ours=macosx_11_0_arm64 ;;
    Darwin-x86_64) ours=macosx_11_0_x86_64 ;;
    *) echo "No wheel is for this machine, so none is tried." && exit ;;
esac
for version in 3.11 3.12 3.13 3.14; do
    python=$(bash .ci/find_python.sh "$version") || { echo "Python $version is not here, and was not tried."; continue; }
    here=$folder/$version
    rm -rf "$here" && mkdir "$here"
    "$python" -m venv "$here/.venv"
    "$here/.venv/bin/pip" --disable-pip-version-check --quiet install "$(echo "$root"/dist/*-"$ours".whl)[dev]"
    git ls-files -z --cached --others --exclude-standard | grep -zEv '^(pyspark|spark)_kafka_native/' | xargs -0 tar c | tar x -C "$here"
    (
        cd "$here"
        for package in spark_kafka_native pyspark_kafka_native; do
            .venv/bin/python -c "import $package as one; assert '/.venv/' in one.__file__, one.__file__"
        done
        for kernel in kafka.records._kernel formats.avro._kernel formats.json._read_kernel formats.json._write_kernel; do
            .venv/bin/python -c "import spark_kafka_native.$kernel"
        done
        "$folder/tools/bin/basedpyright" --pythonpath .venv/bin/python --level error tests/docs/user_program.py
        .venv/bin/python -m pytest tests/unit -n 2 --quiet "${sources[@]}"
        mkdir empty && cd empty && ../.venv/bin/pykafka demo
    )
    echo "Python $version: the wheel passed."
done
