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
@pytest.mark.parametrize("room", [0, 1, 2])
def test_no_header_is_written_behind_the_room_that_there_is(room):
    import numpy as np

    from spark_kafka_native.kafka.records import _kernel

    found = [np.full(5, 77, kind) for kind in (np.int64, np.int32, np.int64, np.int32)]
    one, limit = np.ones(1, np.int64), np.full(1, 6, np.int64)
    headers = b"\2a\1" + b"\2b\1"
    counts, places = np.full(1, 2, np.int32), [column[:room] for column in found]
    bad = _kernel.scan_headers([headers], one, one - 1, one - 1, limit, counts, *places)
    assert bad == (-1 if room == 2 else 0)
    assert all((column[room:] == 77).all() for column in found)


@pytest.mark.skipif(kernel.load_compiled() is None, reason="the compiled kernel was not built")
def test_no_record_is_written_behind_the_room_that_there_is():
    import numpy as np
    import pyarrow as pa

    from spark_kafka_native.kafka.records import _kernel

    names, texts = pa.array([b"h", b"i" * 17]), pa.array([None, b"x" * 3])
    columns = [pa.array([b"k" * 5, None, b"", None]), pa.array([b"v" * 16, None, b"w", b"x" * 20])]
    key, value, header_key, header_value = map(kernel._layout, (*columns, names, texts))
    spans = np.array([0, 2, 2, 2, 2], np.int64)
    times = np.array([5, 2**40, 0, 0], np.int64)
    arguments = (4, np.arange(3), times, key, value, spans, header_key, header_value)
    size = _kernel.encode(*arguments, None, 3)
    whole = bytearray(3 + size)
    assert _kernel.encode(*arguments, whole, 3) == size
    for room in range(3, size + 24):
        memory = bytearray(b"\xaa" * (room + 40))
        written = _kernel.encode(*arguments, memoryview(memory)[:room], 3)
        assert written == (size if room >= 3 + size else None)
        assert memory[:3] == b"\xaa" * 3
        assert memory[room:] == b"\xaa" * 40
        assert written is None or memory[3 : 3 + size] == whole[3:]


@pytest.mark.skipif(kernel.load_compiled() is None, reason="the compiled kernel was not built")
def test_the_size_of_a_batch_is_limited_to_the_byte():
    from spark_kafka_native.kafka.records import _kernel

    arguments = (2, *[None] * 7, None)
    size = _kernel.encode(*arguments, 0)
    assert _kernel.encode(*arguments, 2**31 - 2 - size) == size
    with pytest.raises(OverflowError, match="do not fit one batch"):
        _kernel.encode(*arguments, 2**31 - 1 - size)


@pytest.mark.skipif(kernel.load_compiled() is None, reason="the compiled kernel was not built")
@pytest.mark.parametrize("edges", [[0, 2, 1], [0, 3, 0], [-1, 0, 1], [0, 1, 5]])
@pytest.mark.parametrize("wide", [False, True])
def test_offsets_that_go_backwards_or_leave_the_data_are_refused(edges, wide):
    import numpy as np
    import pyarrow as pa

    offsets = np.array([0, 1, 2], np.int64 if wide else np.int32)
    kind = pa.large_binary() if wide else pa.binary()
    column = pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"abcd")])
    offsets[:] = edges  # pyarrow would refuse them at once
    for key, value in ((column, None), (None, column)):
        with pytest.raises(ValueError, match="offsets lie outside its data"):
            kernel.load_compiled().encode_records(None, 2, None, key, value, None, 0)


@pytest.mark.skipif(kernel.load_compiled() is None, reason="the compiled kernel was not built")
def test_a_header_without_a_key_is_never_written():
    import numpy as np
    import pyarrow as pa

    from spark_kafka_native.kafka.records.columns import HeaderLists

    def size(header: int) -> int:
        spans = np.array([header, header + 1], np.int64)
        headers = HeaderLists(spans, pa.array(["a", None]), pa.array(["x", "y"]))
        return len(kernel.load_compiled().encode_records(None, 1, None, None, None, headers, 0))

    assert size(0) == 11
    with pytest.raises(ValueError, match="a column's offsets"):
        size(1)


@pytest.mark.skipif(kernel.load_compiled() is None, reason="the compiled kernel was not built")
@pytest.mark.parametrize("row", [-1, 2, 3])
def test_a_row_that_there_is_not_is_refused(row):
    import numpy as np

    from spark_kafka_native.kafka.records import _kernel

    rows, times = np.array([0, row]), np.array([7, 5, 5, 5, 5])[1:3]
    with pytest.raises(ValueError, match="rows and buffers do not fit each other"):
        _kernel.encode(2, rows, times, *[None] * 6, 0)


@pytest.mark.skipif(kernel.load_compiled() is None, reason="the compiled kernel was not built")
@pytest.mark.parametrize("place", [0, 1])
def test_a_column_that_is_shorter_than_the_others_is_refused(place):
    import numpy as np

    from spark_kafka_native.kafka.records import _kernel

    one = (np.array([0, 1, 1], np.int32)[:2], False, b"a", None, 0)
    columns = [one, None] if place == 0 else [None, one]
    assert _kernel.encode(1, None, np.zeros(1, np.int64), *columns, *[None] * 4, 0) == 8
    with pytest.raises(ValueError, match="a column's offsets"):
        _kernel.encode(2, None, np.zeros(2, np.int64), *columns, *[None] * 4, 0)


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
