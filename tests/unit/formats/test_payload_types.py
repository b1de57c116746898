"""Payloads as other programs have them: decoders take them as binary, or refuse them in words."""

from __future__ import annotations

import json
from contextlib import nullcontext
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.protobuf_messages import descriptor

from spark_kafka_native.formats import Decoder, FormatError, header_ids, load_format
from spark_kafka_native.formats.isolate import NotTogetherError
from spark_kafka_native.formats.protobuf.descriptors import to_text
from spark_kafka_native.formats.registry import frame_id

ROW = pa.struct([("id", pa.int64())])
AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
PART = "test.three.Part"


def stream(number: int) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_pylist([{"id": number}], pa.schema(list(ROW)))
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


CASES: dict[str, tuple[pa.DataType, dict[str, str], list[bytes | None]]] = {
    "json": (ROW, {}, [b'{"id":1}', None, b'{"id":22}', b"nope"]),
    "csv": (ROW, {}, [b"1", None, b"22", b"x"]),
    "string": (pa.string(), {}, [b"ab", None, b"cde", b"\xff"]),
    "arrow-ipc": (ROW, {}, [stream(1), None, stream(22), b"nope"]),
    "avro": (ROW, {"schema": AVRO}, [b"\x02", None, b"\x2c", b""]),
    "protobuf": (
        pa.struct([("name", pa.string())]),
        {"descriptor": to_text(descriptor(PART)), "message": PART},
        [b"\x0a\x01a", None, b"\x0a\x02bb", b"\xff"],
    ),
    "framed json": (
        ROW,
        {"registry.url": "http://localhost:1"},
        [frame_id(7) + b'{"id":1}', None, frame_id(8) + b'{"id":2}', b"nope"],
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Decoder, pa.Array]:
    kind, settings, payloads = CASES[request.param]
    name = request.param.rpartition(" ")[2]
    return load_format(name).decoder(kind, {"payload": "value"} | settings), pa.array(payloads, pa.binary())


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int8(), pa.binary())])
def test_bytes_of_any_type_are_decoded_as_binary(case: tuple[Decoder, pa.Array], kind: Any) -> None:
    decoder, payloads = case
    given = payloads.dictionary_encode() if pa.types.is_dictionary(kind) else payloads.cast(kind)
    wanted = decoder.decode(payloads)
    assert wanted.array.null_count < len(payloads)
    assert len(wanted.bad.rows) == 1
    assert decoder.decode(given) == wanted
    # The offset of one large payload, taken for two of 32 bits, would be that of an empty one.
    assert decoder.decode(given.slice(2, 1)) == decoder.decode(payloads.slice(2, 1))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_text_is_decoded_as_its_bytes(kind: pa.DataType) -> None:
    decoder = load_format("json").decoder(ROW, {})
    given = pa.array(['{"id":1}', None, "nope"], kind)
    assert decoder.decode(given) == decoder.decode(given.cast(pa.string()).cast(pa.binary()))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (pa.array([1]), "payloads are binary, not int64"),
        (pa.array([{"id": 1}]), "payloads are binary, not struct<id: int64>"),
        (pa.chunked_array([[b"{}"]]), r"payloads are a pyarrow\.Array, not a ChunkedArray"),
        ([b"{}"], r"payloads are a pyarrow\.Array, not a list"),
    ],
    ids=["numbers", "structs", "chunked", "a list"],
)
def test_what_is_no_array_of_bytes_is_refused(case: tuple[Decoder, pa.Array], given: Any, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        case[0].decode(given)


@pytest.mark.parametrize(("name", "text"), [("json", '{"d":%s}'), ("json", '{"d":"%s"}'), ("csv", "%s")])
def test_a_number_may_have_400_characters_to_be_a_decimal(name: str, text: str) -> None:
    """The time that more of them take grows with the square of their number."""
    decoder = load_format(name).decoder(pa.struct([("d", pa.decimal128(10, 2))]), {})
    payloads = [(text % f"1.{'0' * places}").encode() for places in (398, 399)]
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    assert decoded.array.to_pylist() == [{"d": Decimal(1)}, {"d": None}]
    assert decoded.bad.rows == (1,)


@pytest.mark.parametrize(("name", "payload"), [("json", b'{"id":1}'), ("csv", b"1")], ids=["json", "csv"])
def test_more_bytes_than_arrow_reads_as_one_block_are_not_read_together(
    name: str, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder: Any = load_format(name).decoder(ROW, {})
    payloads = pa.array([payload] * 3, pa.binary())
    for size in (payloads.nbytes, payloads.nbytes - 1):
        monkeypatch.setattr(f"spark_kafka_native.formats.{name}.{name}_format.MAX_TOGETHER", size)
        with nullcontext() if size == payloads.nbytes else pytest.raises(NotTogetherError):
            assert decoder.read_together(payloads).to_pylist() == [{"id": 1}] * 3
        assert decoder.decode(payloads).array.to_pylist() == [{"id": 1}] * 3


def test_rows_that_32_bits_can_not_count_are_refused() -> None:
    decoder: Any = load_format("arrow-ipc").decoder(pa.list_(ROW), {})
    lengths = np.array([2**30, 2**30])
    with pytest.raises(FormatError, match=r"more than 2\^31 rows"):
        decoder._column(pa.nulls(0, ROW), lengths, np.ones(2, np.bool_))


def test_ids_in_headers_of_large_binary() -> None:
    pairs = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    headers = pa.array([[("__value_schema_id", frame_id(7))], None], pairs)
    decoder: Any = load_format("json").decoder(ROW, {"registry.url": "http://localhost:1"})
    payloads = pa.array([b'{"id":1}', frame_id(8) + b'{"id":2}'])
    decoded = decoder.decode(payloads, header_ids(headers, "value"))
    assert decoded.array.to_pylist() == [{"id": 1}, {"id": 2}]
