"""Which brokers a router asks, in which order and how long, with literals: no socket."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.waiting import eventually

from spark_kafka_native.kafka.cluster import router as router_module
from spark_kafka_native.kafka.cluster.router import Leader, Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    DeadlineExceededError,
    KafkaError,
    NetworkError,
    ProtocolError,
    SecurityError,
)
from spark_kafka_native.kafka.model import Broker, TopicPartition
from spark_kafka_native.kafka.network.pending_response import PendingResponse
from spark_kafka_native.kafka.protocol.api.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline

ID = UUID(int=5)
REQUEST = MetadataRequest(topics=[])


def topic(name: str, *leaders: int, error: ErrorCode = ErrorCode.NONE) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=error,
        name=name,
        topic_id=ID,
        partitions=[
            MetadataResponsePartition(
                error_code=ErrorCode.NONE,
                partition_index=index,
                leader_id=leader,
                leader_epoch=7 + index,
                replica_nodes=[1, 2],
                isr_nodes=[1],
            )
            for index, leader in enumerate(leaders)
        ],
    )


def metadata(*topics: MetadataResponseTopic, brokers: tuple[int, ...] = (1, 2)) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host=f"b{n}", port=9092) for n in brokers],
        cluster_id="c",
        controller_id=1,
        topics=list(topics),
    )


class FakeConnection:
    """Returns the answers of its broker; raises those that are errors."""

    channel, has_unwritten, address, opened_at, closed = "", False, "elsewhere:1", -math.inf, False

    def __init__(self, name: str, brokers: FakeBrokers, muted_ms: int = 0, in_flight: int = 0) -> None:
        self.name, self.brokers, self.muted_ms, self.in_flight = name, brokers, muted_ms, in_flight

    def send(self, request: Any, timeout_ms: float | None = None, deadline: Deadline | None = None) -> Any:
        self.brokers.sent.append((self.name, request, timeout_ms, deadline))
        answers = self.brokers.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def submit(self, request: Any, *, deadline: Deadline | None = None) -> Any:
        carrier: Any = SimpleNamespace(
            request_timeout_ms=60_000, wait_for=lambda pending, _: pending.done, poll=lambda: None
        )
        pending: PendingResponse[Any] = PendingResponse(carrier, 1, "Metadata", 9)
        pending.complete(self.send(request, None, deadline), None)
        return pending


class Silent(FakeConnection):
    """Answers nothing."""

    def submit(self, request: Any, *, deadline: Deadline | None = None) -> Any:
        pending = super().submit(request, deadline=deadline)
        pending.done = False
        return pending


def gone(*nodes: int) -> dict[int, Exception]:
    return {node: NetworkError(f"broker {node} is gone") for node in nodes}


class FakeBrokers:
    def __init__(self) -> None:
        self.answers: list[Any] = [metadata()]
        self.sent: list[tuple[str, Any, float | None, Deadline | None]] = []
        self.connected: list[tuple[int, float, str]] = []
        self.idle: list[FakeConnection] = []
        self.refused: dict[int, Exception] = {}
        self.silent: set[int] = set()
        self.down: set[int] = set()
        self.outages = SimpleNamespace(error=lambda node: NetworkError("down") if node in self.down else None)
        self.clock = 0.0
        self.started_again = 0

    @property
    def asked(self) -> list[str]:
        return [name for name, *_ in self.sent]

    def connection(self, broker: Any, deadline: Deadline, channel: str = "") -> FakeConnection:
        self.connected.append((broker.node_id, deadline.remaining_ms, channel))
        if broker.node_id in self.refused:
            raise self.refused[broker.node_id]
        if broker.node_id in self.silent:
            self.clock += min(deadline.remaining_ms / 1000, 10.0)
            self.down.add(broker.node_id)
            raise NetworkError(f"broker {broker.node_id} is silent")
        return FakeConnection(f"broker {broker.node_id}", self)

    def live(self) -> list[FakeConnection]:
        return list(self.idle)

    def bootstrap(self, deadline: Deadline) -> FakeConnection:
        self.connected.append((-1, deadline.remaining_ms, ""))
        return FakeConnection("bootstrap", self)

    def start_again(self) -> None:
        self.started_again += 1


@pytest.fixture
def brokers() -> FakeBrokers:
    return FakeBrokers()


@pytest.fixture
def router(brokers: FakeBrokers) -> Router:
    """It knows brokers 1 and 2 and topic t, with partitions led by 1, by no broker, and by broker 9, which is
    unknown."""
    config = ClientConfig.from_properties(
        {
            "bootstrap.servers": "a:1,b:2",
            "default.api.timeout.ms": "5000",
            "retry.backoff.ms": "1",
            "retry.backoff.max.ms": "1",
        }
    )
    fake: Any = brokers
    known = Router(config, fake)
    brokers.answers = [metadata(topic("t", 1, -1, 9))]
    known.metadata()
    brokers.connected.clear()
    brokers.sent.clear()
    return known


class TestLeaders:
    def test_a_leader_comes_with_its_epoch_and_the_topics_id(self, router: Router) -> None:
        assert router.leader(TopicPartition("t", 0)) == Leader(1, 7, ID)

    @pytest.mark.parametrize("partition", [1, 2])
    def test_nobody_and_an_unknown_broker_are_no_leader(self, router: Router, partition: int) -> None:
        with pytest.raises(BrokerError, match=f"partition t-{partition}") as caught:
            router.leader(TopicPartition("t", partition))
        assert caught.value.error_code is ErrorCode.LEADER_NOT_AVAILABLE

    def test_the_leaders_of_many_take_one_request(self, router: Router, brokers: FakeBrokers) -> None:
        brokers.answers = [metadata(topic("u", 1), topic("v", 2, 1))]
        wanted = [TopicPartition("u", 0), TopicPartition("v", 1), TopicPartition("v", 0)]
        assert router.leaders(wanted) == {
            wanted[0]: Leader(1, 7, ID),
            wanted[1]: Leader(1, 8, ID),
            wanted[2]: Leader(2, 7, ID),
        }
        (request,) = [request for _, request, *_ in brokers.sent]
        assert [asked.name for asked in request.topics] == ["u", "v"]
        assert request.allow_auto_topic_creation is False


class TestFreshness:
    def test_what_is_known_is_not_asked_for(self, router: Router, brokers: FakeBrokers) -> None:
        for topics in (("t",), (), None):
            assert router.metadata(topics) is router.snapshot
        assert not brokers.sent
        router.metadata(("t",), refresh=True)
        assert len(brokers.sent) == 1

    def test_each_topic_has_an_age_of_its_own_and_stays_known_when_others_are_asked_about(
        self, router: Router, brokers: FakeBrokers
    ) -> None:
        brokers.answers = [metadata(topic("u", 1))]
        router.metadata(("u",))
        assert set(router.snapshot.topics) == {"t", "u"}
        for names in (("t",), ("u",), ("t", "u")):
            router.metadata(names)
        assert len(brokers.sent) == 1
        age_s = router.config.metadata_max_age_ms / 1000
        router._fetched_at["u"] -= age_s - 1
        router.metadata(("u",))
        assert len(brokers.sent) == 1
        router._fetched_at["u"] -= 2
        router.metadata(("t",))
        assert len(brokers.sent) == 1
        router._fetched_at["t"] -= age_s + 1
        router.metadata(("u",))  # says nothing about t
        assert len(brokers.sent) == 2
        router.metadata(("t", "u"))
        assert len(brokers.sent) == 3

    def test_a_leader_is_asked_about_by_its_topic(self, router: Router, brokers: FakeBrokers) -> None:
        brokers.answers = [metadata(topic("u", 2))]
        assert router.leader(TopicPartition("u", 0)).node_id == 2
        assert [[asked.name for asked in request.topics] for _, request, *_ in brokers.sent] == [["u"]]

    def test_metadata_are_waited_for_until_the_deadline_given(
        self, router: Router, brokers: FakeBrokers
    ) -> None:
        brokers.answers = [NetworkError("no")]
        with pytest.raises(DeadlineExceededError, match="asking for metadata"):
            router.metadata(refresh=True, deadline=Deadline.after_ms(20))
        assert router.deadline(50_000).remaining_ms > 40_000
        assert router.deadline().remaining_ms <= 5_000

    @pytest.mark.parametrize(
        ("topics", "named"),
        [
            (None, "asking for metadata did"),
            ((), "asking for metadata did"),
            (("u",), "asking for metadata of topic u did"),
            (("v", "u"), "asking for metadata of topics u, v did"),
            ([f"u{i}" for i in range(6)], "asking for metadata of topics u0, u1, u2 and 3 more did"),
        ],
    )
    def test_an_error_names_the_topics_that_were_asked_for(
        self, router: Router, brokers: FakeBrokers, topics: Sequence[str] | None, named: str
    ) -> None:
        brokers.answers = [NetworkError("no")]
        with pytest.raises(DeadlineExceededError, match=named):
            router.metadata(topics, refresh=True, deadline=Deadline.after_ms(20))

    def test_one_of_many_that_is_unknown_or_was_in_error_is_asked_for_again(
        self, router: Router, brokers: FakeBrokers
    ) -> None:
        brokers.answers = [metadata(topic("u", error=ErrorCode.LEADER_NOT_AVAILABLE))]
        router.metadata(("t", "u"))
        router.metadata(("t", "u"))
        assert len(brokers.sent) == 2

    @pytest.mark.parametrize(("create", "requests"), [(False, 2), (True, 3)])
    def test_threads_that_need_the_same_share_a_request_that_began_after_they_asked(
        self, router: Router, monkeypatch: pytest.MonkeyPatch, create: bool, requests: int
    ) -> None:
        """Each asked by itself, one after the other: of fifty some had no time left."""
        asked, gate, is_asked = [], threading.Event(), threading.Event()

        def look_up(request: Any, _deadline: Deadline) -> Any:
            asked.append(request)
            is_asked.set()
            assert gate.wait(60)
            return metadata(topic("t", 2, 2, 2))

        monkeypatch.setattr(router, "look_up", look_up)
        limit = Deadline.after_ms(60_000)
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(router.refresh, ("t",), limit)
            assert is_asked.wait(60)
            later = [pool.submit(router.refresh, ("t",), limit, create=create) for _ in range(2)]
            eventually(lambda: router._refreshes._released.waiting == 2)
            gate.set()
            found = [one.result(60) for one in (first, *later)]
        assert len(asked) == requests, "the first one may be older than the reason of the others"
        assert [one.topics["t"].partitions[0].leader for one in found] == [2] * 3
        router.refresh((), limit)
        assert len(asked) == requests + 1

    @pytest.mark.parametrize(
        ("wanted", "asked_meanwhile", "shared"),
        [
            (("t", "u"), ("t", "u", "v"), True),
            (("t", "u"), ("t",), False),
            (("t", "u"), None, True),
            (("t", "x"), None, False),
            (None, None, True),
            (None, ("t", "u", "v"), False),
            ((), None, False),
        ],
    )
    def test_a_request_is_shared_only_if_it_covers_each_topic(
        self,
        router: Router,
        brokers: FakeBrokers,
        monkeypatch: pytest.MonkeyPatch,
        wanted: tuple[str, ...] | None,
        asked_meanwhile: tuple[str, ...] | None,
        shared: bool,
    ) -> None:
        """Otherwise a former leader would be asked again, or a topic that exists would be unknown."""
        brokers.answers = [metadata(topic("t", 2), topic("u", 2), topic("v", 2))]
        limit, run = Deadline.after_ms(60_000), router._refreshes.run

        def wait_for_another_thread(*arguments: Any) -> Any:
            monkeypatch.setattr(router._refreshes, "run", run)
            router.refresh(asked_meanwhile, limit)
            return run(*arguments)

        monkeypatch.setattr(router._refreshes, "run", wait_for_another_thread)
        router.refresh(wanted, limit)
        assert len(brokers.sent) == (1 if shared else 2)

    def test_no_topics_are_known_only_with_brokers(self, brokers: FakeBrokers) -> None:
        fake: Any = brokers
        fresh = Router(ClientConfig.from_properties({"bootstrap.servers": "a:1"}), fake)
        fresh.metadata(())
        assert len(brokers.sent) == 1
        fresh.metadata(())
        assert len(brokers.sent) == 1
        fresh.metadata()  # all topics: that was not asked for yet
        assert [request.topics for _, request, *_ in brokers.sent] == [[], None]

    def test_an_answer_that_is_an_error_teaches_nothing(self, router: Router, brokers: FakeBrokers) -> None:
        before = router.snapshot
        brokers.answers = [SimpleNamespace(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
        with pytest.raises(BrokerError, match="Metadata: CLUSTER_AUTHORIZATION_FAILED"):
            router.refresh(("t",), Deadline.after_ms(100))
        assert router.snapshot is before


class TestSending:
    def test_a_broker_that_is_not_known_is_named(self, router: Router) -> None:
        with pytest.raises(BrokerError, match=r"broker 9: BROKER_NOT_AVAILABLE .the metadata do not name it"):
            router.connection(9)

    def test_the_deadline_the_timeout_and_the_channel_are_passed_on(
        self, router: Router, brokers: FakeBrokers
    ) -> None:
        deadline = Deadline.after_ms(60_000)
        router.send_to(2, REQUEST, deadline, 1234)
        assert brokers.sent == [("broker 2", REQUEST, 1234, deadline)]
        router.connection(1, deadline, "produce-0")
        assert [(node, channel) for node, _, channel in brokers.connected] == [(2, ""), (1, "produce-0")]
        assert all(50_000 < left <= 60_000 for _, left, _ in brokers.connected)

    def test_without_a_deadline_it_is_the_configs(self, router: Router, brokers: FakeBrokers) -> None:
        router.send_to(2, REQUEST)
        ((_, _, timeout_ms, deadline),) = brokers.sent
        assert timeout_ms is None
        assert deadline is not None
        assert deadline.remaining_ms <= 5_000
        assert brokers.connected[0][1] <= 5_000

    def test_first_who_is_idle_then_who_is_known_then_the_bootstrap_servers(
        self, router: Router, brokers: FakeBrokers
    ) -> None:
        brokers.idle = [
            FakeConnection("muted", brokers, muted_ms=5),
            FakeConnection("busy", brokers, in_flight=3),
            FakeConnection("idle", brokers),
        ]
        brokers.refused = gone(2)
        brokers.answers = [NetworkError(f"no {n}") for n in (1, 2, 3, 4)] + [metadata()]
        deadline = Deadline.after_ms(60_000)
        assert router.ask_any(REQUEST, deadline) is brokers.answers[0]
        assert brokers.asked == ["idle", "busy", "muted", "broker 1", "bootstrap"]
        assert all(sent[1:] == (REQUEST, None, deadline) for sent in brokers.sent)
        # Half of the rest at most, or brokers that are gone would leave no time for the others.
        assert [node for node, _, _ in brokers.connected] == [1, 2, -1]
        assert all(14_000 < left <= 15_000 for _, left, _ in brokers.connected[:2])

    @pytest.mark.parametrize(
        ("way", "waits_ms"),
        [("ask_any", [math.inf] * 7), ("look_up", [3_000, 3_000, 3_000, 0, 0, 3_000, math.inf])],
    )
    def test_only_a_look_up_goes_to_several_brokers_at_once(
        self,
        router: Router,
        brokers: FakeBrokers,
        monkeypatch: pytest.MonkeyPatch,
        way: str,
        waits_ms: list[float],
    ) -> None:
        """A request that changes something would be done by each of them."""
        brokers.idle = [FakeConnection(f"idle {n}", brokers) for n in range(6)]
        for one in brokers.idle:
            monkeypatch.setattr(one, "opened_at", time.monotonic())
        waited: list[float] = []

        def first(asked: Any, timeout_ms: float) -> Any:
            assert len(brokers.asked) == min(len(waited) + 1, 6)
            waited.append(timeout_ms)
            return "late" if len(waited) == 7 else None

        monkeypatch.setattr(router_module._Asked, "first", first)
        assert getattr(router, way)(REQUEST, Deadline.after_ms(60_000)) == "late"
        assert waited == waits_ms

    @pytest.mark.parametrize(
        ("hangs_up", "channel", "connected"), [(False, "", [2]), (True, "", [1, 2]), (False, "join", [1, 2])]
    )
    def test_a_broker_is_connected_to_unless_it_was_asked_on_a_connection_that_is_still_open(
        self, router: Router, brokers: FakeBrokers, hangs_up: bool, channel: str, connected: list[int]
    ) -> None:
        """A broker that has just restarted has closed its connections; a channel may hold an answer back."""
        live = FakeConnection("live", brokers)
        live.address, live.channel = "b1:9092", channel

        def submit(*_: Any, **__: Any) -> Any:
            live.closed = hangs_up
            raise NetworkError("refused")

        live.submit = submit  # type: ignore[method-assign]
        brokers.idle, brokers.refused = [live], gone(1, 2)
        router.look_up(REQUEST, Deadline.after_ms(60_000))
        assert sorted(node for node, _, _ in brokers.connected if node > 0) == connected

    def test_a_quota_that_ends_comes_before_a_connection_without_room(
        self, router: Router, brokers: FakeBrokers
    ) -> None:
        """A broker that reads nothing may be dead: a look-up waited for two request timeouts."""
        stuck = FakeConnection("stuck", brokers)
        stuck.has_unwritten = True
        brokers.idle = [stuck, FakeConnection("muted", brokers, muted_ms=300)]
        router.look_up(REQUEST, Deadline.after_ms(60_000))
        assert brokers.asked == ["muted"]

    def test_while_answers_may_come_a_connection_has_little_time(
        self, router: Router, brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are not seen meanwhile: to connect to a black hole made each slow answer slower."""
        monkeypatch.setattr(router_module, "NEXT_AFTER_MS", 5)
        for idle, least, most in (([], 10_000, 15_000), ([Silent("silent", brokers)], 0, 5)):
            brokers.connected.clear()
            brokers.idle, brokers.refused = idle, gone(1, 2)
            router.look_up(REQUEST, Deadline.after_ms(60_000))
            times = [left for _, left, _ in brokers.connected[:2]]
            assert [least < left <= most for left in times] == [True, True], times
            _, left, _ = brokers.connected[2]
            assert left <= (5 if idle else 60_000)
            assert left > (0 if idle else 50_000)

    @pytest.mark.parametrize("answers", [True, False])
    @pytest.mark.parametrize("kind", [AuthenticationError, ConfigError])
    def test_refused_credentials_wait_for_the_brokers_that_were_asked_before(
        self,
        router: Router,
        brokers: FakeBrokers,
        monkeypatch: pytest.MonkeyPatch,
        answers: bool,
        kind: type[KafkaError],
    ) -> None:
        """One that has not loaded them yet ended the look-up that a slow one was about to answer; so did a
        file of certificates that is just being replaced.
        """
        monkeypatch.setattr(router_module, "NEXT_AFTER_MS", 5)
        slow = Silent("slow", brokers)
        brokers.idle = [slow]
        brokers.refused = dict.fromkeys((1, 2), kind("refused"))

        def first(asked: Any, timeout_ms: float) -> Any:
            return "late" if timeout_ms == math.inf and answers else None

        monkeypatch.setattr(router_module._Asked, "first", first)
        if answers:
            assert router.look_up(REQUEST, Deadline.after_ms(60_000)) == "late"
        else:
            with pytest.raises(kind):
                router.look_up(REQUEST, Deadline.after_ms(60_000))
        assert len(brokers.connected) == 1, "the account might be locked"

    @pytest.mark.parametrize(
        ("channel", "closed", "dials"), [("", False, 0), ("", True, 3), ("membership", False, 3)]
    )
    def test_a_recent_connection_that_is_silent_says_that_brokers_are_slow(
        self,
        router: Router,
        brokers: FakeBrokers,
        monkeypatch: pytest.MonkeyPatch,
        channel: str,
        closed: bool,
        dials: int,
    ) -> None:
        """But not one that was reset, nor that of a group: JoinGroup is held back there."""
        monkeypatch.setattr(router_module, "NEXT_AFTER_MS", 5)
        old, recent = (Silent(name, brokers) for name in ("old", "recent"))
        recent.channel, recent.closed, recent.opened_at = channel, closed, time.monotonic()
        brokers.idle, brokers.refused = [old, recent], gone(1, 2)
        monkeypatch.setattr(
            router_module._Asked,
            "first",
            lambda _, ms: "late" if ms == math.inf or brokers.connected[2:] else None,
        )
        assert router.look_up(REQUEST, Deadline.after_ms(60_000)) == "late"
        assert len(brokers.connected) == dials

    def test_all_failures_are_told_each_once(self, router: Router, brokers: FakeBrokers) -> None:
        brokers.refused = gone(1, 2)
        brokers.answers = [NetworkError("broker 1 is gone")]
        with pytest.raises(NetworkError) as caught:
            router.ask_any(REQUEST, Deadline.after_ms(60_000))
        assert str(caught.value) == "no broker answered Metadata: broker 1 is gone; broker 2 is gone"

    def test_a_single_failure_is_itself(self, brokers: FakeBrokers) -> None:
        fake: Any = brokers
        fresh = Router(ClientConfig.from_properties({"bootstrap.servers": "a:1"}), fake)
        brokers.answers = [NetworkError("nobody")]
        with pytest.raises(NetworkError) as caught:
            fresh.ask_any(REQUEST, Deadline.after_ms(60_000))
        assert caught.value is brokers.answers[0]

    def test_after_the_deadline_nobody_is_asked(self, router: Router, brokers: FakeBrokers) -> None:
        with pytest.raises(NetworkError, match="no broker answered Metadata: no time was left"):
            router.ask_any(REQUEST, Deadline.after_ms(0))
        assert not brokers.sent

    def test_a_refusal_of_credentials_is_not_taken_to_the_next_broker(
        self, router: Router, brokers: FakeBrokers
    ) -> None:
        brokers.answers = [AuthenticationError("the password is wrong")]
        with pytest.raises(AuthenticationError):
            router.send_any(REQUEST)
        assert brokers.asked == ["broker 1"]

    @pytest.mark.parametrize(
        "error", [ProtocolError("it is HTTP"), SecurityError("an old certificate")], ids=str
    )
    def test_a_broker_that_is_none_keeps_no_other_from_being_asked(
        self, router: Router, brokers: FakeBrokers, error: Exception
    ) -> None:
        """Its error ended each look-up, though the others and the bootstrap servers were well."""
        brokers.refused = {1: error}
        assert router.ask_any(REQUEST, Deadline.after_ms(60_000)) is brokers.answers[0]
        brokers.refused = {1: error, 2: error}
        router.ask_any(REQUEST, Deadline.after_ms(60_000))
        assert brokers.asked == ["broker 2", "bootstrap"]
        brokers.answers = [error]
        with pytest.raises(type(error), match=f"no broker answered Metadata: {error}"):
            router.ask_any(REQUEST, Deadline.after_ms(60_000))

    def test_silent_brokers_leave_half_of_the_time_to_the_bootstrap_servers(
        self, router: Router, brokers: FakeBrokers
    ) -> None:
        """With ten of them nothing else was asked, each time anew."""
        brokers.silent = set(range(1, 21))
        router._metadata = replace(
            router.snapshot,
            brokers={node: Broker(node_id=node, host="h", port=node) for node in range(1, 21)},
        )
        router.ask_any(REQUEST, Deadline.after_ms(60_000, clock=lambda: brokers.clock))
        *known, (_, left_ms, _) = brokers.connected
        assert [round(ms, -2) for _, ms, _ in known] == [15_000, 10_000, 5_000, 2_500]
        assert (brokers.asked, left_ms >= 30_000) == (["bootstrap"], True)

    def test_brokers_that_did_not_answer_before_are_asked_last(
        self, router: Router, brokers: FakeBrokers
    ) -> None:
        brokers.down = {1}
        router.ask_any(REQUEST, Deadline.after_ms(60_000))
        assert brokers.asked == ["broker 2"]

    def test_a_broker_that_has_left_the_cluster_sends_clients_to_the_bootstrap_servers(
        self, router: Router, brokers: FakeBrokers
    ) -> None:
        """KIP-1102. It was an error, and the next request went to the same broker."""
        brokers.answers = [
            replace(metadata(), error_code=ErrorCode.REBOOTSTRAP_REQUIRED),
            metadata(topic("u", 1)),
        ]
        assert "u" in router.refresh({"u"}, Deadline.after_ms(60_000)).topics
        assert (brokers.asked, brokers.started_again) == (["broker 1", "bootstrap"], 1)

    def test_a_bootstrap_server_of_the_former_cluster_is_not_the_last_word(
        self, router: Router, brokers: FakeBrokers
    ) -> None:
        brokers.answers = [replace(metadata(), error_code=ErrorCode.REBOOTSTRAP_REQUIRED)] * 2 + [
            metadata(topic("u", 1))
        ]
        assert "u" in router.metadata({"u"}, refresh=True).topics

    def test_send_any_asks_until_one_answers(self, router: Router, brokers: FakeBrokers) -> None:
        # Two rounds over brokers 1 and 2 and the bootstrap servers.
        brokers.answers = [NetworkError("no")] * 4 + [metadata()]
        deadline = Deadline.after_ms(60_000)
        assert router.send_any(REQUEST, deadline) is brokers.answers[0]
        assert brokers.asked == ["broker 1", "broker 2", "bootstrap", "broker 1", "broker 2"]
        assert all(sent[3] is deadline for sent in brokers.sent)

    def test_send_any_ends_with_the_configs_time(self, router: Router, brokers: FakeBrokers) -> None:
        brokers.answers = [NetworkError("no")]
        router.config = replace(router.config, default_api_timeout_ms=1_000)
        with pytest.raises(DeadlineExceededError, match=r"Metadata.*no broker answered"):
            router.send_any(REQUEST)
        assert len(brokers.sent) > 3

    def test_between_two_attempts_the_topics_are_asked_about(
        self, router: Router, brokers: FakeBrokers
    ) -> None:
        failures = [NetworkError("first"), NetworkError("second")]
        told: list[Exception] = []

        def operation() -> str:
            if failures:
                raise failures.pop(0)
            return "done"

        assert router.retry(operation, what="it", topics=("t",), between=told.append) == "done"
        assert [str(error) for error in told] == ["first", "second"]
        assert [[t.name for t in request.topics] for _, request, *_ in brokers.sent] == [["t"], ["t"]]
