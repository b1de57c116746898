"""A partition that has no leader does not hide the answers of the others."""

from __future__ import annotations

import contextlib
import json
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from support.brokers.scripted_broker import Log, ScriptedCluster

from spark_kafka_native.cli.main import main
from spark_kafka_native.kafka.admin import transactions
from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.cluster import offsets
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    DeadlineExceededError,
    PartialAnswerError,
    UnsupportedVersionError,
)
from spark_kafka_native.kafka.model import OffsetToCommit, TopicPartition
from spark_kafka_native.kafka.protocol.api.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafka_native.kafka.protocol.api.groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from spark_kafka_native.kafka.protocol.api.transaction_admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
    TransactionState,
)
from spark_kafka_native.testing import MockBroker, MockRequest

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
NOBODY = -1
OPEN_SINCE_EVER = ProducerState(
    producer_id=7, producer_epoch=0, last_timestamp=0, coordinator_epoch=0, current_txn_start_offset=1
)


def producers(request: DescribeProducersRequest, _version: int) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        throttle_time_ms=0,
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    PartitionResponse(
                        partition_index=index, error_code=ErrorCode.NONE, active_producers=[OPEN_SINCE_EVER]
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ],
    )


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedCluster]:
    """The second partition of a has no leader; a group has committed in both."""
    monkeypatch.setattr(offsets, "MISSING_MS", 100)
    monkeypatch.setattr(Admin, "group_offsets", lambda *_: {tp: OffsetToCommit(offset=1) for tp in (A0, A1)})
    with ScriptedCluster(1) as running:
        running.create("a", partitions=2)
        running.logs[A0].append([b"0", b"1", b"2"])
        running.logs[A1].leader = NOBODY
        running[1].on(DescribeProducersRequest, producers)
        nothing = ListTransactionsResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, unknown_state_filters=[], transaction_states=[]
        )
        running[1].on(ListTransactionsRequest, lambda *_: nothing)
        group = ListedGroup(group_id="g", protocol_type="consumer", group_state="Empty")
        running[1].on(ListGroupsRequest, ListGroupsResponse(error_code=ErrorCode.NONE, groups=[group]))
        yield running


@pytest.fixture(autouse=True)
def coordinators_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MOVING_S", 0.0)


@pytest.fixture
def admin(cluster: ScriptedCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers, default_api_timeout_ms=60_000, retry_backoff_ms=5) as admin:
        yield admin


def test_the_lag_is_told_of_those_that_answer(admin: Admin) -> None:
    lag = admin.group_lag("g")
    assert (lag[A0].lag, lag[A0].error) == (2, None)
    assert (lag[A1].lag, lag[A1].committed_offset) == (None, 1)
    assert isinstance(lag[A1].error, BrokerError)
    assert lag[A1].error.error_code is ErrorCode.LEADER_NOT_AVAILABLE


def test_coordinators_that_move_have_time_to_load_before_they_are_asked_again(
    admin: Admin, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it loads them, a new coordinator seems to know no transactions: a live one would be aborted."""
    cluster.logs[A1].leader = 1
    waited: list[tuple[float, int]] = []

    def sleep(seconds: float) -> None:
        waited.append((seconds, len(cluster[1].requests(ListTransactionsRequest))))

    monkeypatch.setattr(transactions, "MOVING_S", 2.5)
    monkeypatch.setattr(transactions.time, "sleep", sleep)
    assert len(admin.hanging_transactions(["a"])) == 2
    assert [one for one in waited if one[0] == 2.5] == [(2.5, 1)]
    assert len(cluster[1].requests(ListTransactionsRequest)) == 2
    waited.clear()
    assert admin.hanging_transactions(["a"], open_for_ms=10**13) == []
    assert waited == []
    with contextlib.suppress(DeadlineExceededError):  # on a machine that is slower than this
        admin.hanging_transactions(["a"], 2)
    assert all(seconds <= 1 for seconds, _ in waited)


def test_hanging_transactions_are_told_of_those_that_answer(admin: Admin, cluster: ScriptedCluster) -> None:
    with pytest.raises(PartialAnswerError, match="a-1: LEADER_NOT_AVAILABLE") as raised:
        admin.hanging_transactions(["a"])
    assert [one.topic_partition for one in raised.value.found] == [A0]
    assert list(raised.value.failed) == [A1]
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    with pytest.raises(PartialAnswerError) as raised:
        admin.describe_producers([A1, A0])
    assert [one.producer_id for one in raised.value.found[A0]] == [7]
    cluster.logs[A1].leader = 1
    assert [one.topic_partition for one in admin.hanging_transactions(["a"])] == [A0, A1]


def test_a_transaction_whose_id_expires_while_it_is_looked_for_hangs(
    admin: Admin, cluster: ScriptedCluster
) -> None:
    cluster.logs[A1].leader = 1
    listed = ListedTransaction(transactional_id="x", producer_id=7, transaction_state="Ongoing")
    cluster[1].on(
        ListTransactionsRequest,
        lambda *_: ListTransactionsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            unknown_state_filters=[],
            transaction_states=[listed],
        ),
    )
    coordinator = Coordinator(
        key="x",
        node_id=1,
        host=cluster[1].host,
        port=cluster[1].port,
        error_code=ErrorCode.NONE,
        error_message=None,
    )
    cluster[1].on(FindCoordinatorRequest, lambda *_: FindCoordinatorResponse(coordinators=[coordinator]))
    state = TransactionState(
        error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        transactional_id="x",
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=7,
        producer_epoch=0,
        topics=[],
    )
    gone = DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=[state])
    cluster[1].on(DescribeTransactionsRequest, lambda *_: gone)
    assert [one.topic_partition for one in admin.hanging_transactions(["a"])] == [A0, A1]
    state = replace(state, error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    refused = DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=[state])
    cluster[1].on(DescribeTransactionsRequest, lambda *_: refused)
    with pytest.raises(BrokerError, match="AUTHORIZATION"):
        admin.hanging_transactions(["a"])


def test_a_producer_without_an_open_transaction_does_not_hang(admin: Admin, cluster: ScriptedCluster) -> None:
    """However long ago it has written: its transactions have ended."""
    cluster.logs[A1].leader = 1
    idle = replace(OPEN_SINCE_EVER, producer_id=8, current_txn_start_offset=-1)

    def both(request: DescribeProducersRequest, version: int) -> DescribeProducersResponse:
        response = producers(request, version)
        for partition in response.topics[0].partitions:
            partition.active_producers.insert(0, idle)
        return response

    cluster[1].on(DescribeProducersRequest, both)
    described = admin.describe_producers([A0])[A0]
    assert [(one.producer_id, one.transaction_start_offset) for one in described] == [(8, None), (7, 1)]
    hanging = admin.hanging_transactions(["a"])
    assert [(one.topic_partition, one.producer.producer_id) for one in hanging] == [(A0, 7), (A1, 7)]


@pytest.mark.parametrize("homes", [[2, 1, 1, 1], [1, 1, 2, 1]], ids=["first round", "second round"])
def test_a_transaction_whose_coordinator_moves_while_brokers_are_asked_does_not_hang(
    homes: list[int],
) -> None:
    """Aborting it would take a part of its records away. Another one hangs: the brokers are asked again."""
    # The node id of its coordinator at each request; the two brokers are asked twice, at the same time.
    left = {1: iter(homes[::2]), 2: iter(homes[1::2])}

    def listed(request: MockRequest) -> dict[str, object]:
        state = {"transactional_id": "live", "producer_id": 7, "transaction_state": "Ongoing"}
        return {"transaction_states": [state] if request.node_id == next(left[request.node_id]) else []}

    with MockBroker(2) as broker:
        broker.create_topic("a")
        there = {
            "partition_index": 0,
            "active_producers": [{"producer_id": n, "current_txn_start_offset": 1} for n in (7, 9)],
        }
        broker.on("DescribeProducers", times=None).reply({"topics": [{"name": "a", "partitions": [there]}]})
        broker.on("ListTransactions", times=None).reply(listed)
        state = {
            "transactional_id": "live",
            "producer_id": 7,
            "transaction_state": "Ongoing",
            "topics": [{"topic": "a", "partitions": [0]}],
        }
        broker.on("DescribeTransactions", times=None).reply({"transaction_states": [state]})
        with Admin(broker.bootstrap_servers, default_api_timeout_ms=10_000) as admin:
            assert [one.producer.producer_id for one in admin.hanging_transactions(["a"])] == [9]
        assert [next(one, None) for one in left.values()] == [None, None]


@pytest.mark.parametrize(
    ("after", "found"),
    [({}, [7]), ({"current_txn_start_offset": -1}, []), ({"current_txn_start_offset": 9}, [])],
    ids=["still open", "ended", "another one"],
)
def test_a_transaction_that_ends_while_coordinators_are_asked_does_not_hang(
    after: dict[str, int], found: list[int]
) -> None:
    """Its coordinator had it open when the leader was asked, and no longer has it."""
    before = {"producer_id": 7, "current_txn_start_offset": 1}

    def described(state: dict[str, int]) -> dict[str, object]:
        there = {"partition_index": 0, "active_producers": [state]}
        return {"topics": [{"name": "a", "partitions": [there]}]}

    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("a")
        broker.on("DescribeProducers").reply(described(before))
        broker.on("DescribeProducers").reply(described(before | after))
        broker.on("ListTransactions", times=None).reply({"transaction_states": []})
        assert [one.producer.producer_id for one in admin.hanging_transactions(["a"])] == found


def test_a_leader_that_answers_only_once_takes_no_transaction_of_another_along(
    admin: Admin, cluster: ScriptedCluster
) -> None:
    cluster.logs[A1].leader = 1

    def then_without_leader(request: DescribeProducersRequest, version: int) -> DescribeProducersResponse:
        cluster[1].on(DescribeProducersRequest, refused)
        return producers(request, version)

    def refused(request: DescribeProducersRequest, version: int) -> DescribeProducersResponse:
        response = producers(request, version)
        partitions = [
            replace(one, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, active_producers=[])
            if one.partition_index == 1
            else one
            for one in response.topics[0].partitions
        ]
        return replace(response, topics=[replace(response.topics[0], partitions=partitions)])

    cluster[1].on(DescribeProducersRequest, then_without_leader)
    with pytest.raises(PartialAnswerError, match="a-1: NOT_LEADER_OR_FOLLOWER") as raised:
        admin.hanging_transactions(["a"])
    assert [one.topic_partition for one in raised.value.found] == [A0]
    assert list(raised.value.failed) == [A1]


def test_transactions_are_looked_for_in_partitions_that_were_just_added(
    admin: Admin, cluster: ScriptedCluster
) -> None:
    del cluster.logs[A1]
    assert [one.topic_partition for one in admin.hanging_transactions(["a"])] == [A0]
    cluster.logs[A1] = Log()
    assert [one.topic_partition for one in admin.hanging_transactions(["a"])] == [A0, A1]


def test_a_leader_that_can_not_be_asked_is_the_error_at_once(admin: Admin, cluster: ScriptedCluster) -> None:
    """Not a response without the partition, which another attempt might have."""
    del cluster[1].versions[DescribeProducersRequest.api_key]
    with pytest.raises(UnsupportedVersionError):
        admin.describe_producers([A0])


def test_a_single_partition_is_waited_for(cluster: ScriptedCluster) -> None:
    with Admin(cluster.bootstrap_servers, retry_backoff_ms=5) as admin:
        admin.list_topics()  # a slow machine may need longer to connect than is waited below
        with pytest.raises(DeadlineExceededError, match="a-1: LEADER_NOT_AVAILABLE"):
            admin.describe_producers([A1], 1)


def test_commands_show_what_they_know_and_name_the_rest(
    cluster: ScriptedCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    server = ["-b", cluster.bootstrap_servers]
    assert main(["groups", "g", "--lag", "--json", *server]) == 1
    shown = capfd.readouterr()
    assert [row["lag"] for row in json.loads(shown.out)] == [2, None]
    assert "a-1: LEADER_NOT_AVAILABLE" in shown.err
    assert main(["transactions", "hanging", "a", "--json", *server]) == 1
    shown = capfd.readouterr()
    assert [row["partition"] for row in json.loads(shown.out)] == [0]
    assert "a-1: LEADER_NOT_AVAILABLE" in shown.err
    assert main(["top", "--json", "-c", "1", "-i", "0.1", *server]) == 0
    [view] = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["topic"], row["end_offsets"]) for row in view["topics"]] == [("a", 3)]
    assert [row["lag"] for row in view["groups"]] == [2]
    assert any("a-1: LEADER_NOT_AVAILABLE" in problem for problem in view["problems"])


def test_a_leader_that_cant_be_reached_does_not_end_top(
    cluster: ScriptedCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.logs[A1].leader = 9  # which the cluster does not name
    assert main(["top", "--json", "-c", "1", "-i", "0.1", "-b", cluster.bootstrap_servers]) == 0
    [view] = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["topic"], row["end_offsets"]) for row in view["topics"]] == [("a", 3)]


def with_partitions(
    change: Callable[[PartitionResponse], PartitionResponse],
) -> Callable[[DescribeProducersRequest, int], DescribeProducersResponse]:
    """An answer in which each partition is changed."""

    def answer(request: DescribeProducersRequest, version: int) -> DescribeProducersResponse:
        response = producers(request, version)
        [topic] = response.topics
        partitions = [change(one) for one in topic.partitions]
        return replace(response, topics=[replace(topic, partitions=partitions)])

    return answer


def test_a_partition_with_producers_that_may_not_be_described_is_not_one_without_any(
    admin: Admin, cluster: ScriptedCluster
) -> None:
    cluster.logs[A1].leader = 1

    def refused(one: PartitionResponse) -> PartitionResponse:
        if one.partition_index == 0:
            return one
        return replace(one, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, active_producers=[])

    cluster[1].on(DescribeProducersRequest, with_partitions(refused))
    asks: list[Callable[[], object]] = [
        lambda: admin.describe_producers([A0, A1]),
        lambda: admin.hanging_transactions(["a"]),
    ]
    for ask in asks:
        with pytest.raises(
            PartialAnswerError, match="producers of a-1: TOPIC_AUTHORIZATION_FAILED"
        ) as raised:
            ask()
        assert list(raised.value.failed) == [A1]


def test_a_transaction_hangs_once_it_is_open_for_longer_than_the_longest_timeout(
    admin: Admin, cluster: ScriptedCluster
) -> None:
    """One that has just begun may be unknown to a coordinator that is asked before it hears of it."""
    cluster.logs[A1].leader = 1
    now_ms = int(time.time() * 1000)
    aged = [
        replace(OPEN_SINCE_EVER, producer_id=minutes, last_timestamp=now_ms - minutes * 60_000)
        for minutes in (10, 20)
    ]
    answer = with_partitions(lambda one: replace(one, active_producers=aged))
    cluster[1].on(DescribeProducersRequest, answer)

    def found(**given: int) -> set[int]:
        return {one.producer.producer_id for one in admin.hanging_transactions(["a"], **given)}

    assert found() == {20}
    assert found(open_for_ms=5 * 60_000) == {10, 20}
    assert found(open_for_ms=30 * 60_000) == set()
