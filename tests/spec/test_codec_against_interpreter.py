"""Every message of ours, at every version, with random values, against an interpreter of Kafka's own spec.

The two share no code: what both read alike is Kafka's format.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.protocol.api import all_requests
from spark_kafka_native.kafka.protocol.message import ArrayOf, Field, Message, Struct, declared_fields
from spark_kafka_native.kafka.protocol.message_codec import codec
from spark_kafka_native.kafka.protocol.wire import Blob, Error, Fixed
from spark_kafka_native.testing.mock.message_spec import MessageSpecs, message_specs

MESSAGES: list[type[Message]] = [
    message for request in all_requests().values() for message in (request, request.response)
]
WITH_DEFAULTS = [
    message for message in MESSAGES if not any(field.required for field in declared_fields(message))
]
BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
LENGTHS = (0, 1, 2, 3)
LONG = (126, 127, 128, 300)
"""Around where a compact length takes a second byte."""


class RandomMessages:
    """Draws messages; what it has drawn can be drawn again from the seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def fixed(self, kind: Fixed) -> Any:
        if kind.format == "?":
            return self.random.random() < 0.5
        if kind.name == "uuid":
            return uuid.UUID(int=self.random.getrandbits(128))
        if kind.name == "float64":
            return self.random.uniform(-1e9, 1e9)
        high = 1 << (BITS[kind.format] - 1)
        number = self.random.choice((-high, -1, 0, 1, high - 1, self.random.randrange(-high, high)))
        return ErrorCode(number) if kind is ERROR else number

    def value(self, kind: Any, version: int) -> Any:
        if isinstance(kind, ArrayOf):
            return [self.value(kind.element, version) for _ in range(self.random.choice(LENGTHS))]
        if isinstance(kind, type):
            return self.struct(kind, version)
        if isinstance(kind, Fixed):
            return self.fixed(kind)
        size = self.random.choice(LENGTHS + LONG)
        if isinstance(kind, Blob):
            data = self.random.randbytes(size)
            return data if kind.copy else memoryview(data)
        return "".join(self.random.choices("aZ0.-_é漢😀", k=size))

    def field(self, field: Field, version: int) -> Any:
        if version >= field.nullable and self.random.random() < 0.25:
            return None
        return self.value(field.type, version)

    def struct(self, struct: type[Struct], version: int) -> Any:
        """An instance with any value in what ``version`` has; tags are left as by default half the time."""
        values = {
            field.name: self.field(field, version)
            for field in declared_fields(struct)
            if field.present(version) and (field.tag is None or self.random.random() < 0.5)
        }
        return struct(**values)


ERROR = next(mark for mark in Error.__metadata__ if isinstance(mark, Fixed))  # type: ignore[attr-defined]


def plain(value: Any, version: int) -> Any:
    """A message in the form of the interpreter: the fields that ``version`` has."""
    if isinstance(value, Struct):
        return {
            field.name: plain(getattr(value, field.name), version)
            for field in declared_fields(type(value))
            if field.present(version)
        }
    if isinstance(value, list | tuple):
        return [plain(one, version) for one in value]
    if isinstance(value, ErrorCode):
        return int(value)
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.fixture(scope="module")
def specs() -> MessageSpecs:
    return message_specs()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_what_one_writes_the_other_reads(message: type[Message], specs: MessageSpecs) -> None:
    spec = specs[message.__name__]
    for version in range(message.versions[0], message.versions[1] + 1):
        for seed in range(3):
            value = RandomMessages(seed).struct(message, version)
            written = b"".join(codec(message, version).write(value))

            told = spec.read(written, version)

            assert told == plain(value, version), (version, seed)
            assert spec.write(told, version) == written, (version, seed)
            assert codec(message, version).read(memoryview(spec.write(told, version))) == value


@pytest.mark.parametrize("message", WITH_DEFAULTS, ids=lambda message: message.__name__)
def test_defaults_are_written_alike(message: type[Message], specs: MessageSpecs) -> None:
    spec = specs[message.__name__]
    for version in range(message.versions[0], message.versions[1] + 1):
        assert spec.write({}, version) == b"".join(codec(message, version).write(message()))


def test_the_interpreter_refuses_what_the_spec_does_not_have(specs: MessageSpecs) -> None:
    spec = specs["MetadataRequest"]

    with pytest.raises(ValueError, match=r"MetadataRequest has no \['topic'\] there; it has topics"):
        spec.write({"topic": []}, 12)
    with pytest.raises(ValueError, match="name of MetadataRequest v9 can't be null"):
        spec.write({"topics": [{"name": None}]}, 9)
    with pytest.raises(ValueError, match="ends at byte"):
        spec.read(spec.write({}, 12) + b"\0", 12)
    with pytest.raises(ValueError, match="bytes are wanted at byte"):
        spec.read(spec.write({}, 12)[:-1], 12)


def test_the_interpreter_skips_tags_that_it_does_not_know(specs: MessageSpecs) -> None:
    written = specs["ApiVersionsRequest"].write({"client_software_name": "a"}, 3)

    told = specs["ApiVersionsRequest"].read(written[:-1] + b"\x01\x63\x02ab", 3)

    assert told["client_software_name"] == "a"
