#!/usr/bin/env bash
# Usage: matrix.sh FOLDER. The unit and property tests, and one read and one write through Spark, with the lowest allowed version
# of everything and with each PySpark and Python that is supported. A Python that is not on this machine is left out, and said.
# Versions are resolved by uv, which can take the lowest ones. What old libraries warn of fails nothing here.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mkdir -p "$1" && cd "$1" && pwd)

# Python, PySpark, which versions of the other libraries
rows=(
    "3.11 4.1.0 lowest-direct"
    "3.12 4.2.* highest"
    "3.13 4.3.* highest"
    "3.14 4.3.* highest"
)
one_read_one_write="test_what_is_written_is_read or test_every_column_of_every_kind_of_record"

said=()
for row in "${rows[@]}"; do
    read -r version pyspark resolution <<<"$row"
    name="Python $version, PySpark $pyspark, $resolution"
    if ! python=$(bash .ci/find_python.sh "$version"); then
        said+=("$name: no such Python here")
        continue
    fi
    echo "== $name"
    here=$folder/$version
    rm -rf "$here" && mkdir "$here"
    git ls-files -z --cached --others --exclude-standard | xargs -0 tar c | tar x -C "$here"
    "$python" -m venv "$here/.venv"
    "$here/.venv/bin/pip" --disable-pip-version-check --quiet install uv
    if "$here/.venv/bin/uv" pip install --quiet --python "$here/.venv/bin/python" --resolution "$resolution" \
        --requirement pyproject.toml --extra dev "pyspark[connect]==$pyspark" &&
        (
            cd "$here"
            .venv/bin/python setup.py --quiet build_ext --inplace
            export PATH=$PWD/.venv/bin:$PATH PYTHONPATH=$PWD
            python -m pytest tests/unit tests/property -n 2 --quiet -W default
            python -m pytest tests/spark/test_write_basics.py tests/spark/test_read_basics.py -k "$one_read_one_write" --quiet -W default
        ); then
        said+=("$name: passed")
    else
        said+=("$name: FAILED")
    fi
done
printf '%s\n' "${said[@]}"
! printf '%s\n' "${said[@]}" | grep -q FAILED
