"""``tail`` is fast: it sends no request twice and imports no module that it does not need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from support.brokers.scripted_broker import Log, ScriptedCluster, properties

from spark_kafka_native.cli import tail
from spark_kafka_native.cli.main import command_line_parser, main
from spark_kafka_native.cli.offsets import parse_offset_spec
from spark_kafka_native.cli.record_lines import ShownRecord
from spark_kafka_native.kafka import Record, Router, TopicPartition
from spark_kafka_native.kafka.cluster import offsets
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    BrokerError,
    DeadlineExceededError,
    KafkaError,
    NetworkError,
)
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import IsolationLevel, OffsetAt
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.encode import encode_record_batch
from spark_kafka_native.kafka.runtime import deadline
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import MockBroker

UNNEEDED = (
    "spark_kafka_native.kafka.config.producer_config",
    "spark_kafka_native.kafka.protocol.api.offset_for_leader_epoch",
    "hmac",
    "json",
    "pathlib",
    "pyspark",
)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(1) as running:
        (tp,) = running.create("t")
        for batch in range(4):
            running.logs[tp].append([b"%d" % (batch * 5 + i) for i in range(5)])
        yield running


def test_the_last_records_take_one_question_about_each_end_of_the_log(cluster: ScriptedCluster) -> None:
    script = (
        "import sys; from spark_kafka_native.cli.main import main; "
        f"code = main(['tail', 't', '-n', '3', '-b', {cluster.bootstrap_servers!r}]); "
        f"print(*[name for name in {UNNEEDED!r} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["17", "18", "19"]
    assert ran.stderr.split() == []
    asked = [one.topics[0].partitions[0].timestamp for one in cluster[1].requests(ListOffsetsRequest)]
    assert sorted(asked) == [-2, -1]
    assert len(cluster[1].requests(MetadataRequest)) == 1


@pytest.mark.parametrize(("level", "number"), [("read_uncommitted", 0), ("read_committed", 1)])
@pytest.mark.parametrize("command", [["offsets"], ["tail", "-o", "raw"]], ids=["offsets", "tail"])
def test_ends_are_those_of_the_isolation_level(
    cluster: ScriptedCluster, command: list[str], level: str, number: int
) -> None:
    """Records of an open transaction are behind the end of a reader of committed ones."""
    assert main([*command, "t", "-X", f"isolation.level={level}", "-b", cluster.bootstrap_servers]) == 0
    assert {one.isolation_level for one in cluster[1].requests(ListOffsetsRequest)} == {number}


@pytest.fixture
def two_partitions(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedCluster]:
    """The second has no leader."""
    monkeypatch.setattr(offsets, "MISSING_MS", 100)
    with ScriptedCluster(1) as running:
        first, second = running.create("two", partitions=2)
        for tp in (first, second):
            running.logs[tp].append([b"%d" % tp.partition])
        running.logs[second].leader = -1
        yield running


def test_what_has_a_leader_is_shown_and_the_rest_named(
    two_partitions: ScriptedCluster, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["tail", "two", "-b", two_partitions.bootstrap_servers]) == 1
    shown = capfdbinary.readouterr()
    assert shown.out == b"0\n"
    assert b"two-1: LEADER_NOT_AVAILABLE" in shown.err
    assert main(["offsets", "two", "--json", "-b", two_partitions.bootstrap_servers]) == 1
    shown = capfdbinary.readouterr()
    [rows] = [json.loads(line) for line in shown.out.splitlines()]
    assert rows == [{"topic": "two", "partition": 0, "first": 0, "end": 1, "offsets": 1}]
    assert b"two-1: LEADER_NOT_AVAILABLE" in shown.err
    for place in ("latest", "1"):
        command = ["offsets", "two", "--at", place, "--json", "-b", two_partitions.bootstrap_servers]
        assert main(command) == 1
        rows = json.loads(capfdbinary.readouterr().out)
        assert rows == [{"topic": "two", "partition": 0, "offset": 1}]


@pytest.mark.parametrize(
    ("command", "shown"), [(["offsets"], b"two\t0\t0\t1\t1\n"), (["tail"], b"0\n")], ids=["offsets", "tail"]
)
def test_the_first_partition_can_be_chosen(
    two_partitions: ScriptedCluster,
    capfdbinary: pytest.CaptureFixture[bytes],
    command: list[str],
    shown: bytes,
) -> None:
    """The other one, which has no leader, is not asked for."""
    assert main([*command, "two", "-p", "0", "-b", two_partitions.bootstrap_servers]) == 0
    found = capfdbinary.readouterr()
    assert (found.out, b"two-1" in found.err) == (shown, False)


def test_no_records_are_deleted_where_a_partition_does_not_answer(
    two_partitions: ScriptedCluster, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    command = ["delete-records", "two", "--before", "latest", "--execute"]
    assert main([*command, "-b", two_partitions.bootstrap_servers]) == 1
    shown = capfdbinary.readouterr()
    assert (shown.out, b"two-1: LEADER_NOT_AVAILABLE" in shown.err) == (b"", True)


def test_following_begins_with_the_rest_once_it_has_a_leader(
    two_partitions: ScriptedCluster,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setattr(tail, "_REFRESH_MS", 50)
    [late] = [tp for tp, log in two_partitions.logs.items() if log.leader < 0]
    # It is looked at several times between the two: each partition is added once.
    timers = [
        threading.Timer(1.0, setattr, (two_partitions.logs[late], "leader", 1)),
        threading.Timer(2.0, two_partitions.logs[late].append, ([b"2"],)),
    ]
    for timer in timers:
        timer.start()
    try:
        assert main(["tail", "two", "-f", "-c", "3", "-b", two_partitions.bootstrap_servers]) == 1
    finally:
        for timer in timers:
            timer.cancel()
    assert capfdbinary.readouterr().out == b"0\n1\n2\n"


def test_partitions_that_are_added_are_read_once_and_from_their_beginning(
    cluster: ScriptedCluster,
) -> None:
    first, new = TopicPartition("t", 0), TopicPartition("t", 1)
    added: list[tuple[TopicPartition, int]] = []
    run: Any = SimpleNamespace(add=lambda tp, offset: added.append((tp, offset)))
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
    try:
        level = IsolationLevel.READ_UNCOMMITTED
        following = tail.Following(router, run, [first], level, late={}, growing=True)
        look(following)
        assert added == []
        cluster.logs[new] = Log()
        cluster.logs[new].append([b"20", b"21"])
        for _ in range(3):
            look(following)
        assert added == [(new, 0)]
    finally:
        router.close()


def look(following: tail.Following) -> None:
    """As it looks in the background."""
    found: list[tuple[TopicPartition, int]] | KafkaError
    try:
        found = following._find()
    except KafkaError as error:
        found = error
    following._add(found)


@pytest.mark.parametrize(("max_age_ms", "looks"), [(300_000, 2), (3_000, 8), (0, 24)])
def test_new_partitions_are_looked_for_now_and_then(
    monkeypatch: pytest.MonkeyPatch, max_age_ms: int, looks: int
) -> None:
    """Not after each wait for records, and at least as often as the metadata are due."""
    now_ms = [0]

    class Clock:
        def __init__(self, after_ms: int) -> None:
            self._ends_ms = now_ms[0] + after_ms

        @property
        def expired(self) -> bool:
            return now_ms[0] >= self._ends_ms

        def within_ms(self, _ms: int) -> Any:
            return self

    def wait(due: Any) -> object:
        assert not due.expired, "it would not wait at all"
        now_ms[0] += 1_000
        return None if now_ms[0] < 25_000 else "records"

    monkeypatch.setattr(deadline, "Deadline", SimpleNamespace(after_ms=Clock))
    monkeypatch.setattr(tail, "check_reader", lambda: None)
    router: Any = SimpleNamespace(config=SimpleNamespace(metadata_max_age_ms=max_age_ms))
    run: Any = SimpleNamespace(next=wait)
    level = IsolationLevel.READ_UNCOMMITTED
    following = tail.Following(router, run, [], level, late={}, growing=True)
    found: list[int] = []
    monkeypatch.setattr(following, "_look", lambda: found.append(now_ms[0]))
    assert cast(object, next(following.fetched())) == "records"
    assert len(found) == looks


@pytest.mark.parametrize(("level", "start"), [("READ_UNCOMMITTED", 18), ("READ_COMMITTED", 5)])
def test_partitions_that_are_late_begin_at_the_end_of_the_isolation_level(
    cluster: ScriptedCluster, level: str, start: int
) -> None:
    late = TopicPartition("t", 0)
    cluster.logs[late].last_stable_offset = 7
    added: list[tuple[TopicPartition, int]] = []
    run: Any = SimpleNamespace(add=lambda tp, offset: added.append((tp, offset)))
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
    try:
        places = {late: parse_offset_spec("-2")}
        isolation = IsolationLevel[level]
        following = tail.Following(router, run, [late], isolation, late=places, growing=False)
        for _ in range(2):
            look(following)
        assert added == [(late, start)]
    finally:
        router.close()


def test_late_partitions_do_not_hold_up_the_others(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = TopicPartition("t", 0)
    asked, answered = threading.Event(), threading.Event()
    real = offsets.list_offsets_of_each

    def ask(*given: Any, **how: Any) -> Any:
        asked.set()
        answered.wait(60)
        return real(*given, **how)

    monkeypatch.setattr(offsets, "list_offsets_of_each", ask)
    monkeypatch.setattr(tail, "_REFRESH_MS", 1)
    monkeypatch.setattr(tail, "_LATE_MS", 60_000)
    added: list[tuple[TopicPartition, int]] = []
    run: Any = SimpleNamespace(
        add=lambda tp, offset: added.append((tp, offset)), next=lambda _: asked.wait(0.01) or "records"
    )
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
    try:
        places, isolation = {late: parse_offset_spec("-2")}, IsolationLevel.READ_UNCOMMITTED
        following = tail.Following(router, run, [late], isolation, late=places, growing=False)
        records = following.fetched()
        while not asked.is_set():
            next(records)
        for _ in range(5):
            next(records)
        assert added == []
        answered.set()
        while not added:
            next(records)
        assert (added, following._late) == ([(late, 18)], {})
        records.close()  # type: ignore[attr-defined]
    finally:
        answered.set()
        router.close()


@pytest.mark.parametrize("at_first", [True, False], ids=["late", "added"])
def test_a_partition_that_answers_is_read_although_another_stays_silent(
    monkeypatch: pytest.MonkeyPatch, at_first: bool
) -> None:
    """Each question about offsets has its own limit, and partitions that answer don't wait for the rest."""
    monkeypatch.setattr(tail, "_LATE_MS", 10_000)
    real, mute = offsets.list_offsets_of_each, [TopicPartition("t", 2)]

    def ask(router: Any, asked: Any, *, deadline: Deadline, **how: Any) -> Any:
        answering = {tp: at for tp, at in asked.items() if tp not in mute}
        if not answering:
            raise DeadlineExceededError("no answer")
        found, failed = real(router, answering, deadline=deadline, **how)
        if len(answering) < len(asked):
            deadline._at = 0.0  # the others were waited for
            failed |= {tp: NetworkError("no answer") for tp in asked.keys() - answering.keys()}
        return found, failed

    monkeypatch.setattr(offsets, "list_offsets_of_each", ask)
    added: list[tuple[TopicPartition, int]] = []
    run: Any = SimpleNamespace(add=lambda tp, offset: added.append((tp, offset)))
    with ScriptedCluster(1) as running:
        first, well, silent = running.create("t", partitions=3)
        running.logs[well].append([b"one", b"two"])
        router = Router(ClientConfig.from_properties(properties(running.bootstrap_servers)))
        try:
            places = dict.fromkeys((well, silent), parse_offset_spec("-1")) if at_first else {}
            level = IsolationLevel.READ_UNCOMMITTED
            following = tail.Following(router, run, [first, *places], level, late=places, growing=True)
            start = 1 if at_first else 0
            for _ in range(2):
                look(following)
                assert (added, list(following._late)) == ([(well, start)], [silent])
            mute.clear()
            look(following)
            assert (added, following._late) == ([(well, start), (silent, 0)], {})
        finally:
            router.close()


def test_names_and_patterns_of_topics_stand_side_by_side(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("line", "lines", "other", "_lines"):
        cluster.create(name)
    names = ["t", "li*", "^oth", "line"]
    assert main(["offsets", *names, "--json", "-b", cluster.bootstrap_servers]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["topic"] for row in rows] == ["t", "line", "lines", "other"]


@pytest.mark.parametrize("value", [[], ["--value-format", "string"]], ids=["key", "key and value"])
def test_a_group_reads_keys_in_their_format(
    value: list[str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with MockBroker() as broker:
        broker.create_topic("t")
        broker.append("t", [Record("", -1, -1, key, b"v") for key in (b'{"id":1}', b'{"id":"?"}')])
        options = ["--key-format", "json", "--key-schema", "id bigint", *value, "--mode", "permissive"]
        group = ["-g", "g", "-c", "2", "-X", "auto.offset.reset=earliest", "-b", broker.bootstrap_servers]
        assert main(["tail", "t", "--json", *options, *group]) == 0
        assert broker.committed("g") == {TopicPartition("t", 0): 2}
    first, second = (json.loads(line) for line in capfdbinary.readouterr().out.splitlines())
    assert (first["key"], first["value"]) == ({"id": 1}, "v")
    assert (second["_corrupt_record"], second["value"]) == ('{"id":"?"}', "v")


@pytest.mark.parametrize(
    ("name", "schema", "shown"),
    [("csv", ["--value-schema", "id bigint, name string"], {"id": 1, "name": "x"}), ("raw", [], "1,x")],
)
def test_values_may_have_a_format_that_the_help_does_not_name(
    name: str, schema: list[str], shown: object, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with MockBroker() as broker:
        broker.create_topic("t")
        broker.append("t", ["1,x"])
        options = ["--value-format", name, *schema]
        assert main(["tail", "t", "--json", *options, "-b", broker.bootstrap_servers]) == 0
    assert json.loads(capfdbinary.readouterr().out)["value"] == shown


def test_records_that_are_left_out_are_counted_over_all_partitions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with MockBroker() as broker:
        broker.create_topic("t", partitions=3)
        for partition in range(3):
            broker.append("t", ['{"id":1}', *["?"] * (partition + 1)], partition=partition)
        options = ["--value-format", "json", "--value-schema", "id bigint", "--mode", "dropmalformed"]
        assert main(["tail", "t", *options, "-b", broker.bootstrap_servers]) == 0
    assert capsys.readouterr().err == "6 records could not be decoded: left out.\n"


@pytest.mark.parametrize("gone", [False, True])
def test_records_that_are_left_out_after_the_reader_has_gone_are_not_committed(
    monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """The member would stay as long as such records come."""
    reading, writing = os.pipe()
    committed: list[Any] = []
    consumer: Any = SimpleNamespace(
        read=lambda _: SimpleNamespace(topic_partition="t-0"),
        commit=lambda offsets: committed.append(offsets),
    )
    typed: Any = SimpleNamespace(parts=lambda _: iter([(iter(()), 5)]), left_out=0)
    with open(reading, "rb") as reader, open(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        if gone:
            reader.close()
        printer = tail._Printer(lambda _: b"", None, typed)
        with pytest.raises(BrokenPipeError) if gone else nullcontext():
            printer.print_next(consumer)
    assert committed == ([] if gone else [{"t-0": 5}])


@pytest.mark.parametrize("typed", [[], ["--value-format", "string"]], ids=["plain", "typed"])
def test_a_group_goes_on_with_the_record_after_the_last_printed_one(
    typed: list[str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with MockBroker() as broker:
        broker.create_topic("t")
        broker.append("t", ["a", "b", "c", "d", "e"])
        group = ["-g", "g", "-X", "auto.offset.reset=earliest", "-b", broker.bootstrap_servers]
        for count, printed, committed in (("2", b"a\nb\n", 2), ("1", b"c\n", 3), ("2", b"d\ne\n", 5)):
            assert main(["tail", "t", "-o", "raw", "-c", count, *typed, *group]) == 0
            assert capfdbinary.readouterr().out == printed
            assert broker.committed("g") == {TopicPartition("t", 0): committed}


def test_a_name_of_a_header_that_json_cannot_hold_is_an_error(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """`produce` would write another name out of it."""
    with MockBroker() as broker:
        broker.create_topic("t")
        broker.append("t", [Record("", -1, -1, None, b"v", (("name", b"x"),))])
        with broker.cluster.changed:
            batches = broker.cluster.topics["t"].partitions[0].batches
            batches[0] = batches[0].replace(b"name", b"nam\xff")
        command = ["tail", "t", "-X", "check.crcs=false", "-b", broker.bootstrap_servers]
        assert main([*command, "-o", "text"]) == 0
        assert "nam\ufffd=x".encode() in capfdbinary.readouterr().out
        for group in ([], ["-g", "g", "-c", "1"], ["-g", "g", "-c", "1", "--value-format", "string"]):
            start = ["-X", "auto.offset.reset=earliest"] if group else []
            assert main([*command, "--json", *group, *start]) == 1
            shown = capfdbinary.readouterr()
            assert (shown.out, b"offset 0" in shown.err) == (b"", True)
        assert broker.committed("g") == {}


@pytest.mark.parametrize(
    "how", [["-f", "-n", "1"], ["-g", "g"], ["-g", "g", "--value-format", "string"]], ids=["f", "g", "typed"]
)
def test_it_ends_when_nobody_reads_it_any_more(how: list[str]) -> None:
    """Though no further record comes, as in ``tail -f | grep -m1``."""
    with MockBroker() as broker:
        broker.create_topic("t")
        broker.append("t", ["one"])
        command = [
            sys.executable,
            "-m",
            "spark_kafka_native",
            "tail",
            "t",
            *how,
            "-b",
            broker.bootstrap_servers,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdout is not None
            try:
                assert running.stdout.readline() == b"one\n"
                running.stdout.close()
                assert running.wait(60) == 0
                assert running.stderr is not None
                assert running.stderr.read() == b""
            finally:
                running.kill()


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ("0", []),
        ("1", ["b2", "d2"]),
        ("2", ["b1", "b2", "d1", "d2"]),
        ("9" * 20, ["b0", "b1", "b2", "d0", "d1", "d2"]),
    ],
)
def test_the_last_records_of_each_partition_are_as_many_as_were_asked_for(
    capfd: pytest.CaptureFixture[str], lines: str, shown: list[str]
) -> None:
    with MockBroker() as broker:
        broker.create_topic("two", partitions=2)
        for partition, letter in enumerate("bd"):
            broker.append("two", [f"{letter}{number}" for number in range(3)], partition=partition)
        assert main(["tail", "two", "-n", lines, "-b", broker.bootstrap_servers]) == 0
    assert sorted(capfd.readouterr().out.split()) == shown


@pytest.mark.parametrize("number", [0, 1])
def test_any_partition_can_be_shown_alone(capfd: pytest.CaptureFixture[str], number: int) -> None:
    with MockBroker() as broker:
        broker.create_topic("two", partitions=2)
        for partition in range(2):
            broker.append("two", [b"of %d" % partition], partition=partition)
        assert main(["tail", "two", "-p", str(number), "-b", broker.bootstrap_servers]) == 0
    assert capfd.readouterr().out == f"of {number}\n"


def test_a_pipe_has_the_bytes_of_the_values(
    cluster: ScriptedCluster, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    value = "ä\x1b\u202e".encode() + b"\x00\xff"
    cluster.logs[TopicPartition("t", 0)].append([value])
    assert main(["tail", "t", "-n", "1", "-b", cluster.bootstrap_servers]) == 0
    assert capfdbinary.readouterr().out == value + b"\n"


def test_a_group_does_not_wait_for_a_topic_that_does_not_exist(
    cluster: ScriptedCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupConsumer, "__init__", lambda *_: pytest.fail("a member waits for the topic"))
    assert main(["tail", "t", "tt", "-g", "g", "-b", cluster.bootstrap_servers]) == 1
    assert "topic tt: UNKNOWN_TOPIC_OR_PARTITION" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "growing", "late"),
    [
        ([], True, "-10"),
        (["-n", "3"], True, "-3"),
        (["--from", "earliest"], True, "earliest"),
        (["-n", "0"], True, "latest"),
        (["-p", "0"], False, None),
        (["-p", "0", "-p", "1"], False, "-10"),
    ],
)
def test_late_partitions_begin_where_the_others_do_and_named_ones_are_all(
    two_partitions: ScriptedCluster,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    growing: bool,
    late: str | None,
) -> None:
    made: list[dict[str, Any]] = []

    def following(*_: Any, **how: Any) -> Any:
        made.append(how)
        return SimpleNamespace(fetched=lambda: iter(()))

    monkeypatch.setattr(tail, "Following", following)
    code = main(["tail", "two", "-f", *options, "-b", two_partitions.bootstrap_servers])
    places = {} if late is None else {TopicPartition("two", 1): parse_offset_spec(late)}
    assert (code, made) == (1 if places else 0, [{"late": places, "growing": growing}])


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (NetworkError("cut"), True),
        (DeadlineExceededError("late"), True),
        (BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "t"), True),
        (BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t"), False),
        (AuthenticationError("wrong password"), False),
    ],
)
def test_a_look_for_partitions_passes_over_what_may_pass_by_itself(error: KafkaError, passes: bool) -> None:
    """Else a reader that may no longer read would wait without a word."""

    def refuse(*_: Any) -> None:
        raise error

    late = TopicPartition("t", 0)
    router: Any = SimpleNamespace(deadline=Deadline.after_ms, refresh=refuse)
    places, level, run = {late: parse_offset_spec("-2")}, IsolationLevel.READ_UNCOMMITTED, SimpleNamespace()
    following = tail.Following(router, cast(Any, run), [late], level, late=places, growing=True)
    with nullcontext() if passes else pytest.raises(type(error)):
        look(following)
    assert following._late == places  # it is looked at again


def test_a_partition_that_does_not_answer_where_it_ends_is_not_read_without_an_end(
    two_partitions: ScriptedCluster,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Its leader goes between the question for the beginning and that for the end."""
    real, second = offsets.list_offsets_of_each, TopicPartition("two", 1)
    two_partitions.logs[second].leader = 1

    def ask(router: Any, asked: Any, **how: Any) -> Any:
        found, failed = real(router, asked, **how)
        if OffsetAt.MAX_TIMESTAMP in asked.values():
            failed[second] = NetworkError("no answer from two-1")
            found.pop(second, None)
        return found, failed

    monkeypatch.setattr(offsets, "list_offsets_of_each", ask)
    command = ["tail", "two", "--from", "earliest", "--until", "max-timestamp"]
    assert main([*command, "-b", two_partitions.bootstrap_servers]) == 1
    shown = capfdbinary.readouterr()
    assert (b"1\n" in shown.out, b"no answer from two-1" in shown.err) == (False, True)


@pytest.mark.parametrize("output", ["raw", "json"])
@pytest.mark.parametrize(
    ("mode", "code", "shown"),
    [([], 1, [7]), (["permissive"], 0, [7, None, 9]), (["dropmalformed"], 0, [7, 9])],
    ids=["default", "permissive", "dropmalformed"],
)
def test_a_record_that_can_not_be_decoded_ends_it_unless_another_mode_is_given(
    capfd: pytest.CaptureFixture[str], mode: list[str], code: int, shown: list[int | None], output: str
) -> None:
    with MockBroker() as broker:
        broker.create_topic("t")
        broker.append("t", [Record("", 0, -1, None, value) for value in (b'{"id":7}', b"?", b'{"id":9}')])
        options = ["--value-format", "json", "--value-schema", "id bigint", "-o", output]
        given = [*options, *(["--mode", *mode] if mode else [])]
        assert main(["tail", "t", *given, "-b", broker.bootstrap_servers]) == code
    printed = capfd.readouterr()
    rows = [json.loads(line or "null") for line in printed.out.splitlines()]
    if output == "json":
        assert ["_error" in row for row in rows] == [one is None for one in shown]
        rows = [row["value"] for row in rows]
    assert [(row or {}).get("id") for row in rows] == shown
    notes = printed.err.splitlines()
    if not mode:
        assert "t-0" in notes[-1]
    elif mode == ["dropmalformed"]:
        assert notes == ["1 record could not be decoded: left out."]
    elif output == "json":
        assert notes == []  # the line says it
    else:
        assert [note.partition(": ")[0] for note in notes] == ["t-0@1"]


@pytest.mark.parametrize(
    ("format", "value", "shown"),
    [
        (["string"], b"\xff", {"value": None, "_corrupt_record_base64": "/w=="}),
        (["json", "--value-schema", "id bigint"], b" ", {"value_base64": "IA=="}),
    ],
    ids=["bad", "empty"],
)
def test_the_bytes_of_a_value_that_is_null_in_its_format_stand_once_in_json(
    capfd: pytest.CaptureFixture[str], format: list[str], value: bytes, shown: dict[str, object]
) -> None:
    with MockBroker() as broker:
        broker.create_topic("t")
        broker.append("t", [Record("", 0, -1, None, value)])
        given = ["--json", "--mode", "permissive", "-b", broker.bootstrap_servers]
        assert main(["tail", "t", "--value-format", *format, *given]) == 0
    row = json.loads(capfd.readouterr().out)
    assert {name: row[name] for name in row if name.startswith(("value", "_corrupt"))} == shown


@pytest.mark.parametrize("typed", [[], ["--value-format", "string"]], ids=["plain", "typed"])
@pytest.mark.parametrize(("now_ms", "shown"), [(-1, None), (0, 0), (5, 5)])
def test_a_record_without_a_timestamp_has_none_in_json(
    cluster: ScriptedCluster,
    capfd: pytest.CaptureFixture[str],
    typed: list[str],
    now_ms: int,
    shown: int | None,
) -> None:
    """`produce` would write it as one of 1970."""
    [tp] = cluster.create("timeless")
    columns = RecordColumns(length=1, value=pa.array([b"a"], pa.binary()))
    cluster.logs[tp].log.append(bytes(encode_record_batch(columns, now_ms=now_ms)))
    assert main(["tail", "timeless", "--json", *typed, "-b", cluster.bootstrap_servers]) == 0
    assert json.loads(capfd.readouterr().out)["timestamp_ms"] == shown


@pytest.mark.parametrize(
    ("words", "bare"),
    [
        ([], True),
        (["-o", "raw"], True),
        (["-o", "text"], False),
        (["-o", "hex"], False),
        (["--format", "%s %k %h"], True),
    ],
    ids=str,
)
def test_a_terminal_gets_no_control_characters_of_a_record(
    monkeypatch: pytest.MonkeyPatch, words: list[str], bare: bool
) -> None:
    """A pipe gets the bytes that were asked for."""
    evil = "\x1b[2J"
    record = ShownRecord("t", 0, 0, 1, evil.encode(), f"{evil}\n\t\u202e".encode(), [(evil, evil.encode())])
    arguments = command_line_parser(["tail"]).parse_args(["tail", "t", "-b", "h", *words])
    for terminal in (True, False):
        monkeypatch.setattr(tail, "on_terminal", lambda terminal=terminal: terminal)
        shown = tail._render(arguments)(record)
        controls = b"\x1b" in shown, "\u202e".encode() in shown
        assert controls == (bare and not terminal,) * 2
