"""The same records by three clients: ours, librdkafka and Java's, as writers and as readers.

Java's client runs in one process for all that a test asks of it, because starting it takes a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import confluent_kafka

from spark_kafka_native.kafka import Producer
from spark_kafka_native.kafka.model import IsolationLevel
from spark_kafka_native.testing.java import run_java

from .consumer.reading import Reading

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Headers = tuple[tuple[str, bytes | None], ...]


class Written(NamedTuple):
    """A record as it was written; ``flushed``: a batch ends behind it."""

    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    flushed: bool = False


class Seen(NamedTuple):
    """A record as a reader sees it."""

    partition: int
    offset: int
    timestamp_type: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


JAVA = """
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

public class Oracle {
    static final HexFormat HEX = HexFormat.of();
    static byte[] bytes(String text) { return text.equals("-") ? null : HEX.parseHex(text); }
    static String hex(byte[] data) { return data == null ? "-" : HEX.formatHex(data); }

    public static void main(String[] args) throws Exception {
        var in = new Scanner(System.in);
        var out = new StringBuilder();
        KafkaProducer<byte[], byte[]> producer = null;
        while (in.hasNextLine()) {
            String[] words = in.nextLine().split(" ", -1);
            switch (words[0]) {
                case "write" -> {
                    if (producer != null) producer.close();
                    Map<String, Object> config = Map.of("bootstrap.servers", args[0], "linger.ms", 1000,
                        "compression.type", words[1]);
                    var plain = new ByteArraySerializer();
                    producer = new KafkaProducer<>(config, plain, plain);
                }
                case "record" -> {
                    var record = new ProducerRecord<byte[], byte[]>(words[1], Integer.parseInt(words[2]),
                        Long.parseLong(words[3]), bytes(words[4]), bytes(words[5]));
                    for (int i = 7; i < words.length; i += 2)
                        record.headers().add(new RecordHeader(
                            new String(bytes(words[i]), StandardCharsets.UTF_8), bytes(words[i + 1])));
                    producer.send(record);
                    if (words[6].equals("flush")) producer.flush();
                }
                case "read" -> read(args[0], words[1], words[2], out);
            }
        }
        if (producer != null) producer.close();
        System.out.print(out);
    }

    static void read(String servers, String topic, String level, StringBuilder out) {
        Map<String, Object> config = Map.of("bootstrap.servers", servers, "isolation.level", level,
            "auto.offset.reset", "none", "fetch.max.wait.ms", 50);
        var plain = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<>(config, plain, plain)) {
            var all = new ArrayList<TopicPartition>();
            consumer.partitionsFor(topic).forEach(p -> all.add(new TopicPartition(topic, p.partition())));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            var ends = consumer.endOffsets(all);
            while (all.stream().anyMatch(tp -> consumer.position(tp) < ends.get(tp)))
                for (var r : consumer.poll(Duration.ofMillis(200))) {
                    out.append(String.join(" ", topic, level, "" + r.partition(), "" + r.offset(),
                        "" + r.timestampType().id, "" + r.timestamp(), hex(r.key()), hex(r.value())));
                    for (var h : r.headers())
                        out.append(' ').append(hex(h.key().getBytes(StandardCharsets.UTF_8)))
                            .append(' ').append(hex(h.value()));
                    out.append('\\n');
                }
        }
    }
}
"""


def hexed(data: bytes | None) -> str:
    return "-" if data is None else data.hex()


def unhexed(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text)


class Java:
    """What Java's client is to do, in order; `run` does it."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._lines: list[str] = []

    def write(self, topic: str, codec: str, records: Iterable[Written]) -> None:
        self._lines.append(f"write {codec}")
        for one in records:
            headers = [word for name, data in one.headers for word in (name.encode().hex(), hexed(data))]
            end = "flush" if one.flushed else "go"
            words = [topic, str(one.partition), str(one.timestamp_ms), hexed(one.key), hexed(one.value), end]
            self._lines.append(" ".join(["record", *words, *headers]))
        self._lines.append("write none")  # which closes the one before

    def read(self, topic: str, level: str) -> None:
        self._lines.append(f"read {topic} {level}")

    def run(self, timeout_s: float = 240) -> dict[tuple[str, str], list[Seen]]:
        """What each read found, by topic and isolation level."""
        text = "".join(f"{line}\n" for line in self._lines)
        printed = run_java(JAVA, self._servers, input_text=text, timeout_s=timeout_s)
        found: dict[tuple[str, str], list[Seen]] = {}
        for line in printed.splitlines():
            topic, level, *rest = line.split(" ")
            key, value, *headers = map(unhexed, rest[4:])
            pairs = zip(headers[::2], headers[1::2], strict=True)
            named = tuple(((name or b"").decode(), data) for name, data in pairs)
            seen = Seen(*map(int, rest[:4]), key, value, named)
            found.setdefault((topic, level), []).append(seen)
        return {place: sorted(several, key=lambda one: one[:2]) for place, several in found.items()}


def ours_writes(bootstrap_servers: str, topic: str, codec: str, records: Sequence[Written]) -> None:
    with Producer(bootstrap_servers, linger_ms=1000, compression_type=codec) as producer:
        for one in records:
            producer.send(
                topic,
                one.value,
                key=one.key,
                partition=one.partition,
                timestamp_ms=one.timestamp_ms,
                headers=list(one.headers),
            )
            if one.flushed:
                producer.flush(60)


def librdkafka(bootstrap_servers: str, **settings: object) -> confluent_kafka.Producer:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    common = {
        "bootstrap.servers": bootstrap_servers,
        "enable.idempotence": True,
        "linger.ms": 1000,
        "log_level": 0,
    }
    return confluent_kafka.Producer(common | given)


def librdkafka_sends(producer: confluent_kafka.Producer, topic: str, records: Sequence[Written]) -> None:
    for one in records:
        producer.produce(
            topic,
            one.value,
            one.key,
            partition=one.partition,
            timestamp=one.timestamp_ms,
            headers=list(one.headers) or None,
        )
        if one.flushed:
            assert producer.flush(60) == 0
    assert producer.flush(60) == 0


def ours_reads(bootstrap_servers: str, topic: str, level: str) -> list[Seen]:
    reading = Reading(bootstrap_servers)
    try:
        found = reading.read(topic, isolation_level=IsolationLevel[level.upper()])
    finally:
        reading.router.close()
    return [
        Seen(
            partition,
            one.offset,
            one.timestamp_type,
            one.timestamp_ms,
            one.key,
            one.value,
            tuple(one.headers or ()),
        )
        for partition, records in sorted(found.items())
        for one in records
    ]


def librdkafka_reads(bootstrap_servers: str, topic: str, level: str) -> list[Seen]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"other-{topic}",
            "isolation.level": level,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    reading = Reading(bootstrap_servers)
    try:
        bounds = reading.bounds(topic, isolation_level=IsolationLevel[level.upper()])
    finally:
        reading.router.close()
    start = confluent_kafka.OFFSET_BEGINNING
    # It never says that a partition ends the records of which are deleted beyond its last stable offset.
    partitions = [
        confluent_kafka.TopicPartition(*tp, start) for tp, (first, end) in bounds.items() if first < end
    ]
    consumer.assign(partitions)
    found, ends, until = list[Seen](), set[int](), time.monotonic() + 60
    while len(ends) < len(partitions):
        assert time.monotonic() < until, f"{topic}: {ends} of {len(partitions)} ends"
        for message in consumer.consume(10_000, 0.5):
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                ends.add(message.partition())
                continue
            kind, timestamp_ms = message.timestamp()
            place = message.partition(), message.offset(), kind - 1, timestamp_ms
            found.append(Seen(*place, message.key(), message.value(), tuple(message.headers() or ())))
    consumer.close()
    return sorted(found, key=lambda one: one[:2])


def check_readers_agree(
    bootstrap_servers: str, topic: str, level: str, java: Mapping[tuple[str, str], list[Seen]]
) -> list[Seen]:
    """All three see the same records; those."""
    ours = ours_reads(bootstrap_servers, topic, level)
    theirs = librdkafka_reads(bootstrap_servers, topic, level)
    assert ours == theirs, f"{topic}, {level}: librdkafka"
    assert ours == java.get((topic, level), []), f"{topic}, {level}: Java"
    return ours
