"""What `JsonEncoder` writes: by the compiled writer and by its twin."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from support.broken_arrays import with_offsets

from spark_kafka_native.formats import EncodeError, FormatError, load_format
from spark_kafka_native.formats.json import write_kernel
from spark_kafka_native.formats.json.write import JsonEncoder, json_texts
from spark_kafka_native.formats.json.write_kernel import (
    POWERS,
    ArrowWriter,
    Columns,
    CompiledWriter,
    Writer,
    choose_writer,
    load_compiled,
)

COMPILED = load_compiled()
each_writer = pytest.mark.parametrize(
    "writer",
    [ArrowWriter()] if COMPILED is None else [COMPILED, ArrowWriter()],
    ids=lambda one: type(one).__name__,
)


def texts(writer: Writer, array: pa.Array) -> list[str | None]:
    return [None if one is None else one.decode() for one in writer.write(array).to_pylist()]


@each_writer
def test_numbers(writer: Writer) -> None:
    doubles = [0.0, -0.0, 1.0, 0.1, 1234567890.0, 1e10, 1e21, 1e-6, 1e-7, 123.456, 5e-324, 1 / 3, 2**53 + 2.0]
    assert texts(writer, pa.array(doubles)) == [
        "0.0", "-0.0", "1.0", "0.1", "1234567890.0", "1e+10", "1e+21", "0.000001", "1e-7", "123.456",
        "5e-324", "0.3333333333333333", "9.007199254740994e+15",
    ]  # fmt: skip
    floats = pa.array([0.1, 1 / 3, 1.17549435e-38, 16777216, 1.4e-45, 3.4028235e38], pa.float32())
    assert texts(writer, floats) == [
        "0.1", "0.33333334", "1.1754944e-38", "16777216.0", "1e-45", "3.4028235e+38"
    ]  # fmt: skip
    odd = pa.array([float("nan"), float("inf"), float("-inf"), None])
    assert texts(writer, odd) == ['"NaN"', '"Infinity"', '"-Infinity"', None]
    decimals = [
        Decimal(one) for one in ("0", "0.000001", "-0.0000001", "12.5", "99999999999999999999.9999999999")
    ]
    assert texts(writer, pa.array(decimals, pa.decimal128(38, 10))) == [
        "0E-10", "0.0000010000", "-1.000E-7", "12.5000000000", "99999999999999999999.9999999999"
    ]  # fmt: skip
    least = pa.array([-(2**63), 2**63 - 1])
    assert texts(writer, least) == ["-9223372036854775808", "9223372036854775807"]


@each_writer
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
def test_times(writer: Writer, zone: str | None) -> None:
    moments = [
        dt.datetime(1, 1, 1),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        dt.datetime(2024, 2, 29, 1, 2, 3),
    ]
    micros = [(one - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) for one in moments]
    array = pa.array(micros, pa.int64()).view(pa.timestamp("us", zone))
    end = "" if zone is None else "Z"
    assert texts(writer, array) == [f'"{one.isoformat(timespec="microseconds")}{end}"' for one in moments]


@each_writer
def test_times_that_no_calendar_of_python_or_arrow_has(writer: Writer) -> None:
    """Spark's timestamps are any microseconds in 64 bits, and its dates any days in 32."""
    micros = pa.array([2**63 - 1, None, -(2**63), 253_402_300_800_000_000, 2**62], pa.int64())
    wanted = [
        "294247-01-10T04:00:54.775807", None, "-290308-12-21T19:59:05.224192", "10000-01-01T00:00:00.000000",
        "148108-07-06T14:00:27.387904",
    ]  # fmt: skip
    for zone, end in ((None, ""), ("UTC", "Z"), ("Asia/Tokyo", "Z")):
        found = texts(writer, micros.view(pa.timestamp("us", zone)))
        assert found == [None if one is None else f'"{one}{end}"' for one in wanted]
    days = pa.array([2**31 - 1, -(2**31), None, 2_932_897], pa.int32()).view(pa.date32())
    assert texts(writer, days) == ['"5881580-07-11"', '"-5877641-06-23"', None, '"10000-01-01"']


@each_writer
def test_bytes_under_a_null_are_no_value(writer: Writer) -> None:
    """Arrow says nothing about them: they may be a time of no calendar, or elements of a list."""
    (bits,) = pa.array([False, True, False, True]).buffers()[1:]
    far = pa.array([2**63 - 1, 0, -(2**63), 0], pa.int64()).buffers()[1]
    times = pa.Array.from_buffers(pa.timestamp("us"), 4, [bits, far])
    assert texts(writer, times) == [None, '"1970-01-01T00:00:00.000000"'] * 2
    ends = pa.array([0, 2, 3, 5, 6], pa.int32()).buffers()[1]
    lists = pa.Array.from_buffers(
        pa.list_(pa.int8()), 4, [bits, ends], children=[pa.array(range(6), pa.int8())]
    )
    assert texts(writer, lists) == [None, "[2]", None, "[5]"]


@each_writer
def test_days_have_the_text_of_python(writer: Writer) -> None:
    days = np.concatenate([np.arange(-719_162, 2_932_897, 997), np.arange(-20_000, 130_000)])
    first = dt.date(1970, 1, 1).toordinal()
    wanted = [f'"{dt.date.fromordinal(first + day)}"' for day in days.tolist()]
    assert texts(writer, pa.array(days.astype(np.int32)).view(pa.date32())) == wanted


_ESCAPES = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}


@each_writer
def test_strings(writer: Writer) -> None:
    controls = "".join(map(chr, range(32)))
    given = ["", "plain", '1234567"', "12345678\\", f"{controls} behind", "é😀\u2028\x7f/", None]
    assert texts(writer, pa.array(given)) == [
        '""', '"plain"', '"1234567\\""', '"12345678\\\\"',
        "".join(
            ['"', *(_ESCAPES.get(code, f"\\u{code:04x}") for code in range(32)), ' behind"']
        ),
        '"é😀\u2028\x7f/"', None,
    ]  # fmt: skip


@each_writer
@pytest.mark.parametrize("odd", ['"', "\\", *map(chr, (0, 1, 7, 8, 9, 13, 15, 16, 30, 31)), " ", "\x7f", "é"])
def test_a_character_is_escaped_at_each_place_of_a_text(writer: Writer, odd: str) -> None:
    """Eight bytes without such characters are written at once."""
    given = ["x" * at + odd + "x" * (19 - at) for at in range(20)]
    assert [json.loads(one or "") for one in texts(writer, pa.array(given))] == given


@each_writer
def test_text_that_is_not_utf_8_stays_as_it_is(writer: Writer) -> None:
    array = pa.array([b'a\xff"\xc3', b"\x80" * 20]).view(pa.string())
    assert writer.write(array).to_pylist() == [b'"a\xff\\"\xc3"', b'"' + b"\x80" * 20 + b'"']


@each_writer
def test_nulls_at_each_level(writer: Writer) -> None:
    inner = pa.struct([("x", pa.int8()), ("l", pa.list_(pa.int8()))])
    kind = pa.struct([("a", inner), ("m", pa.map_(pa.string(), inner)), ("l", pa.list_(inner))])
    rows = [
        None,
        {"a": None, "m": None, "l": None},
        {"a": {"x": None, "l": None}, "m": [("k", None)], "l": [None, {"x": 1, "l": [None, 2]}]},
        {"a": {"x": 1, "l": []}, "m": [], "l": []},
    ]
    assert texts(writer, pa.array(rows, kind)) == [
        None,
        "{}",
        '{"a":{},"m":{"k":null},"l":[null,{"x":1,"l":[null,2]}]}',
        '{"a":{"x":1,"l":[]},"m":{},"l":[]}',
    ]


@each_writer
def test_keys_of_maps_are_texts(writer: Writer) -> None:
    """As `to_json` writes them. Protobuf has maps with such keys, which the command line shows."""
    numbers = pa.array([[(1, 2), (-10, None)], [], None], pa.map_(pa.int32(), pa.int8()))
    assert texts(writer, numbers) == ['{"1":2,"-10":null}', "{}", None]
    flags = pa.array([[(True, "a")]], pa.map_(pa.bool_(), pa.string()))
    assert texts(writer, flags) == ['{"true":"a"}']
    days = pa.array([[(dt.date(2024, 2, 29), 1)]], pa.map_(pa.date32(), pa.int8()))
    assert texts(writer, days) == ['{"2024-02-29":1}']


@each_writer
def test_no_rows(writer: Writer) -> None:
    kind = pa.struct(
        [("a", pa.string()), ("l", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.date32()))]
    )
    for empty in (pa.array([], kind), pa.nulls(3, kind).slice(1, 0)):
        assert writer.write(empty).equals(pa.array([], pa.binary()))
    assert writer.write(pa.nulls(2, kind)).to_pylist() == [None, None]


@pytest.mark.skipif(COMPILED is None, reason="there is no C compiler")
def test_texts_that_are_longer_than_expected() -> None:
    """Each byte takes six, which nothing has room for at first."""
    given = ["\x01" * size for size in (0, 1, 100_000, 3, 1_000_000)]
    assert texts(COMPILED, pa.array(given)) == ['"' + "\\u0001" * len(one) + '"' for one in given]


@pytest.mark.skipif(COMPILED is None, reason="there is no C compiler")
def test_nothing_is_written_behind_the_room_that_there_is() -> None:
    from spark_kafka_native.formats.json import _write_kernel

    odd = ["\1" * at + "x" * (20 - at) for at in range(0, 21, 4)] + [
        "x" * at + "\1" * (9 - at) for at in range(10)
    ]
    columns = {
        "s": pa.array(odd),
        "c": pa.array([one.encode() for one in odd], pa.binary()),
        "b": pa.array([True, False] * 8),
        "d": pa.array([-(2.0**-1022) / 3, -1.2345678901234567e-300] * 8),
        "l": pa.array([[None, 1], [], None, [-(2**63)]] * 4, pa.list_(pa.int64())),
        "n": pa.array([[None]] * 16, pa.list_(pa.int64())),
        "m": pa.array([[(True, None)], []] * 8, pa.map_(pa.bool_(), pa.date32())),
        "t": pa.array([-(2**63), 2**63 - 1] * 8, pa.timestamp("us", "UTC")),
        "x": pa.array([Decimal("-" + "9" * 76)] * 16, pa.decimal256(76, 0)),
    }
    for array in [*columns.values(), pa.StructArray.from_arrays(list(columns.values()), names=list(columns))]:
        rows = array.slice(1)
        whole = b"".join(one or b"" for one in ArrowWriter().write(rows).to_pylist())
        given = Columns()
        given.add(rows, b"")
        source = given.finish()
        for room in range(len(whole) + 130):
            memory = bytearray(b"\xaa" * (room + 200))
            ends = np.zeros(16, np.int32)
            done = _write_kernel.write_columns(*source, POWERS, memoryview(memory)[:room], ends, 0)
            assert memory[room:] == b"\xaa" * 200
            assert memory[: ends[done]] == whole[: ends[done]]
            assert done < 15 or ends[done] == len(whole) <= room
        assert done == 15


@pytest.mark.skipif(COMPILED is None, reason="there is no C compiler")
@pytest.mark.parametrize(
    "column",
    [
        pa.array([True, None] * 5),
        pa.array([1, None] * 5, pa.int8()),
        pa.array([1.5, None] * 5),
        pa.array(["x", None] * 5),
        pa.array([b"x", None] * 5),
        pa.array([Decimal(1), None] * 5, pa.decimal256(76, 0)),
        pa.array([[], None] * 5, pa.list_(pa.int8())),
        pa.array([[], None] * 5, pa.map_(pa.string(), pa.int8())),
    ],
    ids=lambda one: str(one.type),
)
def test_a_buffer_that_is_a_byte_too_short_is_refused(column: pa.Array) -> None:
    from spark_kafka_native.formats.json import _write_kernel

    columns = Columns()
    columns.add(column.slice(3, 6), b"")
    nodes, count, names, (valid, offsets, data, *others) = columns.finish()
    needs = (
        2,  # nine bits: three values before the first one count, too
        40 if len(offsets) else 0,
        9 if str(column.type) in ("string", "binary") else (9 * int(nodes[0, 4]) + 7) // 8,
    )
    enough = [bytes(one)[:need] for one, need in zip((valid, offsets, data), needs, strict=True)]
    memory, ends = bytearray(1000), np.zeros(7, np.int32)

    def write(buffers: list[bytes]) -> int:
        return _write_kernel.write_columns(nodes, count, names, [*buffers, *others], POWERS, memory, ends, 0)

    assert write(enough) == 6
    for place, need in enumerate(needs):
        if need:
            short = [one[:-1] if at == place else one for at, one in enumerate(enough)]
            with pytest.raises(ValueError, match="leave their data"):
                write(short)


@pytest.mark.skipif(COMPILED is None, reason="there is no C compiler")
@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.list_(pa.int8())], ids=str)
@pytest.mark.parametrize("edges", [[0, 3, 2], [-1, 0, 1], [0, 1, 5]])
def test_offsets_that_go_backwards_or_leave_the_data_are_refused(kind: pa.DataType, edges: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets that leave their data"):
        texts(COMPILED, with_offsets(kind, edges))


@pytest.mark.skipif(COMPILED is None, reason="there is no C compiler")
def test_more_bytes_than_an_array_can_have_are_an_error() -> None:
    from spark_kafka_native.formats.json import _write_kernel

    small = CompiledWriter(_write_kernel, max_bytes=1000)
    rows = pa.array(["x" * 98] * 10)
    assert len(small.write(rows)) == 10
    with pytest.raises(EncodeError, match=r"row 10: .*2 GiB as JSON") as caught:
        small.write(pa.array(["x" * 98] * 11))
    assert caught.value.row == 10
    with pytest.raises(EncodeError, match="row 0: "):
        small.write(pa.array(["x" * 999]))


def test_an_encoder_leaves_nulls_out_and_json_texts_does_not() -> None:
    kind = pa.struct([("a", pa.int8())])
    rows = pa.array([{"a": 1}, None], kind)
    assert JsonEncoder().encode(rows).to_pylist() == [b'{"a":1}', None]
    assert json_texts(rows).to_pylist() == ['{"a":1}', "null"]
    # The kernel has no unsigned integers, and Spark has none either.
    assert json_texts(pa.array([[1, None]], pa.list_(pa.uint8()))).to_pylist() == ["[1,null]"]


def test_the_environment_chooses_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_KAFKA_NATIVE_KERNEL", raising=False)
    assert type(choose_writer()) is (ArrowWriter if COMPILED is None else CompiledWriter)
    monkeypatch.setenv("SPARK_KAFKA_NATIVE_KERNEL", "numpy")
    assert type(choose_writer()) is ArrowWriter


@pytest.mark.parametrize("choice", ["", "numpy"])
@pytest.mark.parametrize("name", ["json", "csv"])
def test_rows_are_written_without_pandas(name: str, choice: str) -> None:
    script = f"""
import sys
import numpy as np, pyarrow as pa
from spark_kafka_native.formats import load_format
from spark_kafka_native.formats.arrays import boolean, hide, strings, wrap
columns = [
    strings(["a", 'b,\\n"', ""]), wrap(np.arange(3.0), pa.float64()),
    wrap(np.arange(3), pa.timestamp("us", "UTC")),
    wrap(np.array([1, np.inf, np.nan]), pa.float64()), wrap(np.arange(3, dtype=np.int32), pa.date32()),
    wrap(np.arange(3), pa.int64()), boolean(np.ones(3, np.bool_)),
]
columns = [hide(one, np.array([False, False, True])) for one in columns]
rows = pa.StructArray.from_arrays(columns, [f"c{{i}}" for i in range(len(columns))])
written = load_format("{name}").encoder(rows.type, {{}}).encode(rows)
assert len(written) == 3 and written.null_count == 0, written
assert "pandas" not in sys.modules
"""
    environment = {**os.environ, "SPARK_KAFKA_NATIVE_KERNEL": choice}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_more_than_arrow_has_place_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_: pa.Array) -> pa.Array:
        raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")

    monkeypatch.setattr(write_kernel, "write_texts", write)
    with pytest.raises(EncodeError, match="more than 2 GiB as JSON"):
        ArrowWriter().write(pa.array([1]))


@each_writer
def test_fields_without_a_value(writer: Writer) -> None:
    """Data frames give them Arrow's type null, also deep inside."""
    inner = pa.struct([("x", pa.null()), ("y", pa.int8())])
    kind = pa.struct(
        [("a", pa.null()), ("b", pa.list_(pa.null())), ("c", inner), ("d", pa.map_(pa.string(), pa.null()))]
    )
    rows = [
        {"a": None, "b": [None, None], "c": {"x": None, "y": 1}, "d": [("k", None)]},
        None,
        {"a": None, "b": None, "c": None, "d": []},
    ]
    written = [b'{"b":[null,null],"c":{"y":1},"d":{"k":null}}', None, b'{"d":{}}']
    column = pa.array(rows, kind)
    for start in range(3):
        assert JsonEncoder(writer, has_nulls=True).encode(column[start:]).to_pylist() == written[start:]
    assert load_format("json").encoder(kind, {}).encode(column).to_pylist() == written
    with pytest.raises(FormatError, match="JSON can't hold the type null of `a`"):
        load_format("json").decoder(kind, {})
