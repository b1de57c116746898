"""Java reads what we write, at every version of every message, and writes the very same bytes again.

The spec test compares declarations; this one compares bytes. The oracle is the code that Kafka generates.
"""

from __future__ import annotations

import random
import typing
import uuid
from typing import Any

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.protocol.api import all_requests
from spark_kafka_native.kafka.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from spark_kafka_native.kafka.protocol.message import (
    ArrayOf,
    Field,
    Message,
    Request,
    Response,
    Struct,
    declared_fields,
)
from spark_kafka_native.kafka.protocol.message_codec import codec
from spark_kafka_native.kafka.protocol.wire import Blob, Error, Fixed, Int32, String
from spark_kafka_native.testing.java import run_java

JAVA = """
import java.io.*;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.*;

public class Echo {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            byte[] bytes = HexFormat.of().parseHex(words[2]);
            out.append(echo(words[0], Short.parseShort(words[1]), bytes)).append("\\n");
        }
        System.out.print(out);
    }

    static String echo(String name, short version, byte[] bytes) {
        try {
            Message message = (Message) Class.forName("org.apache.kafka.common.message."
                    + (name.endsWith("Request") || name.endsWith("Response") ? name + "Data" : name))
                .getDeclaredConstructor().newInstance();
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            message.read(new ByteBufferAccessor(buffer), version);
            if (buffer.hasRemaining()) {
                return buffer.remaining() + " bytes were not read";
            }
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(written), cache, version);
            return HexFormat.of().formatHex(written.array());
        } catch (Exception error) {
            return error.toString();
        }
    }
}
"""


class Cursor(Struct):
    topic_name: String
    partition_index: Int32


class TopicRequest(Struct):
    name: String


class DescribeTopicPartitionsResponse(Response):
    pass


class DescribeTopicPartitionsRequest(
    Request[DescribeTopicPartitionsResponse], api_key=75, versions=(0, 0), flexible=0
):
    """Not spoken by this client, but the plainest message with a nullable struct (KIP-893)."""

    topics: list[TopicRequest]
    response_partition_limit: Int32
    cursor: Cursor | None


MESSAGES: list[type[Message]] = [
    DescribeTopicPartitionsRequest,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
] + [message for request in all_requests().values() for message in (request, request.response)]
EXAMPLES_PER_VERSION = 8


def any_fixed(chance: random.Random, fixed: Fixed) -> Any:
    if fixed in typing.get_args(Error):
        return chance.choice(list(ErrorCode))
    if fixed.format == "?":
        return chance.random() < 0.5
    if fixed.name == "uuid":
        return uuid.UUID(int=chance.getrandbits(128))
    if fixed.name == "float64":
        return chance.choice((0.0, -1.5, 1e6, 1.7976931348623157e308, 5e-324, chance.random()))
    bits = {"b": 7, "h": 15, "i": 31, "q": 63}[fixed.format]
    return chance.choice((0, -1, 1, (1 << bits) - 1, -(1 << bits), chance.getrandbits(bits)))


def any_value(chance: random.Random, field_type: Any, version: int) -> Any:
    if isinstance(field_type, ArrayOf):
        length = chance.choice((0, 1, 2, 3, 20))
        return [
            any_value(chance, field_type.element, version)
            for _ in range(length if chance.random() < 0.7 else 1)
        ]
    if isinstance(field_type, type):
        return any_instance(chance, field_type, version)
    if isinstance(field_type, Fixed):
        return any_fixed(chance, field_type)
    length = chance.choice((0, 1, 5, 126, 127, 128, 300))
    if isinstance(field_type, Blob):
        value = chance.randbytes(length)
        return value if field_type.copy else memoryview(value)
    return "".join(chance.choice("aé€😀") for _ in range(length))


def any_field(chance: random.Random, field: Field, version: int) -> Any:
    if version >= field.nullable and chance.random() < 0.3:
        return None
    if field.tag is not None and chance.random() < 0.4:
        return field.default
    return any_value(chance, field.type, version)


def any_instance(chance: random.Random, struct: type[Struct], version: int) -> Any:
    present = [field for field in declared_fields(struct) if field.present(version)]
    return struct(**{field.name: any_field(chance, field, version) for field in present})


@pytest.fixture(scope="module")
def written() -> list[tuple[type[Message], int, bytes]]:
    chance = random.Random(20)
    return [
        (message, version, b"".join(codec(message, version).write(any_instance(chance, message, version))))
        for message in MESSAGES
        for version in range(message.versions[0], message.versions[1] + 1)
        for _ in range(EXAMPLES_PER_VERSION)
    ]


def test_java_reads_them_and_writes_the_same_bytes(written: list[tuple[type[Message], int, bytes]]) -> None:
    lines = [f"{message.__name__} {version} {data.hex()}" for message, version, data in written]

    echoed = run_java(JAVA, input_text="\n".join(lines)).splitlines()

    assert len(echoed) == len(written)
    wrong = [
        f"{message.__name__} v{version}: {data.hex()} -> {echo}"
        for (message, version, data), echo in zip(written, echoed, strict=True)
        if echo != data.hex()
    ]
    assert not wrong, "\n".join(line[:600] for line in wrong[:20])


def test_we_read_them_too_and_write_the_same_bytes(written: list[tuple[type[Message], int, bytes]]) -> None:
    for message, version, data in written:
        one = codec(message, version)
        assert b"".join(one.write(one.read(memoryview(data)))) == data
