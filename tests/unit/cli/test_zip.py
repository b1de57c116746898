"""The zip for ``--py-files``, where there is nothing but Python, numpy, pyarrow and PySpark."""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_kafka_native.cli.main import main

SCRIPT = """
import sys
import pyarrow as pa
import spark_kafka_native
from spark_kafka_native.kafka.records import kernel
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.decode import decode_record_set
from spark_kafka_native.kafka.records.encode import encode_record_batch

assert ".zip" in spark_kafka_native.__file__
assert not kernel.COMPILED
written = decode_record_set(
    encode_record_batch(RecordColumns(length=2, value=pa.array([b"a", b"b"])), now_ms=1), fetch_offset=0
)
print(written.columns.value.to_pylist(), spark_kafka_native.KafkaDataSource.name())
"""


def test_a_zip_needs_little(tmp_path, capsys):
    archive = tmp_path / "some.zip"
    assert main(["zip", "--output", str(archive)]) == 0
    assert str(archive) in capsys.readouterr().out
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for name in ("numpy", "numpy.libs", "pyarrow", "pyspark", "py4j"):
        folder = Path(importlib.util.find_spec(name.partition(".")[0]).origin).parents[1] / name
        if folder.exists():
            (libraries / name).symlink_to(folder)

    # -S: without site-packages, and so without an installed package of ours
    prepared = f"import sys; sys.path[:0] = {[str(archive), str(libraries)]!r}\n"
    ran = subprocess.run(
        [sys.executable, "-S", "-E", "-c", prepared + SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "[b'a', b'b'] pykafka\n"


def test_the_same_sources_make_the_same_bytes(tmp_path):
    for name in ("one.zip", "two.zip"):
        assert main(["zip", "--output", str(tmp_path / name)]) == 0
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        names = archive.namelist()
    assert "spark_kafka_native/__init__.py" in names
    assert all(name.startswith("spark_kafka_native/") and name.endswith(".py") for name in names)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["zip", "--output", str(tmp_path / "missing" / "some.zip")])
    assert "some.zip: No such file or directory" in capsys.readouterr().err
