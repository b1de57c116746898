"""Messages against the reference implementation: random ones both ways, broken ones with the same verdict."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from support.hooks.fresh_seeds import try_seeds
from support.protobuf_messages import descriptor, expected, mutate, normal, random_message

from spark_kafka_native.formats.protobuf.binding import bind
from spark_kafka_native.formats.protobuf.message_types import TypeChoices, is_map, message_type
from spark_kafka_native.formats.protobuf.protobuf_format import ProtobufDecoder, ProtobufEncoder

SECONDS = float(os.environ.get("PROTOBUF_FUZZ_SECONDS", "2"))
NAMES = ["test.three.Everything", "test.two.Everything"]


def as_numbers(kind: pa.DataType) -> pa.DataType:
    """``kind`` with numbers in place of times: `to_pylist` imports pandas for durations."""
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, as_numbers(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(as_numbers(kind.key_type), as_numbers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(as_numbers(kind.value_type))
    return pa.int64() if pa.types.is_temporal(kind) else kind


def rows_of(array: pa.Array) -> list[Any]:
    array.validate(full=True)
    kind = as_numbers(array.type)
    plain = pa.Array.from_buffers(kind, len(array), *_memory(array, kind))
    return [normal(one) for one in plain.to_pylist()]


def _memory(array: pa.Array, kind: pa.DataType) -> tuple[Any, ...]:
    """The memory of an array that is no slice, under another type of the same layout."""
    count = {True: 1}.get(pa.types.is_struct(kind), 2)
    if pa.types.is_struct(kind):
        children = [array.field(i) for i in range(kind.num_fields)]
        wanted = [kind.field(i).type for i in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        entry = pa.struct([kind.key_field, kind.item_field])
        parts = [_again(array.keys, kind.key_type), _again(array.items, kind.item_type)]
        entries = pa.Array.from_buffers(entry, len(parts[0]), [None], children=parts)
        return array.buffers()[:2], -1, array.offset, [entries]
    elif pa.types.is_list(kind):
        children, wanted = [array.values], [kind.value_type]
    else:
        return array.buffers(), -1, array.offset
    again = [_again(child, one) for child, one in zip(children, wanted, strict=True)]
    return array.buffers()[:count], -1, array.offset, again


def _again(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(array), *_memory(array, kind))


def codec(name: str, emits_defaults: bool = False) -> Any:
    choices = TypeChoices(emits_defaults=emits_defaults)
    return bind(descriptor(name), message_type(descriptor(name), choices), emits_defaults=emits_defaults)


@pytest.mark.parametrize("name", NAMES)
def test_random_messages_are_the_rows_that_they_are_one_by_one_and_back(name: str) -> None:
    kind = descriptor(name)
    encoder = ProtobufEncoder(bind(kind, codec(name).type, reads=False))
    decoders = {emits: ProtobufDecoder(codec(name, emits)) for emits in (False, True)}

    def check(seed: int) -> None:
        rng = random.Random(seed)
        messages = [random_message(kind, rng) for _ in range(rng.choice([1, 30]))]
        payloads: list[bytes | None] = [one.SerializeToString() for one in messages]
        rows: dict[bool, list[Any]] = {}
        for emits in (False, True):
            rows[emits] = [expected(one, emits_defaults=emits) for one in messages]
        for index in range(0, len(payloads), 7):
            payloads[index] = None
            rows[False][index] = rows[True][index] = None
        for emits, decoder in decoders.items():
            decoded = decoder.decode(pa.array(payloads, pa.binary()))
            assert decoded.bad.rows == ()
            assert rows_of(decoded.array) == rows[emits]
        encoded = encoder.encode(decoders[False].decode(pa.array(payloads, pa.binary())).array)
        again = decoders[False].decode(encoded)
        assert rows_of(again.array) == rows[False]
        assert encoded.null_count == payloads.count(None)
        # The reference implementation reads it, too.
        made = GetMessageClass(kind)
        read = [None if one is None else expected(made.FromString(one)) for one in encoded.to_pylist()]
        assert read == rows[False]

    try_seeds(check, f"messages {name}", range(5))


REFUSED, INCOMPLETE = "no message", "without a required field"
START_GROUP = 3
"""A wire type: the last three bits of a tag."""


def is_twice(message: Any, one: Any) -> bool:
    """True if ``one``, a value of which was put aside, is an enum that has another one."""
    return one.enum_type is not None and one.has_presence and message.HasField(one.name)


def verdict(name: str, payload: bytes) -> Any:
    """The row of the reference, or why there is none. Without the maps of which it has put an entry aside:
    it does so with an entry that has an unknown field. Without an enum that comes twice, too, the second time
    with a number that it does not have: the reference keeps the first, ours is null."""
    try:
        message = GetMessageClass(descriptor(name)).FromString(payload)
        if not message.IsInitialized():
            return INCOMPLETE
        aside = {one.field_number for one in UnknownFieldSet(message)}
        kinds = message.DESCRIPTOR.fields
        unsure = {
            one.name for one in kinds if one.number in aside and (is_map(one) or is_twice(message, one))
        }
        return {column: value for column, value in expected(message).items() if column not in unsure}
    except (DecodeError, UnicodeDecodeError):
        return REFUSED


@pytest.mark.parametrize("name", NAMES)
def test_broken_messages_get_the_verdict_of_the_reference_implementation(name: str) -> None:
    """Alone and among others; a message of which the reference says that it is none may be read only if
    the fault is outside of its fields."""
    decoder = ProtobufDecoder(codec(name))
    seen = {"good": 0, "bad": 0, "lenient": 0}

    def check(seed: int) -> None:
        rng = random.Random(seed)
        payloads = [mutate(random_message(descriptor(name), rng).SerializeToString(), rng) for _ in range(20)]
        decoded = decoder.decode(pa.array(payloads, pa.binary()))
        assert len(decoded.array) == len(payloads)
        rows = rows_of(decoded.array)
        for row, payload in enumerate(payloads):
            wanted = verdict(name, payload)
            alone = decoder.decode(pa.array([payload], pa.binary()))
            assert rows_of(alone.array) == [rows[row]]
            assert bool(alone.bad.rows) == (row in decoded.bad.rows)
            if row in decoded.bad.rows:
                seen["bad"] += 1
                reason = decoded.bad.reasons[decoded.bad.rows.index(row)]
                # The reference knows no range of times, and takes any bytes for text of proto2.
                own = "out of the range" in reason or "invalid UTF-8" in reason
                # It does not look at numbers within a group that it skips; Java does.
                own |= "field number 0" in reason and any(byte & 7 == START_GROUP for byte in payload)
                assert own or wanted in (REFUSED, INCOMPLETE)
            elif wanted == REFUSED:
                seen["lenient"] += 1
            else:
                seen["good"] += 1
                assert {column: rows[row][column] for column in wanted} == wanted

    known = [*range(5), 1699575826]  # the last one: field number 0 in a group
    try_seeds(check, f"broken messages {name}", known, seconds=SECONDS)
    assert seen["good"] > 5
    assert seen["bad"] > 20
    assert seen["lenient"] * 20 < seen["bad"]


def test_a_topic_full_of_bad_payloads_costs_no_more_than_each_of_them_alone() -> None:
    decoder = ProtobufDecoder(codec("test.three.Everything"))
    calls = 0
    engine = decoder._engine
    read = engine.read

    def counted(payloads: pa.Array) -> Any:
        nonlocal calls
        calls += 1
        return read(payloads)

    engine.read = counted  # type: ignore[method-assign]
    decoded = decoder.decode(pa.array([b"\xff"] * 2_000, pa.binary()))
    assert decoded.bad.rows == tuple(range(2_000))
    assert calls <= 2_002


def test_huge_claims_cost_no_memory() -> None:
    decoder = ProtobufDecoder(codec("test.three.Everything"))
    huge = [
        b"\x72\xff\xff\xff\xff\x07",  # a string of 2 GiB
        b"\xf2\x01\xff\xff\xff\xff\x07",  # a packed list
        b"\x8a\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a message of 2**64 - 1 bytes
        b"\x0b" * 100_000,  # groups in groups
        b"\x8a\x01\x02" * 50_000,
    ]
    before, start = pa.total_allocated_bytes(), time.monotonic()
    decoded = decoder.decode(pa.array(huge, pa.binary()))
    assert decoded.bad.rows == tuple(range(len(huge)))
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert time.monotonic() - start < 60
