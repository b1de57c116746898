"""Which kernel is in use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spark_kafka_native.kafka.records import kernel
from spark_kafka_native.kernel_choice import ENVIRONMENT_VARIABLE

SHOW = "from spark_kafka_native.kafka.records import kernel; print(kernel.COMPILED)"


def show(before: str = "", **environment: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", before + SHOW],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()


def test_the_environment_turns_the_compiled_kernel_off():
    assert show(**{ENVIRONMENT_VARIABLE: "numpy"})[0] == "False"
    assert show(**{ENVIRONMENT_VARIABLE: ""})[0] == str(kernel.load_compiled() is not None)


def test_a_missing_build_is_no_error():
    assert show("import sys; sys.modules['spark_kafka_native.kafka.records._kernel'] = None; ")[0] == "False"


def test_a_build_of_older_sources_counts_as_none():
    older = "type('older', (), {'scan_records': None, 'encode': None})"
    before = f"import sys; sys.modules['spark_kafka_native.kafka.records._kernel'] = {older}; "
    assert show(before)[0] == "False"


def test_importing_brings_no_pandas_and_no_socket():
    code = (
        "import sys; from spark_kafka_native.kafka.records import decode, encode, columns; "
        "b = encode.encode_record_batch(columns.RecordColumns(length=3), now_ms=0); "
        "[decode.decode_record_set(b, fetch_offset=at) for at in (0, 3)]; print('pandas' in sys.modules)"
    )
    for choice in ("", "numpy"):
        environment = {**os.environ, ENVIRONMENT_VARIABLE: choice}
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
        )
        assert out.stdout.strip() == "False"


@pytest.mark.skipif(kernel.load_compiled() is None, reason="the compiled kernel was not built")
def test_the_compiled_kernel_checks_its_own_arguments():
    import numpy as np

    from spark_kafka_native.kafka.records import _kernel

    one, four = np.zeros(1, np.int64), np.zeros(1, np.int32)
    with pytest.raises((TypeError, ValueError)):
        _kernel.scan_records([b""], np.full(8, 9, np.int64), one, *[None] * 8)
    with pytest.raises(TypeError):
        _kernel.scan_records(None, one, one, *[None] * 8)
    with pytest.raises((TypeError, ValueError)):
        _kernel.gather([b"abc"], one + 1, one, one + 2, four + 9, np.zeros(2, np.int32), None, bytearray(9))
    with pytest.raises((TypeError, ValueError)):
        _kernel.gather([b"abc"], one + 1, one + 7, one, four, np.zeros(2, np.int32), None, bytearray(9))
    with pytest.raises(BufferError):
        _kernel.gather([b"abc"], one + 1, one, one, four + 3, np.zeros(2, np.int32), None, b"abc")


@pytest.mark.skipif(kernel.load_compiled() is None, reason="the compiled kernel was not built")
@pytest.mark.parametrize("length", [4, 400])
def test_columns_that_change_between_measuring_and_writing_are_refused(length):
    import numpy as np
    import pyarrow as pa

    from spark_kafka_native.kafka.records import _kernel
    from spark_kafka_native.kafka.records.columns import HeaderLists

    ends = np.array([0, 9], np.int32)
    headers = HeaderLists(
        np.array([0, 1], np.int64),
        pa.array(["key"]),
        pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(ends), pa.py_buffer(bytes(1000))]),
    )

    class ChangingLoops:
        hash_keys = group_rows = None

        def encode(self, *arguments):
            size = _kernel.encode(*arguments)
            ends[1] = length
            return size

    with pytest.raises(ValueError, match="changed while they were encoded"):
        kernel.CompiledKernel(ChangingLoops()).encode_records(None, 1, None, None, None, headers, 61)
