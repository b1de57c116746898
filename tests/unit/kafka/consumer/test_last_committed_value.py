"""The last committed value of a key, against a naive reader of the same log, which knows how each transaction
ended: transactions that interleave, gaps as compaction leaves them, answers of any length.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from support.brokers.scripted_broker import ScriptedCluster, properties
from support.record_batches import batch, control, record

from spark_kafka_native.kafka.cluster.offsets import LogBounds
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.consumer import fetch_once as module
from spark_kafka_native.kafka.consumer.fetch_once import UndecidedError, last_committed_value
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import DeadlineExceededError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest, FetchResponse, PartitionData
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.encode import encode_record_batch
from spark_kafka_native.kafka.runtime.deadline import Deadline

WHERE = TopicPartition("markers", 0)
TRANSACTIONAL = 0x10


@dataclass
class Log:
    """What a leader would answer from: batches by their offsets."""

    rng: random.Random
    batches: list[tuple[int, bytes]] = field(default_factory=list)
    begin: int = 0
    end: int = 0

    def add(self, made: bytes, length: int = 1) -> None:
        self.batches.append((self.end, made))
        self.end += length

    def gap(self) -> None:
        """Compaction leaves none at the end of a log."""
        self.end += self.rng.choice([0, 0, 0, 40])

    def write(
        self, producer_id: int, *rows: tuple[bytes | None, bytes | None], transactional: bool = True
    ) -> None:
        self.gap()
        records = [record(i, value, key=key) for i, (key, value) in enumerate(rows)]
        attributes = TRANSACTIONAL if transactional and producer_id >= 0 else 0
        made = batch(records, base_offset=self.end, attributes=attributes, producer_id=producer_id)
        self.add(made, len(rows))

    def finish(self, producer_id: int, commit: bool) -> None:
        self.gap()
        self.add(control(self.end, producer_id, int(commit)))

    def answer(self, position: int) -> Any:
        first = max((i for i, (base, _) in enumerate(self.batches) if base <= position), default=0)
        some = self.batches[first : first + self.rng.randint(2, 9)]
        records = b"".join(made for _, made in some)
        return None, PartitionData(
            partition_index=0,
            error_code=ErrorCode.NONE,
            high_watermark=self.end,
            aborted_transactions=None,
            records=records,
        )


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Stub:
        def retry(self, attempt: Any, **_named: Any) -> Any:
            return attempt()

    def run(
        log: Log,
        key: bytes = b"mine",
        until: int | None = None,
        known_end: int | None = None,
        within_ms: float = 60_000,
    ) -> bytes | None:
        bounds = {WHERE: LogBounds(log.begin, log.end if known_end is None else known_end)}
        monkeypatch.setattr(module, "list_bounds", lambda *_arguments, **_named: bounds)
        monkeypatch.setattr(
            module, "ask_leader", lambda _router, _where, position, *_rest: log.answer(position)
        )
        router: Router = Stub()  # type: ignore[assignment]
        return last_committed_value(router, WHERE, key, Deadline.after_ms(within_ms), until=until)

    return run


@pytest.mark.parametrize("seed", range(30))
def test_as_a_naive_reader_sees_it(look: Any, seed: int) -> None:
    rng = random.Random(seed)
    log, open_, expected = Log(rng), set[int](), None
    for step in range(rng.choice([5, 60, 700])):
        fate = rng.random()
        other = rng.randint(1, 5)
        if fate < 0.55:
            log.write(other, *[(rng.choice([None, b"other", b"min", b"mine-1"]), b"x")] * rng.randint(1, 3))
            open_.add(other)
        elif fate < 0.8 and open_:
            ended = rng.choice(sorted(open_))
            open_.remove(ended)
            log.finish(ended, rng.random() < 0.5)
        elif fate < 0.86:
            value = rng.choice([b"%d" % step, b"%d" % step, None])
            log.write(-1, (b"mine", value))
            expected = value
        elif fate < 0.95 and rng.random() < 0.3:
            value = b"%d" % step
            log.write(0, (b"mine", b"earlier"), (b"other", b"y"), (b"mine", value))
            if rng.random() < 0.5:
                log.write(7, (b"other", b"between"))
            commit = rng.random() < 0.6
            log.finish(0, commit)
            expected = value if commit else expected
    assert look(log) == expected
    log.write(0, (b"mine", b"open"))  # 0 is a producer id like any other
    with pytest.raises(UndecidedError, match="mine was written by a transaction that is still open"):
        look(log)


def test_of_transactions_that_end_in_another_order_the_last_record_counts(look: Any) -> None:
    log = Log(random.Random(0))
    log.write(1, (b"mine", b"first"))
    log.write(2, (b"mine", b"second"))
    for producer in (2, 1):
        log.finish(producer, commit=True)
    assert look(log) == b"second"


def test_markers_of_producers_that_never_wrote_the_key_are_not_even_read(look: Any) -> None:
    # There may be millions of them.
    log = Log(random.Random(0))
    log.write(1, (b"mine", b"1"))
    log.finish(1, commit=True)
    log.write(2, (b"other", b"2"))
    log.add(control(log.end, 2, 1, key=b"?"))
    assert look(log) == b"1"


def test_a_producer_with_an_id_and_no_transaction_leaves_nothing_open(look: Any) -> None:
    """As an idempotent one writes."""
    log = Log(random.Random(0))
    log.write(1, (b"mine", b"1"))
    log.finish(1, commit=True)
    log.write(2, (b"mine", b"2"), transactional=False)
    assert look(log) == b"2"


@pytest.mark.parametrize("seed", range(10))  # a fetch may bring more than it was asked for
def test_what_comes_from_an_offset_on_does_not_count(look: Any, seed: int) -> None:
    log = Log(random.Random(seed))
    log.write(1, (b"mine", b"1"))
    log.finish(1, commit=True)
    until = log.end
    log.write(2, (b"mine", b"2"))
    log.finish(2, commit=True)
    log.write(3, (b"mine", b"open"))
    assert look(log, until=until) == b"1"
    with pytest.raises(UndecidedError):
        look(log, until=log.end)


def test_all_before_the_wanted_end_is_read_though_the_leader_has_named_an_earlier_one(look: Any) -> None:
    """An older value would be taken for the last one."""
    log = Log(random.Random(0))
    log.write(-1, (b"mine", b"old"))
    known_end = log.end
    for _ in range(30):
        log.write(-1, (b"other", b"x"))
    log.write(-1, (b"mine", b"new"))
    assert look(log, until=log.end, known_end=known_end) == b"new"


@pytest.mark.parametrize("begin", [0, 7])
@pytest.mark.parametrize("others", [0, 1, 254, 255, 256, 257, 2_047, 2_048, 2_049])
def test_the_first_record_of_the_log_counts_wherever_the_windows_begin(
    look: Any, begin: int, others: int
) -> None:
    """A commit that is not found is made once more."""
    log = Log(random.Random(0), begin=begin, end=begin)
    log.add(batch([record(0, b"1", key=b"mine")], base_offset=begin))
    if others:
        log.add(batch([record(i, b"x", key=b"other") for i in range(others)], base_offset=log.end), others)
    assert look(log) == b"1"


def test_a_look_that_takes_too_long_ends(look: Any) -> None:
    """A broker that throttles goes on answering without records."""
    log = Log(random.Random(0))
    log.write(-1, (b"mine", b"1"))
    with pytest.raises(DeadlineExceededError, match="took too long"):
        look(log, within_ms=0)


def test_a_response_without_records_is_not_the_end_of_the_log(look: Any) -> None:
    """A broker that throttles answers with a null record set (KIP-219)."""
    log = Log(random.Random(0))
    log.write(-1, (b"mine", b"1"))
    answers = [None, b"", None]

    class Throttled(Log):
        def answer(self, position: int) -> Any:
            response, data = log.answer(position)
            return response, replace(data, records=answers.pop()) if answers else data

    assert look(Throttled(log.rng, log.batches, log.begin, log.end)) == b"1"
    assert not answers


def test_the_leader_is_followed_to_another_broker() -> None:
    with ScriptedCluster(2) as cluster:
        cluster.create("markers", leader=1)
        columns = RecordColumns(
            length=2, key=pa.array([b"mine", b"other"]), value=pa.array([b"1", b"2"], pa.binary())
        )
        cluster.logs[WHERE].log.append(bytes(encode_record_batch(columns, now_ms=1)))

        def moved(request: FetchRequest, version: int) -> FetchResponse:
            cluster.logs[WHERE].leader = 2
            return cluster.own(request, version, 1)

        cluster[1].push(FetchRequest, moved)
        router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
        try:
            assert last_committed_value(router, WHERE, b"mine", Deadline.after_ms(10_000)) == b"1"
        finally:
            router.close()
        assert [one.node_id for one in cluster.mock.asked("Fetch")] == [1, 2]
