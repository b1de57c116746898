"""Which dead letters an attempt of a task writes, on a broker with transactions."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.records.columns import RecordColumns, build_binary, build_headers
from spark_kafka_native.spark.payload_formats import LetterOptions, PayloadFormat
from spark_kafka_native.spark.read.offset_range import At, OffsetRange
from spark_kafka_native.spark.read.schema import DecodedPayload, RowSchema
from spark_kafka_native.spark.read.worker import dead_letters
from spark_kafka_native.spark.read.worker.bad_record_handler import UndecodedRecord
from spark_kafka_native.spark.read.worker.dead_letters import MAX_TAKEOVERS, DeadLetterError, DeadLetters
from spark_kafka_native.testing import MockBroker

SOURCE = TopicPartition("s", 0)


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker() as running:
        for name in ("s", "letters"):
            running.create_topic(name)
        yield running


def letters_of(broker: MockBroker, *, until: int = 100, topic_id: str = "1") -> DeadLetters:
    """Those of a task that reads up to ``until``."""
    client = ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers})
    planned = OffsetRange(topic="s", partition=0, start=At(0), end=At(until), topic_id=topic_id)
    return DeadLetters(
        router=router_for(client),
        client=client,
        topic="letters",
        name="pykafka-q-dlq",
        query_id="q",
        ranges={SOURCE: planned},
    )


def send(
    broker: MockBroker,
    *offsets: int,
    passing: Container[int] = (),
    until: int = 100,
    topic_id: str = "1",
    reason: str = "why",
) -> None:
    """One attempt, to which the records at ``offsets`` are bad."""
    bad = [
        UndecodedRecord(
            row=row, offset=offset, stages=("value",), reason=reason, is_passing=offset in passing
        )
        for row, offset in enumerate(offsets)
    ]
    places, values = np.array(offsets, np.int64), build_binary([b"%d" % offset for offset in offsets])
    headers = build_headers([[] for _ in offsets])
    records = RecordColumns(
        length=len(offsets), offset=places, timestamp_ms=places, key=values, value=values, headers=headers
    )
    letters_of(broker, until=until, topic_id=topic_id).send(SOURCE, bad, records)


def seen(broker: MockBroker) -> list[bytes | None]:
    return [record.value for record in broker.records("letters", committed=True)]


def test_another_attempt_at_the_same_range_writes_only_those_that_are_missing(broker: MockBroker) -> None:
    for offsets in ((3, 5), (3, 5, 8), (8,), (9,)):
        send(broker, *offsets)
    assert seen(broker) == [b"3", b"5", b"8", b"9"]


def test_a_marker_says_nothing_about_records_that_may_have_been_good(broker: MockBroker) -> None:
    """Of a schema that is unknown to this attempt, and was known to the one that wrote the marker."""
    send(broker, 10)
    send(broker, 5, 10, passing={5})
    assert seen(broker) == [b"10", b"5"]
    send(broker, 10)  # the marker has not gone back
    assert seen(broker) == [b"10", b"5"]


def test_a_letter_is_of_its_own_record_wherever_that_stands_among_the_good_ones(broker: MockBroker) -> None:
    records = RecordColumns(
        length=4,
        offset=np.array([10, 11, 15, 16]),
        timestamp_ms=np.array([100, 200, 300, 400]),
        key=build_binary([b"k0", b"k1", b"k2", b"k3"]),
        value=build_binary([b"v0", b"v1", b"v2", b"v3"]),
        headers=build_headers([[("h", b"%d" % row)] for row in range(4)]),
    )
    bad = [
        UndecodedRecord(row=1, offset=11, stages=("key", "value"), reason="x" * 2_000),
        UndecodedRecord(row=3, offset=16, stages=("value",), reason="why"),
    ]
    letters_of(broker).send(SOURCE, bad, records)
    first, second = broker.records("letters", committed=True)
    assert (first.key, first.value, second.key, second.value) == (b"k1", b"v1", b"k3", b"v3")
    found = dict(first.headers)
    assert len(found.pop("__reader.errors.message")) == 1_000
    assert found == {
        "h": b"1",
        "__reader.errors.topic": b"s",
        "__reader.errors.partition": b"0",
        "__reader.errors.offset": b"11",
        "__reader.errors.timestamp": b"200",
        "__reader.errors.stage": b"key,value",
        "__reader.errors.query.id": b"q",
    }
    assert dict(second.headers)["__reader.errors.timestamp"] == b"400"
    assert dict(second.headers)["h"] == b"3"


def test_a_letter_is_written_also_where_its_reason_has_half_of_a_character(broker: MockBroker) -> None:
    """Such as a name in JSON may have, which no header can hold."""
    send(broker, 3, reason="no field `\ud800`")
    (letter,) = broker.records("letters", committed=True)
    assert dict(letter.headers)["__reader.errors.message"] == b"no field `?`"


def test_letters_of_another_range_or_topic_are_others(broker: MockBroker) -> None:
    send(broker, 50)
    send(broker, 3, topic_id="2")  # the topic was created again
    send(broker, 2, until=20, topic_id="2")  # a checkpoint was rolled back
    assert seen(broker) == [b"50", b"3", b"2"]


def test_each_query_and_partition_has_a_name_of_its_own(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions of one name end each other, and markers of one name are those of one partition."""
    monkeypatch.setattr(dead_letters, "_query_id", lambda: "q7")
    broker.create_topic("two", partitions=2)
    before = letters_of(broker)
    places = [TopicPartition("two", 0), TopicPartition("two", 1)]
    ranges = [OffsetRange(topic=one.topic, partition=one.partition, start=At(0), end=At(9)) for one in places]
    schema = RowSchema(
        names=("key",),
        arrow=pa.schema([("key", pa.binary())]),
        letters=LetterOptions(topic="letters", prefix="mine"),
    )
    found = DeadLetters.of(before.router, before.client, schema, ranges)
    assert re.fullmatch("mine-q7-dlq-[0-9a-f]{12}", found.name)
    assert (found.topic, found.query_id) == ("letters", "q7")
    for one in places:
        record = UndecodedRecord(row=0, offset=4, stages=("key",), reason="why")
        records = RecordColumns(
            length=1,
            offset=np.array([4]),
            timestamp_ms=np.array([1]),
            key=build_binary([b"%d" % one.partition]),
            value=build_binary([b"v"]),
            headers=build_headers([[]]),
        )
        found.send(one, [record], records)
        assert broker.committed(f"{found.name}-{one}") == {one: 5}
    assert [letter.key for letter in broker.records("letters", committed=True)] == [b"0", b"1"]
    named = [one.fields["transactional_id"] for one in broker.requests if one.api == "InitProducerId"]
    assert named == [f"{found.name}-two-0", f"{found.name}-two-1"]


def test_letters_that_the_first_look_missed_are_not_written_again(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, 3)
    with monkeypatch.context() as patch:
        patch.setattr(dead_letters, "find_offsets", lambda *_: {})  # the answer of a broker that was deposed
        with pytest.raises(DeadLetterError, match="letters were committed while others were written"):
            send(broker, 3, 5)
    assert seen(broker) == [b"3"]
    send(broker, 3, 5)
    assert seen(broker) == [b"3", b"5"]


def test_the_marker_is_looked_for_once_no_earlier_attempt_can_be_committed_any_more(
    broker: MockBroker,
) -> None:
    send(broker, 3)
    asked = [one.api for one in broker.requests if one.api in ("InitProducerId", "OffsetFetch")]
    assert asked[:2] == ["InitProducerId", "OffsetFetch"]


@pytest.mark.parametrize("takeovers", [MAX_TAKEOVERS - 1, MAX_TAKEOVERS])
def test_a_task_that_is_taken_over_again_and_again_fails_and_loses_no_letter_in_silence(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, takeovers: int
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(dead_letters, "sleep", pauses.append)
    broker.on("EndTxn", when=lambda one: one.fields["committed"], times=takeovers).fail("PRODUCER_FENCED")
    if takeovers < MAX_TAKEOVERS:
        send(broker, 3, 90)
    else:
        with pytest.raises(
            DeadLetterError, match=r"2 bad records of s-0 \(offsets 3 to 90\) could not be written"
        ):
            send(broker, 3, 90)
        assert seen(broker) == []
        send(broker, 3, 90)
    assert seen(broker) == [b"3", b"90"]
    most = [min(0.1 * 2**attempt, 5.0) for attempt in range(1, MAX_TAKEOVERS)]
    assert all(0 <= pause <= limit for pause, limit in zip(pauses, most, strict=True))


def test_two_tasks_that_read_the_same_records_at_the_same_time_both_end(broker: MockBroker) -> None:
    """Each took the transactional id from the other until both gave up."""
    with ThreadPoolExecutor(2) as pool:
        tasks = [
            pool.submit(lambda: [send(broker, 2 * piece, 2 * piece + 1) for piece in range(20)]) for _ in "ab"
        ]
        assert [task.exception(120) for task in tasks] == [None, None]
    assert sorted(seen(broker), key=lambda one: int(one or 0)) == [b"%d" % offset for offset in range(40)]


@pytest.mark.parametrize(
    ("setting", "is_rule"),
    [
        ("schema", True),
        ("sep", True),
        ("schemaId", True),
        ("registry.url", True),
        ("registry.user", False),
        ("registry.password", False),
        ("registry.token", False),
        ("registry.ssl.key", False),
        ("registry.ssl.keyPassword", False),
    ],
)
def test_a_password_that_is_changed_makes_no_other_dead_letters(setting: str, is_rule: bool) -> None:
    """Under another name all of a batch that runs again would be written once more."""

    def name_of(text: str) -> str:
        given = PayloadFormat(payload="value", name="avro", schema=None, settings=((setting, text),))
        decoded = DecodedPayload(format=given, columns=("value",), kind=pa.string())
        return dead_letters._digest(RowSchema(names=("",), arrow=pa.schema([]), decoded=(decoded,)))

    assert (name_of("one") != name_of("another")) is is_rule
