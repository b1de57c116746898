"""Coordinators that move, load, die or are not named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers.scripted_broker import HangUp, ScriptedCluster, properties

from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.cluster.coordinators import (
    ask_coordinator,
    find_coordinators,
    send_to_coordinator,
)
from spark_kafka_native.kafka.cluster.router import CoordinatorKey, Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, DeadlineExceededError
from spark_kafka_native.kafka.protocol.api.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafka_native.kafka.protocol.api.group_offsets import OffsetFetchRequest, OffsetFetchResponse
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from spark_kafka_native.kafka.protocol.api.topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline

GROUP = CoordinatorKey.group("g")


class Cluster:
    """Three brokers, of which one coordinates what."""

    def __init__(self, brokers: ScriptedCluster) -> None:
        self.brokers = brokers
        self.coordinator: dict[tuple[int, str], int] = {(0, "g"): 2, (1, "g"): 3}
        self.asked: list[int] = []
        self.refusals: list[ErrorCode] = []
        self.errors: dict[str, ErrorCode] = {}
        self.unasked: list[str] = []
        for node_id, broker in brokers.brokers.items():
            broker.on(FindCoordinatorRequest, self.find)
            broker.on(OffsetFetchRequest, self.serve(node_id))

    def find(self, request: FindCoordinatorRequest, _version: int) -> FindCoordinatorResponse:
        found = [
            Coordinator(
                key=name,
                node_id=self.coordinator[request.key_type, name],
                host="x",
                port=1,
                error_code=self.errors.get(name, ErrorCode.NONE),
                error_message=None,
            )
            for name in (*self.unasked, *request.coordinator_keys)
        ]
        return FindCoordinatorResponse(coordinators=found)

    def serve(self, node_id: int) -> Any:
        def answer(_request: OffsetFetchRequest, _version: int) -> OffsetFetchResponse:
            self.asked.append(node_id)
            return OffsetFetchResponse(groups=[])

        return answer

    @property
    def lookups(self) -> int:
        return sum(len(b.requests(FindCoordinatorRequest)) for b in self.brokers.brokers.values())

    def read(self, _response: OffsetFetchResponse) -> int:
        """What a caller's reader does: raises the error in the response."""
        if self.refusals:
            raise BrokerError(self.refusals.pop(0), "in the answer")
        return self.asked[-1]

    def send(self, router: Router, key: CoordinatorKey = GROUP) -> int:
        return send_to_coordinator(router, key, OffsetFetchRequest(groups=[]), self.read)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ScriptedCluster(3) as running:
        yield Cluster(running)


@pytest.fixture
def router(cluster: Cluster) -> Iterator[Router]:
    settings = properties(cluster.brokers[1].address, default_api_timeout_ms=3_000)
    made = Router(ClientConfig.from_properties(settings))
    yield made
    made.close()


def test_a_coordinator_is_looked_up_once(cluster: Cluster, router: Router) -> None:
    assert [cluster.send(router) for _ in range(3)] == [2, 2, 2]
    assert cluster.lookups == 1


def test_a_request_that_is_held_back_has_the_time_and_the_version_of_its_caller(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JoinGroup waits for a whole rebalance, which may take longer than any other request."""
    sent: list[Any] = []
    connection = SimpleNamespace(send=lambda *given: sent.append(given))
    monkeypatch.setattr(router, "connection", lambda node_id, _deadline: {2: connection}[node_id])
    router.coordinators.note(GROUP, 2)
    request, deadline = OffsetFetchRequest(groups=[]), router.deadline()
    ask_coordinator(router, GROUP, request, deadline, 300_000.0)
    ask_coordinator(router, GROUP, request, deadline, 300_000.0, at_most=5)
    assert sent == [(request, 300_000.0, deadline), (request, 300_000.0, deadline, 5)]


def test_a_group_and_a_transactional_id_of_one_name_are_two(cluster: Cluster, router: Router) -> None:
    assert cluster.send(router) == 2
    assert cluster.send(router, CoordinatorKey.transaction("g")) == 3
    assert [str(GROUP), str(CoordinatorKey.transaction("t"))] == ["group g", "transactional id t"]


def test_the_coordinator_of_another_group_in_the_answer_is_not_asked(
    cluster: Cluster, router: Router
) -> None:
    cluster.coordinator[0, "other"] = 1
    cluster.unasked = ["other"]
    assert cluster.send(router) == 2


def test_many_are_looked_up_at_once_but_for_those_that_are_known(cluster: Cluster, router: Router) -> None:
    cluster.coordinator |= {(0, name): 1 for name in "abc"}
    keys = [CoordinatorKey.group(name) for name in "gab"]
    find_coordinators(router, keys, router.deadline())
    assert [router.coordinators.get(key) for key in keys] == [2, 1, 1]
    find_coordinators(router, keys, router.deadline())
    assert cluster.lookups == 1
    find_coordinators(router, [*keys, CoordinatorKey.group("c")], router.deadline())
    assert cluster.lookups == 2
    [asked] = [
        one.coordinator_keys
        for broker in cluster.brokers.brokers.values()
        for one in broker.requests(FindCoordinatorRequest)
        if "c" in one.coordinator_keys
    ]
    assert asked == ["c"]


def test_of_many_only_those_count_that_were_asked_for_and_found(cluster: Cluster, router: Router) -> None:
    cluster.coordinator |= {(0, name): 1 for name in "ab"}
    cluster.errors["a"] = ErrorCode.GROUP_AUTHORIZATION_FAILED
    cluster.unasked = ["b"]
    keys = [CoordinatorKey.group(name) for name in "gab"]
    find_coordinators(router, keys[:2], router.deadline())
    assert [router.coordinators.get(key) for key in keys] == [2, None, None]
    with pytest.raises(BrokerError, match="group a: GROUP_AUTHORIZATION_FAILED"):
        cluster.send(router, keys[1])


def test_the_brokers_of_many_coordinators_are_known_afterwards(cluster: Cluster, router: Router) -> None:
    """With one request for metadata, and not with one for each of them."""
    assert not router.snapshot.brokers
    find_coordinators(router, [GROUP, GROUP], router.deadline())
    assert sorted(router.snapshot.brokers) == [1, 2, 3]
    asked = sum(len(broker.requests(MetadataRequest)) for broker in cluster.brokers.brokers.values())
    assert cluster.send(router) == 2
    assert sum(len(b.requests(MetadataRequest)) for b in cluster.brokers.brokers.values()) == asked == 1


@pytest.mark.parametrize("moved", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_moved_is_looked_up_again(
    cluster: Cluster, router: Router, moved: ErrorCode
) -> None:
    cluster.send(router)
    cluster.coordinator[0, "g"] = 3
    cluster.refusals = [moved]
    assert cluster.send(router) == 3
    assert (cluster.asked, cluster.lookups) == ([2, 2, 3], 2)


@pytest.mark.parametrize("busy", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNSTABLE_OFFSET_COMMIT])
def test_a_coordinator_that_is_busy_is_asked_again_and_not_looked_up(
    cluster: Cluster, router: Router, busy: ErrorCode
) -> None:
    cluster.refusals = [busy, busy]
    assert cluster.send(router) == 2
    assert (cluster.asked, cluster.lookups) == ([2, 2, 2], 1)


def test_a_coordinator_that_hangs_up_is_looked_up_again(cluster: Cluster, router: Router) -> None:
    cluster.send(router)
    cluster.brokers[2].on(OffsetFetchRequest, HangUp)
    cluster.coordinator[0, "g"] = 1
    assert cluster.send(router) == 1
    assert cluster.lookups == 2


def test_a_coordinator_that_left_the_cluster_is_looked_up_again(cluster: Cluster, router: Router) -> None:
    cluster.send(router)
    cluster.coordinator[0, "g"] = 3
    router._metadata = replace(
        router.snapshot, brokers={i: b for i, b in router.snapshot.brokers.items() if i != 2}
    )
    assert cluster.send(router) == 3


def test_a_refusal_for_good_is_raised_at_once(cluster: Cluster, router: Router) -> None:
    cluster.refusals = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    with pytest.raises(BrokerError, match="in the answer: GROUP_AUTHORIZATION_FAILED"):
        cluster.send(router)
    assert cluster.asked == [2]


def test_a_lookup_that_is_refused_names_the_group(cluster: Cluster, router: Router) -> None:
    refused = replace(
        cluster.find(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators[0],
        error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
    )
    cluster.brokers[1].on(FindCoordinatorRequest, FindCoordinatorResponse(coordinators=[refused]))
    with pytest.raises(BrokerError, match="coordinator of group g: GROUP_AUTHORIZATION_FAILED"):
        cluster.send(router)


def test_an_answer_that_names_no_coordinator_is_asked_for_again(cluster: Cluster, router: Router) -> None:
    nobody = FindCoordinatorResponse(coordinators=[])
    for broker in cluster.brokers.brokers.values():
        broker.push(FindCoordinatorRequest, nobody)
    assert cluster.send(router) == 2
    for broker in cluster.brokers.brokers.values():
        broker.on(FindCoordinatorRequest, nobody)
    says = "OffsetFetch to the coordinator of group other did not.*coordinator of group other: the response"
    with pytest.raises(DeadlineExceededError, match=says):
        send_to_coordinator(
            router,
            CoordinatorKey.group("other"),
            OffsetFetchRequest(groups=[]),
            cluster.read,
            router.deadline(200),
        )


@contextmanager
def deleting(controller: Callable[[], int]) -> Iterator[tuple[ScriptedCluster, Admin]]:
    """Three brokers that delete topics, and name the ``controller`` of the moment."""

    def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
        return replace(cluster.metadata(request, version), controller_id=controller())

    done = DeleteTopicsResponse(responses=[DeletableTopicResult(name="a", error_code=ErrorCode.NONE)])
    with ScriptedCluster(3) as cluster:
        for broker in cluster.brokers.values():
            broker.on(MetadataRequest, metadata)
            broker.on(DeleteTopicsRequest, done)
        with Admin(cluster.bootstrap_servers, retry_backoff_ms=5, default_api_timeout_ms=20_000) as admin:
            yield cluster, admin


@pytest.mark.parametrize("change", ["moves", "dies", "hangs up"])
def test_a_controller_that_is_not_there_any_more_is_looked_up_again(change: str) -> None:
    controller = 2
    moved = DeleteTopicsResponse(
        responses=[DeletableTopicResult(name="a", error_code=ErrorCode.NOT_CONTROLLER)]
    )
    with deleting(lambda: controller) as (cluster, admin):
        admin.delete_topics(["a"])
        assert len(cluster[2].requests(DeleteTopicsRequest)) == 1
        controller = 3
        if change == "dies":
            cluster[2].stop()
        else:
            cluster[2].on(DeleteTopicsRequest, HangUp if change == "hangs up" else moved)
        admin.delete_topics(["a"])
        asked = {node_id: len(cluster[node_id].requests(DeleteTopicsRequest)) for node_id in (1, 3)}
    assert asked == {1: 0, 3: 1}


@pytest.mark.parametrize("named", [9, -1])
def test_any_broker_is_asked_for_a_controller_that_is_none_of_the_brokers(named: int) -> None:
    """With KRaft each of them forwards the request; to wait for a controller would end in a timeout."""
    with deleting(lambda: named) as (cluster, admin):
        admin.delete_topics(["a"])
        assert sum(len(one.requests(DeleteTopicsRequest)) for one in cluster.brokers.values()) == 1


@pytest.mark.parametrize("given", [True, False])
def test_a_request_to_a_coordinator_has_the_time_of_its_caller(given: bool) -> None:
    """Else that of the configuration: with its retries it could take far longer than a caller waits."""
    limits: list[Deadline] = []

    def retry(operation: Any, *, what: str, deadline: Deadline, **_: Any) -> Any:
        limits.append(deadline)
        return operation()

    def send_to(node_id: int, request: Any, deadline: Deadline, *_: Any) -> int:
        limits.append(deadline)
        return node_id

    own, of_config = Deadline.after_ms(60_000), Deadline.after_ms(60_000)
    coordinators: Any = SimpleNamespace(get=lambda _: 7)
    router: Any = SimpleNamespace(
        retry=retry, send_to=send_to, coordinators=coordinators, deadline=lambda: of_config
    )
    request: Any = OffsetFetchRequest
    assert send_to_coordinator(router, GROUP, request, lambda node_id: node_id, own if given else None) == 7
    assert limits == [own if given else of_config] * 2
