"""Arrow IPC streams as values: rows, types, sizes that are claimed, broken bytes."""

import os
import random
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.hooks.fresh_seeds import try_seeds

from spark_kafka_native.formats import EncodeError, FormatError, arrow_ipc_sizes, load_format
from spark_kafka_native.formats.arrow_ipc import ArrowIpcFormat, _size
from spark_kafka_native.formats.arrow_ipc_sizes import MAX_GROWTH

SECONDS = float(os.environ.get("ARROW_FUZZ_SECONDS", "2"))
ROW = pa.struct([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
ROWS = pa.list_(pa.field("element", ROW))
TABLE = pa.table(
    {
        "name": ["a", None, "c"],
        "other": [1.5, 2.5, None],
        "id": pa.array([1, 2, None], pa.int32()),
        "tags": [["x"], [], None],
    }
)
LISTED = [
    {"id": 1, "name": "a", "tags": ["x"]},
    {"id": 2, "name": None, "tags": []},
    {"id": None, "name": "c", "tags": None},
]


def stream(table: pa.Table, rows: int | None = 2, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return bytes(sink.getvalue())


def read(kind: pa.DataType, *payloads: bytes | None) -> Any:
    decoded = ArrowIpcFormat().decoder(kind, {}).decode(pa.array(payloads, pa.binary()))
    decoded.array.validate(full=True)
    assert len(decoded.array) == len(payloads)
    return decoded


def test_a_lack_of_memory_makes_no_bad_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropmalformed the stream was lost."""

    def no_memory(_: object) -> Any:
        raise pa.lib.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(pa.ipc, "read_schema", no_memory)
    with pytest.raises(MemoryError):
        read(ROWS, stream(TABLE))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_each_payload_is_an_array_of_its_rows(compression: str | None) -> None:
    payload = stream(TABLE, compression=compression)
    empty = stream(TABLE.slice(0, 0))
    decoded = read(ROWS, payload, None, b"junk", empty, payload)
    assert decoded.array.to_pylist() == [LISTED, None, None, [], LISTED]
    assert decoded.bad.rows == (2,)


def test_a_struct_is_the_only_row_of_its_stream() -> None:
    one = stream(TABLE.slice(1, 1))
    decoded = read(ROW, one, None, stream(TABLE), one, stream(TABLE.slice(0, 0)))
    assert decoded.array.to_pylist() == [LISTED[1], None, None, LISTED[1], None]
    assert decoded.bad.rows == (2, 4)
    assert decoded.bad.reasons[0] == "a stream of 3 rows, where the type is that of a single one"


def test_columns_by_name_missing_ones_are_null_and_words_of_dictionaries_are_values() -> None:
    table = pa.table({"name": pa.array(["a", "b", None, "a"]).dictionary_encode()})
    decoded = read(ROWS, stream(table), stream(TABLE.select(["other"])))
    assert [row["name"] for row in decoded.array.to_pylist()[0]] == ["a", "b", None, "a"]
    assert decoded.array.to_pylist()[1] == [{"id": None, "name": None, "tags": None}] * 3


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array(["1"]), "`id` is string in the stream, not int64"),
        (pa.array([2**63], pa.uint64()), "`id`: "),
        (pa.array([1.0]), "`id` is double in the stream"),
        (pa.array([1]).dictionary_encode(), "`id` is dictionary<"),
        (pa.array(["1"]).dictionary_encode(), "`id` is string in the stream, not int64"),
        (pa.array([[1]]), "`id` is list<"),
        (pa.array([{"a": 1}]), "`id` is struct<"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "`id` is map<"),
    ],
)
def test_types_that_are_not_the_same(column: pa.Array, reason: str) -> None:
    decoded = read(ROWS, stream(pa.table({"id": column})), stream(TABLE))
    assert decoded.bad.rows == (0,)
    assert decoded.bad.reasons[0].startswith(reason)
    assert decoded.array.to_pylist()[1] == LISTED


def test_fields_of_a_struct_are_not_read_under_the_names_of_others() -> None:
    """Fields in structs have their places: those in another order would change their values."""
    want = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    fine, swapped, other = (
        pa.table({"id": pa.array([{"a": 1, "b": 2}], pa.struct([(name, pa.int32()) for name in names]))})
        for names in ("ab", "ba", "ac")
    )
    decoded = read(pa.list_(pa.struct([("id", want)])), *map(stream, (fine, swapped, other)))
    assert decoded.array.to_pylist() == [[{"id": {"a": 1, "b": 2}}], None, None]
    assert decoded.bad.rows == (1, 2)


def test_the_rows_of_all_batches_count_for_columns_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They become nulls, which take their place too."""
    monkeypatch.setattr(arrow_ipc_sizes, "MAX_BYTES", 30_000)
    batch, sink = pa.record_batch({"id": pa.array([1] * 100, pa.int8())}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(10):
            writer.write_batch(batch)
    payload = bytes(sink.getvalue())
    assert arrow_ipc_sizes.check_sizes(payload, 20) == 30_000
    with pytest.raises(arrow_ipc_sizes.TooLargeError):
        arrow_ipc_sizes.check_sizes(payload, 50)


@pytest.mark.parametrize(("key", "item"), [(pa.int32(), pa.int64()), (pa.string(), pa.string())])
def test_both_parts_of_a_map_are_of_their_types(key: pa.DataType, item: pa.DataType) -> None:
    want = pa.list_(pa.struct([("id", pa.map_(pa.string(), pa.int64()))]))
    entry = tuple(1 if pa.types.is_integer(kind) else "1" for kind in (key, item))
    fine, other = (
        pa.table({"id": pa.array([[one]], pa.map_(*kinds))})
        for one, kinds in ((("1", 1), (pa.string(), pa.int32())), (entry, (key, item)))
    )
    decoded = read(want, stream(fine), stream(other))
    assert (decoded.array.to_pylist(), decoded.bad.rows) == ([[{"id": [("1", 1)]}], None], (1,))


def test_times_with_a_zone_and_without_are_different_things() -> None:
    kind = pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))]))
    good = pa.table({"at": pa.array([1_500], pa.timestamp("ms", "Europe/Berlin"))})
    naive = pa.table({"at": pa.array([1], pa.timestamp("us"))})
    fine = pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC"))})
    decoded = read(kind, stream(good), stream(naive), stream(fine))
    assert decoded.bad.rows == (1, 2)
    assert decoded.array.view(pa.list_(pa.struct([("at", pa.int64())]))).to_pylist()[0] == [{"at": 1_500_000}]


def test_a_double_that_is_no_float_does_not_become_infinite() -> None:
    numbers = [1.5, float("inf"), None, 1e300]
    kind = pa.list_(pa.struct([("x", pa.float32())]))
    decoded = read(
        kind, *(stream(pa.table({"x": pa.array(part, pa.float64())})) for part in (numbers[:3], numbers))
    )
    assert decoded.array.to_pylist() == [[{"x": one} for one in numbers[:3]], None]
    assert decoded.bad.reasons == ("`x`: a number is too large for float",)


@pytest.mark.parametrize(
    ("have", "want", "nest"),
    [
        (pa.struct([("x", pa.float64())]), pa.struct([("x", pa.float32())]), lambda x: {"x": x}),
        (pa.list_(pa.float64()), pa.list_(pa.float32()), lambda x: [x, x]),
        (pa.map_(pa.string(), pa.float64()), pa.map_(pa.string(), pa.float32()), lambda x: [("k", x)]),
    ],
)
def test_nor_does_a_double_in_another_value(have: pa.DataType, want: pa.DataType, nest: Any) -> None:
    values = [nest(1.5), None, nest(None), nest(float("-inf")), nest(-1e300)]
    columns = [pa.table({"x": pa.array(part, have)}) for part in (values[:4], values)]
    decoded = read(pa.list_(pa.struct([("x", want)])), *map(stream, columns))
    assert decoded.array.to_pylist() == [[{"x": one} for one in values[:4]], None]
    assert decoded.bad.reasons == ("`x`: a number is too large for float",)


@pytest.mark.parametrize("source", [pa.decimal128(38, 0), pa.decimal256(76, 0), pa.decimal256(40, 3)])
def test_a_decimal_that_does_not_fit_does_not_wrap_around(source: pa.DataType) -> None:
    most = 10**20 - 1
    payloads = [
        stream(pa.table({"x": pa.array([None, Decimal(number)], source)}))
        for number in (most, -most, most + 1, -most - 1, 2737576032463334546746)
    ]
    decoded = read(pa.list_(pa.struct([("x", pa.decimal128(38, 18))])), *payloads)
    good = [[{"x": None}, {"x": Decimal(number)}] for number in (most, -most)]
    assert decoded.array.to_pylist() == [*good, None, None, None]
    assert decoded.bad.reasons == ("`x`: a number is too large for decimal128(38, 18)",) * 3


@pytest.mark.parametrize("scale", [-59, 95, 2**20, -(2**20), 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("decimal", [pa.decimal128, pa.decimal256])
def test_a_scale_that_no_power_of_ten_reaches(decimal: Any, scale: int) -> None:
    source, wanted = decimal(38, scale), pa.decimal128(38, 18)
    ones = pa.py_buffer(b"".join(one.to_bytes(source.bit_width // 8, "little") for one in (1, 1)))
    numbers = pa.Array.from_buffers(source, 2, [None, ones])
    offsets = pa.array([0, 1, 2], pa.int32())
    columns = {
        wanted: numbers,
        pa.struct([("y", wanted)]): pa.StructArray.from_arrays([numbers], ["y"]),
        pa.list_(wanted): pa.ListArray.from_arrays(offsets, numbers),
        pa.map_(pa.string(), wanted): pa.MapArray.from_arrays(offsets, pa.array(["k", "k"]), numbers),
    }
    for kind, column in columns.items():
        decoded = read(pa.list_(pa.struct([("x", kind)])), stream(pa.table({"x": column})))
        reason = f"`x`: {source} has a scale too far from that of {wanted}"
        assert decoded.bad.reasons == (reason,)


def test_negative_scales() -> None:
    column = pa.array([Decimal("12300"), None, Decimal("-4E+2")], pa.decimal128(5, -2))
    decoded = read(pa.list_(pa.struct([("x", pa.decimal128(10, 2))])), stream(pa.table({"x": column}), None))
    assert decoded.array.to_pylist() == [[{"x": one} for one in (Decimal("12300"), None, Decimal("-400"))]]


def test_values_under_a_null_do_not_count() -> None:
    """A null struct has fields, and a null list may have elements."""
    hidden = pa.array([1, 300, 2], pa.int64())
    mask = pa.array([False, True, False])
    structs = pa.StructArray.from_arrays([hidden], ["y"], mask=mask)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), hidden, mask=mask)
    kind = pa.struct([("s", pa.struct([("y", pa.int8())])), ("l", pa.list_(pa.int8()))])
    decoded = read(pa.list_(kind), stream(pa.table({"s": structs, "l": lists}), None))
    assert decoded.bad.reasons == ()
    assert decoded.array.to_pylist()[0] == [
        {"s": {"y": 1}, "l": [1]},
        {"s": None, "l": None},
        {"s": {"y": 2}, "l": [2]},
    ]


@pytest.mark.parametrize("nullable", [True, False])
def test_a_null_in_a_field_that_has_none(nullable: bool) -> None:
    kind = pa.struct([pa.field("y", pa.int32(), nullable)])
    columns = [pa.array(part, pa.struct([("y", pa.int64())])) for part in ([{"y": 1}, None], [{"y": None}])]
    decoded = read(pa.list_(pa.struct([("x", kind)])), *(stream(pa.table({"x": one})) for one in columns))
    assert decoded.array.to_pylist() == [
        [{"x": {"y": 1}}, {"x": None}],
        [{"x": {"y": None}}] if nullable else None,
    ]


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.float32(), pa.int32(), pa.string(), pa.decimal128(5, 2), ROW]
)
def test_a_column_of_the_type_null_is_null(kind: pa.DataType) -> None:
    payloads = [stream(pa.table({"x": pa.nulls(rows)})) for rows in (0, 1, 3)]
    decoded = read(pa.list_(pa.struct([("x", kind)])), *payloads)
    assert decoded.array.to_pylist() == [[], [{"x": None}], [{"x": None}] * 3]


def test_bytes_behind_the_stream_and_two_columns_of_one_name() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"])
    assert read(ROWS, stream(TABLE) + b"\0", stream(twice)).bad.reasons == (
        "bytes follow the end of the stream",
        "two columns of the stream have the same name",
    )
    others = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["id", "x", "x"])
    decoded = read(pa.list_(pa.struct([("id", pa.int64())])), stream(others))
    assert (decoded.array.to_pylist(), decoded.bad.rows) == ([[{"id": 1}]], ())


def test_rows_and_sizes_that_are_only_claimed_are_not_allocated() -> None:
    zeros = stream(pa.table({"id": np.zeros(500_000, np.int64)}), None, compression="zstd")
    nulls = stream(pa.table({"id": pa.nulls(500_000)}), None)
    words = pa.DictionaryArray.from_arrays(np.zeros(300_000, np.int8), ["x" * 100_000])
    packed = bytearray(stream(pa.table({"id": pa.array([1, 2], pa.int64())}), compression="lz4"))
    claim = packed.rindex(struct.pack("<q", 16))
    packed[claim : claim + 8] = struct.pack("<q", 2**40)
    before = pa.total_allocated_bytes()
    decoded = read(ROWS, zeros, nulls, stream(pa.table({"name": words}), None), bytes(packed))
    assert decoded.bad.rows == (0, 1, 2, 3)
    assert all("are refused for its length" in reason for reason in decoded.bad.reasons)
    assert pa.total_allocated_bytes() - before < MAX_GROWTH * 2**20


@pytest.mark.parametrize("batches", [1, 10])
def test_nulls_without_a_type_take_bytes_once_they_have_one(batches: int) -> None:
    kind = pa.list_(pa.struct([("x", pa.list_(pa.float64()))]))
    ends = pa.py_buffer(np.array([0, 10**6 // batches], np.int32))
    nulls = pa.nulls(10**6 // batches)
    column = pa.Array.from_buffers(pa.list_(pa.null()), 1, [None, ends], children=[nulls])
    few = stream(pa.table({"x": pa.array([[None] * 3], pa.list_(pa.null()))}))
    decoded = read(kind, stream(pa.concat_tables([pa.table({"x": column})] * batches), 1), few)
    assert decoded.array.to_pylist() == [None, [{"x": [None] * 3}]]
    assert decoded.bad.reasons[0].endswith("are refused for its length")


@pytest.mark.parametrize(
    ("have", "want", "inner"),
    [
        (pa.list_(pa.string()), pa.list_(pa.string()), ["ab"]),
        (pa.list_(pa.large_string()), pa.list_(pa.string()), ["ab"]),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16()), [("ab", 1)]),
    ],
)
def test_offsets_of_no_lists_at_all_are_not_followed(
    have: pa.DataType, want: pa.DataType, inner: Any
) -> None:
    """Arrow validates only those of lists that are there, and counts bytes by all."""
    payload = stream(pa.table({"x": pa.array([[inner] * 77], pa.list_(have))}))
    for find, old, new in (
        (payload.index, struct.pack("<qq", 77, 0), bytes(16)),  # the number of inner lists
        (payload.rindex, struct.pack("<2i", 0, 77), bytes(8)),  # the offsets of the outer one
        (
            payload.rindex,
            struct.pack("<3i", 0, 1, 2),
            struct.pack("<3i", 2**28, 1, 2),
        ),  # and of the inner ones
    ):
        at = find(old)
        payload = payload[:at] + new + payload[at + len(old) :]
    decoded = read(pa.list_(pa.struct([("x", pa.list_(want))])), payload)
    assert decoded.array.to_pylist() == [[{"x": []}]]


@pytest.mark.parametrize("size", [2**40, -(2**40)])
def test_the_buffers_of_a_batch_have_one_limit_together(size: int) -> None:
    columns = {name: pa.array([number] * 2, pa.int64()) for number, name in enumerate(("id", "more", "last"))}
    packed = stream(pa.table(columns), compression="lz4")
    claim = packed.index(struct.pack("<q", 16), packed.index(b"last"))  # of the first column's values
    claims = [at for at in range(claim, len(packed)) if packed[at : at + 8] == struct.pack("<q", 16)]
    refused = 0
    for at in claims:
        changed = packed[:at] + struct.pack("<q", size) + packed[at + 8 :]
        refused += "are refused for its length" in "".join(read(ROWS, changed).bad.reasons)
    assert refused >= 3  # whichever of the three it is


def test_the_batches_of_a_stream_have_one_limit_together() -> None:
    """A batch of zeros is packed to so little that any number of them would fit, each by itself."""
    kind = pa.list_(pa.struct([("id", pa.int64())]))
    batch = pa.table({"id": np.zeros(50_000, np.int64)})
    many = stream(pa.concat_tables([batch] * 10), 50_000, compression="zstd")
    limit = MAX_GROWTH * len(many)
    assert batch.nbytes < limit < 10 * batch.nbytes - 2**16
    assert read(kind, many).bad.reasons[0].endswith("are refused for its length")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1] * 1000, pa.int64()),
        pa.array(["abc"] * 1000),
        pa.array([[]] * 1000, pa.list_(pa.int8())),
        pa.array([[]] * 1000, pa.map_(pa.string(), pa.int8())),
        pa.array([[1, 2], []] * 500, pa.list_(pa.int64())),
        pa.array([[("k", 1)]] * 1000, pa.map_(pa.string(), pa.int64())),
        pa.array([{"a": [], "b": [[]]}] * 1000, pa.struct([("a", ROWS), ("b", pa.list_(ROWS))])),
        pa.array(["long word"] * 1000).dictionary_encode(),
    ],
    ids=lambda column: str(column.type)[:40],
)
def test_sizes_are_those_of_the_columns_that_are_read(column: pa.Array) -> None:
    """Also of offsets, which columns may share in a payload."""
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    assert 0.9 * plain.nbytes <= _size(column) <= 1.1 * plain.nbytes


@pytest.mark.parametrize("batches", [9, 10])
def test_the_messages_of_a_stream_have_a_limit(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema is one of them."""
    monkeypatch.setattr(arrow_ipc_sizes, "_MAX_MESSAGES", 10)
    kind = pa.list_(pa.struct([("id", pa.int64())]))
    decoded = read(kind, stream(pa.table({"id": np.arange(batches)}), 1))
    rows = [{"id": number} for number in range(batches)]
    assert decoded.array.to_pylist() == [rows if batches < 10 else None]
    assert decoded.bad.reasons == (("no Arrow IPC stream: more than 10 messages",) if batches == 10 else ())


def test_what_is_written_is_read_again() -> None:
    rows = pa.array([LISTED, None, [], LISTED[:1]], ROWS)
    for part in (rows, rows.slice(1, 3)):
        payloads = ArrowIpcFormat().encoder(ROWS, {}).encode(part)
        assert read(ROWS, *payloads.to_pylist()).array.equals(part)
    single = pa.array([LISTED[0], None, LISTED[1]], ROW)
    payloads = ArrowIpcFormat().encoder(ROW, {}).encode(single)
    assert read(ROW, *payloads.to_pylist()).array.equals(single)
    # Any reader of Arrow takes them.
    assert pa.ipc.open_stream(payloads[0].as_py()).read_all().to_pylist() == LISTED[:1]
    with pytest.raises(EncodeError, match="row 1: a row of the stream is null"):
        ArrowIpcFormat().encoder(ROWS, {}).encode(pa.array([[], [None]], ROWS))


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.list_(pa.int64()), pa.struct([]), pa.struct([("a", pa.int8()), ("a", pa.int8())])]
)
def test_types_that_no_stream_has(kind: pa.DataType) -> None:
    with pytest.raises(FormatError):
        load_format("arrow-ipc").decoder(kind, {})


@pytest.mark.parametrize("kind", [ROW, ROWS])
def test_equal_rows_have_equal_bytes_and_none_of_their_neighbours(kind: pa.DataType) -> None:
    mine, other = LISTED[0], {"id": -1, "name": "SECRET", "tags": ["SECRET"]}
    rows = [mine, other, mine, {**mine, "id": None}, other, None, mine]
    if kind == ROWS:
        rows = [None if row is None else [row] for row in rows]
    array = pa.array(rows, kind)
    whole = ArrowIpcFormat().encoder(kind, {}).encode(array).to_pylist()
    alone = [ArrowIpcFormat().encoder(kind, {}).encode(pa.array([row], kind))[0].as_py() for row in rows]
    part = ArrowIpcFormat().encoder(kind, {}).encode(array.slice(2)).to_pylist()
    assert whole == alone
    assert part == alone[2:]
    assert b"SECR" not in whole[0]


def test_broken_streams_are_bad_or_whole() -> None:
    wide = pa.table({"id": list(range(50)), "name": [str(i) for i in range(50)], "tags": [["t"]] * 50})
    words = pa.table({"name": pa.array(["a", "b"] * 20).dictionary_encode()})
    good = [
        stream(one, compression=compression)
        for one in (TABLE, wide, words)
        for compression in (None, "lz4", "zstd")
    ]
    decoder = ArrowIpcFormat().decoder(ROWS, {})
    seen = {"bad": 0, "good": 0}

    def check(seed: int) -> None:
        rng = random.Random(seed)
        payloads = [_mutated(rng.choice(good), rng) for _ in range(20)]
        decoded = decoder.decode(pa.array(payloads, pa.binary()))
        decoded.array.validate(full=True)
        assert len(decoded.array) == 20
        row = rng.randrange(20)
        alone = decoder.decode(pa.array(payloads[row : row + 1], pa.binary()))
        assert alone.array.equals(decoded.array.slice(row, 1))
        seen["bad"] += len(decoded.bad.rows)
        seen["good"] += 20 - len(decoded.bad.rows)

    try_seeds(check, "broken Arrow streams", range(20), seconds=SECONDS)
    assert min(seen.values()) > 10


def _mutated(payload: bytes, rng: random.Random) -> bytes:
    data = bytearray(payload)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 2:
                size = rng.choice([4, 8])
                at -= at % size
                value = rng.choice([-1, 0, 1, 2**31 - 1, rng.randrange(100)])
                data[at : at + size] = value.to_bytes(size, "little", signed=True)
            case _:
                del data[at : at + rng.choice([1, 8, 64])]
    return bytes(data)
