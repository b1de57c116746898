"""Any message at any version: written bytes read back, and no input makes the reader misbehave."""

from __future__ import annotations

import contextlib
import random
import struct as structs
import tracemalloc
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hooks.fresh_seeds import try_seeds
from support.hostile import attempt, random_message, spoil, watched

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import ProtocolError
from spark_kafka_native.kafka.protocol.api import all_requests
from spark_kafka_native.kafka.protocol.message import (
    ArrayOf,
    Field,
    Message,
    Struct,
    declared_fields,
)
from spark_kafka_native.kafka.protocol.message_codec import codec
from spark_kafka_native.kafka.protocol.wire import Blob, Error, Fixed

MESSAGES: list[type[Message]] = [
    message for request in all_requests().values() for message in (request, request.response)
]
RESPONSES: list[type[Message]] = [request.response for request in all_requests().values()]
SPOILT = 100
"""Of each response, with the same seed in each run."""
EACH_MESSAGE = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)

RANGES = {"b": 8, "h": 16, "i": 32, "q": 64}


def values_of_fixed(fixed: Fixed, *, error: bool) -> st.SearchStrategy[Any]:
    if error:
        return st.one_of(st.sampled_from(ErrorCode), st.integers(134, 32767).map(ErrorCode.of))
    if fixed.format == "?":
        return st.booleans()
    if fixed.name == "uuid":
        return st.uuids()
    if fixed.name == "float64":
        return st.floats(allow_nan=False)  # which no value equals, not even itself
    bits = RANGES[fixed.format]
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def values_of(field_type: Any, version: int) -> st.SearchStrategy[Any]:
    if isinstance(field_type, ArrayOf):
        return st.lists(values_of(field_type.element, version), max_size=3)
    if isinstance(field_type, type):
        return instances(field_type, version)
    if isinstance(field_type, Fixed):
        return values_of_fixed(field_type, error=field_type in typing.get_args(Error))
    if isinstance(field_type, Blob):
        return st.binary(max_size=20).map(bytes if field_type.copy else memoryview)
    return st.text(max_size=20)


def values_of_field(field: Field, version: int) -> st.SearchStrategy[Any]:
    values = values_of(field.type, version)
    return st.none() | values if version >= field.nullable else values


def instances(struct: type[Struct], version: int) -> st.SearchStrategy[Any]:
    """Instances with any value in what ``version`` has, and the default in what it has not."""
    present = [field for field in declared_fields(struct) if field.present(version)]
    return st.builds(struct, **{field.name: values_of_field(field, version) for field in present})


@st.composite
def messages(draw: st.DrawFn, message: type[Message]) -> tuple[int, Any]:
    version = draw(st.integers(*message.versions))
    return version, draw(instances(message, version))


def join(buffers: list[Any]) -> bytes:
    return b"".join(buffers)


@EACH_MESSAGE
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip(message: type[Message], data: st.DataObject) -> None:
    version, value = data.draw(messages(message))
    one = codec(message, version)

    assert one.read(memoryview(join(one.write(value)))) == value


@EACH_MESSAGE
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_cut_off_is_refused(message: type[Message], data: st.DataObject) -> None:
    version, value = data.draw(messages(message))
    one = codec(message, version)
    written = join(one.write(value))
    if not written:
        return
    keep = data.draw(st.integers(0, len(written) - 1))

    with pytest.raises(ProtocolError, match=message.__name__):
        one.read(memoryview(written[:keep]))


@pytest.mark.parametrize("response", RESPONSES, ids=lambda message: message.__name__)
def test_spoilt_responses_are_read_or_refused(response: type[Message]) -> None:
    with watched():
        check_spoilt(response, random.Random(response.__name__), SPOILT)


def test_fresh_spoilt_messages() -> None:
    def check(seed: int) -> None:
        rng = random.Random(seed)
        check_spoilt(rng.choice(MESSAGES), rng, 20)

    with watched():
        try_seeds(check, "spoilt messages")


@pytest.mark.soak
@pytest.mark.parametrize("response", RESPONSES, ids=lambda message: message.__name__)
def test_a_great_many_spoilt_responses(response: type[Message]) -> None:
    with watched():
        try_seeds(
            lambda seed: check_spoilt(response, random.Random(seed), 1000), f"soak of {response}", range(20)
        )


def check_spoilt(message: type[Message], rng: random.Random, count: int) -> None:
    """What can be read of spoilt bytes can be written, and reads as the same again."""
    for _ in range(count):
        version = rng.randint(*message.versions)
        one = codec(message, version)
        spoilt = bytearray(join(one.write(random_message(message, version, rng))))
        spoil(spoilt, rng)
        data = memoryview(bytes(spoilt))
        found = attempt(lambda one=one, data=data: one.read(data), len(data), (ProtocolError,))
        if not isinstance(found, ProtocolError):
            written = join(one.write(found))
            assert join(one.write(one.read(memoryview(written)))) == written, (version, data.hex())


def read_or_refuse(one: Any, written: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        one.read(memoryview(written))


@EACH_MESSAGE
def test_a_length_of_two_thousand_million_allocates_nothing(message: type[Message]) -> None:
    """Every int32 (and every compact length) of a small message becomes the largest there is in turn."""
    one = codec(message, message.versions[1])
    written = bytearray(64)
    tracemalloc.start()
    for at in range(len(written) - 5):
        for length in (structs.pack(">i", 0x7FFF_FFFF), b"\xff\xff\xff\xff\x0f"):
            changed = bytearray(written)
            changed[at : at + len(length)] = length
            read_or_refuse(one, bytes(changed))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 500_000
