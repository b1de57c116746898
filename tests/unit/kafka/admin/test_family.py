"""How a request about many things is settled: which part is asked again, which error is raised, and when."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafka_native.kafka.admin import family
from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.admin.cluster import _of_all
from spark_kafka_native.kafka.admin.family import (
    AdminFamily,
    ItemResult,
    Task,
    broker_share,
    names_of,
    noting_lost,
)
from spark_kafka_native.kafka.admin.groups import PartitionLag
from spark_kafka_native.kafka.admin.topics import _read_deleted
from spark_kafka_native.kafka.admin.transactions import (
    ActiveProducer,
    HangingTransaction,
    TransactionDescription,
    _is_known,
)
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    BrokerError,
    DeadlineExceededError,
    KafkaError,
    NetworkError,
    UnreachableError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.topics import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import MockBroker

NONE, EXISTS = ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS
THROTTLED, GONE = ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Settling:
    """Asks for ``names`` with scripted answers; ``asked`` is what each request was about."""

    def __init__(self, *answers: dict[str, ErrorCode] | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[list[object]] = []

    def settle(self, names: Iterable[str], task: Task | None = None, limit_ms: float = 60_000) -> None:
        router = Router(ClientConfig(bootstrap_servers=("localhost:1",), retry_backoff_ms=0))
        AdminFamily(router)._settle(
            names,
            self._ask,
            task or Task("making", "Create"),
            Deadline.after_ms(limit_ms),
            between=lambda _: None,
        )

    def _ask(self, names: list[object]) -> list[ItemResult]:
        self.asked.append(names)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return [ItemResult(name, code) for name, code in answer.items()]


def test_what_is_put_off_is_asked_again_alone() -> None:
    settling = Settling({"a": NONE, "b": THROTTLED, "c": ErrorCode.NOT_CONTROLLER}, {"b": NONE, "c": NONE})
    settling.settle("abc")
    assert settling.asked == [["a", "b", "c"], ["b", "c"]]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_CONTROLLER,
        THROTTLED,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_a_request_that_was_not_carried_out_is_sent_again(code: ErrorCode) -> None:
    settling = Settling({"a": code}, {"a": NONE})
    settling.settle("a")
    assert settling.asked == [["a"], ["a"]]


def test_the_first_refusal_is_raised_once_all_are_settled() -> None:
    settling = Settling({"a": THROTTLED, "b": EXISTS, "c": ErrorCode.INVALID_CONFIG}, {"a": NONE})
    with pytest.raises(BrokerError, match="making b: TOPIC_ALREADY_EXISTS"):
        settling.settle("abc")
    assert settling.asked == [["a", "b", "c"], ["a"]]


def test_every_refusal_is_named() -> None:
    with pytest.raises(BrokerError, match="making a: ") as raised:
        Settling({"d": EXISTS, "b": NONE, "c": ErrorCode.INVALID_CONFIG, "a": EXISTS}).settle("abcd")
    notes = raised.value.__notes__
    assert [note.split(" (")[0] for note in notes] == [
        "also refused: making c: INVALID_CONFIG",
        "also refused: making d: TOPIC_ALREADY_EXISTS",
    ]
    with pytest.raises(DeadlineExceededError, match="THROTTLING_QUOTA_EXCEEDED") as late:
        Settling({"a": THROTTLED, "b": EXISTS}, {"a": THROTTLED}).settle("ab", limit_ms=50)
    assert [note.split(" (")[0] for note in late.value.__notes__] == [
        "also refused: making b: TOPIC_ALREADY_EXISTS"
    ]


def test_what_the_answer_leaves_out_is_asked_again_and_what_nobody_asked_for_is_dropped() -> None:
    settling = Settling({"a": NONE, "z": EXISTS}, {"a": EXISTS, "b": NONE})
    settling.settle("ab")
    assert settling.asked == [["a", "b"], ["b"]]


def test_a_controller_whose_word_is_final_is_not_asked_again() -> None:
    for code in (GONE, ErrorCode.REQUEST_TIMED_OUT):  # both retriable; the second may have been done
        settling = Settling({"a": code})
        with pytest.raises(BrokerError) as raised:
            settling.settle("a")
        assert (raised.value.error_code, len(settling.asked)) == (code, 1)


def test_gone_is_what_was_wanted_after_an_attempt_whose_answer_was_lost() -> None:
    deleting = Task("deleting", "Delete", done_by_lost=GONE)
    Settling(NetworkError("cut"), {"a": GONE}).settle("a", deleting)
    Settling(NetworkError("cut"), {"a": THROTTLED}, {"a": GONE}).settle("a", deleting)  # the first counts
    with pytest.raises(BrokerError):
        Settling({"a": GONE}).settle("a", deleting)
    with pytest.raises(BrokerError):  # it was put off, not done
        Settling({"a": THROTTLED}, {"a": GONE}).settle("a", deleting)


def test_a_refusal_after_a_lost_answer_says_so() -> None:
    """As INVALID_PARTITIONS for a topic that has grown already."""
    with pytest.raises(BrokerError, match=r"EXISTS .*the response was lost, may have been carried out"):
        Settling(NetworkError("cut"), {"a": EXISTS}).settle("a")
    with pytest.raises(BrokerError) as raised:
        Settling({"a": EXISTS}).settle("a")
    assert "lost" not in str(raised.value)


def test_an_end_after_a_lost_answer_says_so() -> None:
    """The topic may be there, or gone."""
    for answers, says in (
        ([NetworkError("cut")], ["an attempt, of which the response was lost, may have been"]),
        ([UnreachableError("refused")], []),
        ([NetworkError("cut"), AuthenticationError("no")], ["an attempt, of which the response"]),
        (
            [{"b": EXISTS}, NetworkError("cut"), AuthenticationError("no")],
            ["an attempt, of which", "also refused: making b: "],
        ),
    ):
        with pytest.raises(KafkaError) as raised:
            Settling(*answers).settle("ab", limit_ms=50)
        notes = getattr(raised.value, "__notes__", [])
        assert [text[: len(said)] for text, said in zip(notes, says, strict=True)] == says


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("refused"),
        BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, "broker 1"),
    ],
)
def test_gone_is_a_refusal_after_an_attempt_that_was_not_sent(error: KafkaError) -> None:
    """A misspelt name would pass for a topic that was deleted."""
    with pytest.raises(BrokerError, match="deleting a: UNKNOWN_TOPIC_OR_PARTITION"):
        Settling(error, {"a": GONE}).settle("a", Task("deleting", "Delete", done_by_lost=GONE))


@pytest.mark.parametrize("what", ["topic", "group"])
def test_what_never_was_is_not_deleted_while_its_broker_is_down(what: str) -> None:
    with MockBroker() as broker:
        broker.on("DeleteGroups", times=None).reply(
            {"results": [{"group_id": "typo", "error_code": ErrorCode.GROUP_ID_NOT_FOUND}]}
        )
        with Admin(broker.bootstrap_servers, retry_backoff_ms=5) as admin:
            real, failed = admin.router.connection, list[int]()

            def connection(node_id: int, *more: Any) -> Any:
                if not failed:
                    failed.append(node_id)
                    raise NetworkError("connecting took too long")
                return real(node_id, *more)

            admin.router.connection = connection  # type: ignore[method-assign]
            with pytest.raises(BrokerError, match=f"deleting {what} typo: "):
                admin.delete_topics(["typo"]) if what == "topic" else admin.delete_groups(["typo"])
            assert failed


def test_it_ends_with_the_deadline() -> None:
    with pytest.raises(DeadlineExceededError, match=r"making a and 1 more .*THROTTLING_QUOTA_EXCEEDED"):
        Settling({"a": THROTTLED, "b": THROTTLED}).settle("ab", limit_ms=50)


def test_what_was_deleted_beside_a_refusal_is_noted() -> None:
    def told(partition: int, code: ErrorCode, low: int) -> DeleteRecordsPartitionResult:
        return DeleteRecordsPartitionResult(partition_index=partition, low_watermark=low, error_code=code)

    topic = DeleteRecordsTopicResult(
        name="t", partitions=[told(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1), told(1, NONE, 7)]
    )
    first: dict[TopicPartition, int] = {}
    response = DeleteRecordsResponse(throttle_time_ms=0, topics=[topic])
    (refused,) = _read_deleted(response, {TopicPartition("t", 0): -1}, first).values()
    assert first == {TopicPartition("t", 1): 7}
    assert str(refused).startswith("deleting records of t-0 before offset -1: NOT_LEADER_OR_FOLLOWER")


def test_an_error_of_a_leader_is_that_of_each_of_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else those without one are asked for until the time is over."""
    wanted, error = [TopicPartition("t", number) for number in range(3)], AuthenticationError("not for you")
    router: Any = SimpleNamespace(
        config=SimpleNamespace(request_timeout_ms=1),
        metadata=lambda *_, **_given: None,
        known_leaders=lambda these: {tp: SimpleNamespace(node_id=tp.partition % 2) for tp in these},
    )
    monkeypatch.setattr(family, "ask_each_broker", lambda *_: {0: error})
    request: Any = None
    found = AdminFamily(router)._ask_leaders(
        wanted, lambda _: request, lambda _: {}, Deadline.after_ms(1_000)
    )
    assert found == {wanted[0]: error, wanted[2]: error}


def test_what_is_put_off_goes_before_refusals_where_all_was_requested() -> None:
    """A refusal would end it, and leave others undone."""
    refused, put_off = ItemResult("a-0", EXISTS, "no"), ItemResult("a-1", THROTTLED, "later")
    done = ItemResult("a-2", NONE)
    assert _of_all([done, refused, put_off]) == [ItemResult("all", THROTTLED, "a-1: later")]
    assert _of_all([done, refused])[0] == ItemResult("all", EXISTS, "a-0: no")
    assert _of_all([done]) == [ItemResult("all", NONE)]


def test_a_broker_has_less_time_than_the_caller() -> None:
    """Else its answer, that the time is over or that it is done, comes too late to be heard."""
    assert 700_000 < broker_share(Deadline.after_ms(1_000_000)) <= 900_000


def test_nothing_asks_nobody() -> None:
    settling = Settling({})
    settling.settle([])
    assert settling.asked == []


@pytest.mark.parametrize("given", ["ab", b"ab", [1], ["a", None]])
def test_names_are_a_collection_of_texts(given: Any) -> None:
    with pytest.raises(ValueError, match="topics must be"):
        names_of(given, "topics")
    assert names_of(("a", "b", "a"), "topics") == ["a", "b"]


def test_lag_is_never_below_0() -> None:
    assert PartitionLag(committed_offset=9, end_offset=5).lag == 0
    assert PartitionLag(committed_offset=5, end_offset=9).lag == 4
    assert PartitionLag(committed_offset=0, end_offset=0).lag == 0  # an empty partition is not a missing one
    assert PartitionLag(committed_offset=5, end_offset=None).lag is None


@pytest.mark.parametrize(
    ("state", "partition", "known"),
    [
        *((state, 0, True) for state in ("Ongoing", "PrepareCommit", "PrepareAbort")),
        ("Ongoing", 1, False),
        *((state, 0, False) for state in ("CompleteAbort", "CompleteCommit")),
    ],
)
def test_a_transaction_hangs_unless_its_coordinator_has_it_open_there(
    state: str, partition: int, known: bool
) -> None:
    producer = ActiveProducer(
        producer_id=7,
        producer_epoch=0,
        last_sequence=0,
        last_timestamp_ms=0,
        coordinator_epoch=0,
        transaction_start_offset=3,
    )
    open_one = HangingTransaction(topic_partition=TopicPartition("t", 0), producer=producer)
    told = TransactionDescription(
        transactional_id="x",
        state=state,
        producer_id=7,
        producer_epoch=0,
        timeout_ms=1,
        started_ms=None,
        topic_partitions=(TopicPartition("t", partition),),
    )
    assert _is_known(open_one, {7: "x"}, {"x": told}) is known
    assert not _is_known(open_one, {}, {})
    assert not _is_known(open_one, {8: "x"}, {"x": told})


@pytest.mark.parametrize("leads_after", [None, 1])
def test_a_controller_is_looked_for_before_the_request_is_sent(leads_after: int | None) -> None:
    """A broker that can't be reached in an election has not lost the request."""
    done: list[object] = []
    snapshot = SimpleNamespace(brokers={1: object()}, controller_id=None)

    def refresh(*_: object) -> None:
        done.append("refresh")
        snapshot.controller_id = leads_after

    router: Any = SimpleNamespace(
        snapshot=snapshot,
        metadata=lambda *_, **__: snapshot,
        refresh=refresh,
        connection=lambda node_id, *_: done.append(("connect", node_id)),
        ask_any=lambda *_: done.append("any"),
        send_to=lambda node_id, *_: done.append(node_id),
    )
    AdminFamily(router)._ask_controller(SimpleNamespace(), Deadline.after_ms(1_000))  # type: ignore[arg-type]
    assert done == (["refresh", "any"] if leads_after is None else ["refresh", ("connect", 1), 1])

    def fail(*_: object) -> None:
        raise NetworkError("no bootstrap server could be reached")

    router.refresh, snapshot.controller_id = fail, None
    lost: list[NetworkError] = []
    with pytest.raises(NetworkError, match="no bootstrap server"), noting_lost(lost):
        AdminFamily(router)._ask_controller(SimpleNamespace(), Deadline.after_ms(1_000))  # type: ignore[arg-type]
    assert lost == []
