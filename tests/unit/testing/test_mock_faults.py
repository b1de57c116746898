"""What the faults of a `MockBroker` do to each API, in frames that follow Kafka's specification."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import trustme
from support.brokers.framed_client import WITHIN_S, Peer

from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.testing import Effect, MockBroker
from spark_kafka_native.testing.mock.groups import ClassicGroupMember
from spark_kafka_native.testing.mock.listener import Listener
from spark_kafka_native.testing.mock.message_spec import message_specs
from spark_kafka_native.testing.mock.script import MockRequest

REFUSED = 29  # TOPIC_AUTHORIZATION_FAILED
OF_COORDINATORS = ("FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup")
WITH_ONE_CODE = ("DescribeCluster", "InitProducerId", "ListGroups", *OF_COORDINATORS)


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.create_topic("b")
        yield broker


@pytest.fixture
def peer(broker: MockBroker) -> Iterator[Peer]:
    with closing(Peer(broker.bootstrap_servers)) as peer:
        yield peer


GROUPED = {"group_id": "g", "member_id": "nobody", "generation_id": 1}
ASKED: dict[str, tuple[int, dict[str, Any]]] = {
    "Produce": (
        9,
        {"acks": 1, "topic_data": [{"name": "a", "partition_data": [{"index": 0, "records": b""}]}]},
    ),
    "Fetch": (4, {"topics": [{"topic": "a", "partitions": [{"partition": 0}]}]}),
    "ListOffsets": (3, {"topics": [{"name": "a", "partitions": [{"partition_index": 0, "timestamp": -1}]}]}),
    "OffsetForLeaderEpoch": (4, {"topics": [{"topic": "a", "partitions": [{"partition": 0}]}]}),
    "DeleteRecords": (2, {"topics": [{"name": "a", "partitions": [{"partition_index": 0}]}]}),
    "Metadata": (9, {"topics": [{"name": "a"}]}),
    "CreateTopics": (5, {"topics": [{"name": "a", "num_partitions": 1, "replication_factor": 1}]}),
    "DeleteTopics": (5, {"topic_names": ["a"]}),
    "CreatePartitions": (3, {"topics": [{"name": "a", "count": 2, "assignments": None}]}),
    "DescribeConfigs": (4, {"resources": [{"resource_type": 2, "resource_name": "a"}]}),
    "OffsetCommit": (8, {"group_id": "g", "topics": [{"name": "a", "partitions": [{"partition_index": 0}]}]}),
    "OffsetFetch": (1, {"group_id": "g", "topics": [{"name": "a", "partition_indexes": [0]}]}),
    "DescribeCluster": (1, {}),
    "InitProducerId": (4, {"transactional_id": None}),
    "ListGroups": (4, {}),
    "FindCoordinator": (3, {"key": "g"}),
    "JoinGroup": (2, {"group_id": "g", "protocols": [{"name": "range", "metadata": b""}]}),
    "SyncGroup": (4, GROUPED),
    "Heartbeat": (4, GROUPED),
    "LeaveGroup": (4, {"group_id": "g", "members": []}),
}


def codes(told: Any) -> set[int]:
    """Every error code in an answer."""
    if isinstance(told, list):
        return set[int]().union(*map(codes, told))
    if not isinstance(told, dict):
        return set()
    own = {told["error_code"]} if "error_code" in told else set()
    return own.union(*map(codes, told.values()))


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("api", ASKED)
def test_a_refusal_is_told(broker: MockBroker, peer: Peer, api: str, applied: bool) -> None:
    version, fields = ASKED[api]
    about = {} if api in WITH_ONE_CODE else {"topic": "a"}
    fault = broker.on(api, **about).fail(REFUSED, applied=applied)
    broker.on(api, topic="b", times=None).fail("UNKNOWN_SERVER_ERROR")

    told = peer.ask(api, fields, version)

    assert REFUSED in codes(told)
    assert fault.used == 1
    assert codes(told) <= {0, REFUSED}


@pytest.mark.parametrize("applied", [False, True])
def test_what_is_refused_is_done_only_where_that_is_applied(
    broker: MockBroker, peer: Peer, applied: bool
) -> None:
    members = broker.groups.group("h").members
    members["m"] = ClassicGroupMember(None, 600.0, 600.0, time.monotonic())
    offset = {"partition_index": 0, "committed_offset": 5}
    own = {"member_id": "", "generation_id_or_member_epoch": -1}
    for api, fields in {
        "CreateTopics": {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]},
        "CreatePartitions": {"topics": [{"name": "a", "count": 2, "assignments": None}]},
        "DeleteTopics": {"topic_names": ["b"]},
        "OffsetCommit": {"group_id": "g", **own, "topics": [{"name": "a", "partitions": [offset]}]},
        "InitProducerId": {"transactional_id": "t"},
        "LeaveGroup": {"group_id": "h", "members": [{"member_id": "m"}]},
    }.items():
        broker.on(api).fail(REFUSED, applied=applied)
        assert codes(peer.ask(api, fields, {"OffsetCommit": 8, "CreatePartitions": 3}.get(api, 4))) == {
            REFUSED
        } | ({0} if api == "LeaveGroup" and applied else set())
    topics = broker.cluster.topics
    done = [
        "new" in topics,
        len(topics["a"].partitions) == 2,
        "b" not in topics,
        broker.committed("g") == {TopicPartition("a", 0): 5},
        "t" in broker.transactions.by_id,
        "m" not in members,
    ]
    assert done == [applied] * len(done)


def test_a_refusal_of_what_a_mock_can_not_do_is_told(broker: MockBroker, peer: Peer) -> None:
    broker.on("DescribeAcls").fail(REFUSED)
    assert codes(peer.ask("DescribeAcls", {"resource_type_filter": 2}, 2)) == {REFUSED}


def test_a_gate_that_stays_shut_does_not_hold_up_the_end() -> None:
    with MockBroker() as broker, closing(Peer(broker.bootstrap_servers)) as peer:
        broker.on("ListGroups").hold(threading.Event())
        peer.send("ListGroups", {}, 4)
        broker.wait_for("ListGroups")


def test_a_pause_within_an_answer_does_not_hold_up_the_end() -> None:
    broker = MockBroker()
    broker.on("ListGroups").dribble(1, 600)
    with closing(Peer(broker.bootstrap_servers)) as peer:
        peer.send("ListGroups", {}, 4)
        assert len(peer.read(1)) == 1
        closed = threading.Thread(target=broker.close, daemon=True)
        closed.start()
        closed.join(WITHIN_S)
        assert not closed.is_alive()


def test_bytes_to_corrupt_are_counted_from_behind_the_length(broker: MockBroker, peer: Peer) -> None:
    for byte, correlation_id in ((0, b"\xff\0\0\7"), (3, b"\0\0\0\xf8")):
        broker.on("ListGroups").corrupt(byte)
        peer.send("ListGroups", {}, 4)
        (length,) = struct.unpack(">i", peer.read(4))
        assert peer.read(length)[:4] == correlation_id


def test_a_fault_of_one_broker_leaves_the_others_alone() -> None:
    with MockBroker(2) as brokers:
        fault = brokers.on("ListGroups", node_id=2, times=None).fail(REFUSED)
        found = []
        for address in brokers.bootstrap_servers.split(","):
            with closing(Peer(address)) as peer:
                found.append(peer.ask("ListGroups", {}, 4)["error_code"])
        assert (found, fault.used) == ([0, REFUSED], 1)


@pytest.mark.parametrize("version", [1, 2, 7, 8])
def test_offsets_that_cannot_be_fetched_are_not_none(broker: MockBroker, peer: Peer, version: int) -> None:
    """A client that reads "nothing is committed" would begin anew."""
    asked = {"group_id": "g", "topics": [{"name": "a", "partition_indexes": [0]}]}
    fields: dict[str, Any] = asked if version < 8 else {"groups": [asked]}
    broker.on("OffsetFetch").fail(REFUSED)
    assert REFUSED in codes(peer.ask("OffsetFetch", fields, version))

    broker.on("OffsetFetch", topic="a", partition=0).fail(REFUSED)
    told = peer.ask("OffsetFetch", fields, version)
    (topic,) = (told if version < 8 else told["groups"][0])["topics"]
    assert topic["partitions"][0]["error_code"] == REFUSED


def test_records_of_other_topics_stay_as_they_are(broker: MockBroker, peer: Peer) -> None:
    for topic in ("a", "b"):
        broker.append(topic, [b"value"])
    broker.on("Fetch", topic="a").corrupt_records()
    read = [{"topic": topic, "partitions": [{"partition": 0, "partition_max_bytes": 99}]} for topic in "ab"]

    told = peer.ask("Fetch", {"topics": read, "max_bytes": 999}, 11)["responses"]

    found = {topic["topic"]: topic["partitions"][0]["records"] for topic in told}
    assert found["a"] != broker.batches("a")[0]
    assert found["b"] == broker.batches("b")[0]


def test_a_fault_is_not_used_up_before_it_is_told_what_happens(broker: MockBroker, peer: Peer) -> None:
    fault = broker.on("ListGroups", after=1)
    for _ in range(3):  # of a client that does not wait for the test
        peer.ask("ListGroups", {}, 4)
    assert fault.used == 1

    fault.fail(REFUSED)
    told = [peer.ask("ListGroups", {}, 4)["error_code"] for _ in range(3)]
    assert told == [0, REFUSED, 0]


def test_an_ignored_request_is_neither_carried_out_nor_answered(broker: MockBroker, peer: Peer) -> None:
    broker.on("CreateTopics").ignore()
    peer.send("CreateTopics", {"topics": [{"name": "c", "num_partitions": 1}]}, 5)
    peer.send("ListGroups", {}, 4)
    peer.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        peer.read(1)
    with pytest.raises(ValueError, match="no partition 0 of a topic c"):
        broker.leader("c")


def test_an_answer_dribbles(broker: MockBroker, peer: Peer) -> None:
    broker.on("ListGroups").dribble(1, 0.02)
    began = time.monotonic()
    assert peer.ask("ListGroups", {}, 4)["groups"] == []
    assert time.monotonic() - began >= 0.2
    with pytest.raises(ValueError, match="piece is 0"):
        broker.on("ListGroups").dribble(0, 1)


def test_a_reply_of_none_is_no_answer(broker: MockBroker, peer: Peer) -> None:
    broker.on("ListGroups").reply(lambda _: None)
    peer.send("ListGroups", {}, 4)
    assert peer.ask("Metadata", {"topics": []}, 9)["topics"] == []


def test_a_fault_answers_a_version_that_is_not_offered(broker: MockBroker, peer: Peer) -> None:
    """EndTxn from version 5 on is KIP-890's, which the mock has not."""
    broker.on("EndTxn").reply({"producer_epoch": 3})
    end = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 2, "committed": True}
    assert peer.ask("EndTxn", end, 5)["producer_epoch"] == 3


def test_an_api_that_only_the_script_knows_is_offered_after_its_last_answer(
    broker: MockBroker, peer: Peer
) -> None:
    """A client that connects again would find other versions."""

    def offered() -> dict[int, tuple[int, int]]:
        keys = peer.ask("ApiVersions", {}, 2)["api_keys"]
        return {one["api_key"]: (one["min_version"], one["max_version"]) for one in keys}

    before = offered()
    broker.on("DescribeLogDirs", times=1).reply({"results": []})
    scripted = offered()
    assert scripted.keys() - before.keys() == {35}
    assert peer.ask("DescribeLogDirs", {"topics": None}, 1)["results"] == []
    assert offered() == scripted


def test_bytes_are_sent_in_place_of_an_answer(broker: MockBroker, peer: Peer) -> None:
    broker.on("CreateTopics").send(b"HTTP/1.1 400").cut(8)
    peer.send("CreateTopics", {"topics": [{"name": "c", "num_partitions": 1}]}, 5)
    assert peer.read(99) == b"HTTP/1.1"
    with pytest.raises(ValueError, match="no partition 0 of a topic c"):
        broker.leader("c")


def test_a_function_chooses_what_happens(broker: MockBroker, peer: Peer) -> None:
    def choose(request: MockRequest) -> Effect | None:
        refused = "b" in dict(request.places)
        return Effect().fail(REFUSED) if refused else None

    fault = broker.on("Metadata", topic="b", times=None).choose(choose)
    for asked, code in (("a", 0), ("b", REFUSED), ("a", 0)):
        (topic,) = peer.ask("Metadata", {"topics": [{"name": asked}]}, 9)["topics"]
        assert topic["error_code"] == code
    both = peer.ask("Metadata", {"topics": [{"name": "a"}, {"name": "b"}]}, 9)["topics"]
    assert [topic["error_code"] for topic in both] == [0, REFUSED]
    assert fault.used == 2


def test_faults_without_an_end_come_last(broker: MockBroker, peer: Peer) -> None:
    standing = broker.on("ListGroups", times=None).fail(REFUSED)
    broker.on("ListGroups", times=2).fail(7)
    newest = broker.on("ListGroups", times=None).fail(8)
    assert [peer.ask("ListGroups", {}, 4)["error_code"] for _ in range(4)] == [7, 7, 8, 8]
    newest.withdraw()
    assert peer.ask("ListGroups", {}, 4)["error_code"] == REFUSED
    standing.withdraw()
    assert peer.ask("ListGroups", {}, 4)["error_code"] == 0


def test_a_reply_begins_with_the_own_answer_of_the_broker(broker: MockBroker, peer: Peer) -> None:
    spec = message_specs()["MetadataResponse"]

    def lagging(request: MockRequest) -> dict[str, Any]:
        told = spec.read(broker.respond(request.api, request.body, version=request.version), request.version)
        return told | {"topics": []}

    broker.on("Metadata").reply(lagging)
    told = peer.ask("Metadata", {"topics": None}, 9)
    assert (told["topics"], len(told["brokers"])) == ([], 1)
    assert len(broker.requests) == 1  # what the function asked came over no connection
    fields = {"acks": 0, "topic_data": []}
    produce = message_specs()["ProduceRequest"].write(fields, 9)
    assert broker.respond("Produce", produce, version=9) == b""


def test_each_tagged_field_of_an_answer_has_its_own_value(broker: MockBroker, peer: Peer) -> None:
    tagged = {
        "diverging_epoch": {"epoch": 3, "end_offset": 40},
        "current_leader": {"leader_id": 5, "leader_epoch": 6},
        "snapshot_id": {"end_offset": 70, "epoch": 8},
    }
    there = {"topic": "a", "partitions": [{"partition_index": 0, **tagged}]}
    broker.on("Fetch").reply({"responses": [there]})
    fields = {"topics": [{"topic": "a", "partitions": [{"partition": 0}]}]}
    (topic,) = peer.ask("Fetch", fields, 12)["responses"]
    (found,) = topic["partitions"]
    assert {name: found[name] for name in tagged} == tagged


def test_a_reply_may_be_null_in_versions_that_allow_it_alone(broker: MockBroker, peer: Peer) -> None:
    broker.on("Metadata", times=2).reply({"topics": [{"name": None, "error_code": REFUSED}]})
    (topic,) = peer.ask("Metadata", {"topics": None}, 12)["topics"]
    assert (topic["name"], topic["error_code"]) == (None, REFUSED)
    peer.send("Metadata", {"topics": None}, 11)
    assert peer.read(1) == b"", "the connection is closed"
    with pytest.raises(RuntimeError, match=r"version 11, .* name of MetadataResponse v11 can't be null"):
        broker.close()


def test_a_request_knows_when_it_came_and_its_bytes(broker: MockBroker, peer: Peer) -> None:
    before = time.monotonic()
    peer.ask("Metadata", {"topics": [{"name": "a"}]}, 9)
    (request,) = broker.asked("Metadata")
    assert before <= request.at <= time.monotonic()
    assert message_specs()["MetadataRequest"].read(request.body, 9)["topics"][0]["name"] == "a"


def test_a_broker_dies_before_the_cluster_notices() -> None:
    with MockBroker(2) as brokers:
        first, second = brokers.bootstrap_servers.split(",")
        brokers.create_topic("a")
        brokers.stop(1, is_noticed=False)
        with pytest.raises(ConnectionRefusedError):
            Peer(first)
        with closing(Peer(second)) as peer:
            told = peer.ask("Metadata", {"topics": [{"name": "a"}]}, 9)
        assert [one["node_id"] for one in told["brokers"]] == [1, 2]
        assert told["topics"][0]["partitions"][0]["leader_id"] == 1
        brokers.start(1)
        with closing(Peer(first)) as peer:
            assert peer.ask("ListGroups", {}, 4)["error_code"] == 0


@pytest.mark.parametrize(
    ("api", "version", "key"), [("Metadata", 9, "node_id"), ("DescribeCluster", 1, "broker_id")]
)
def test_a_broker_that_is_stopped_is_not_in_the_cluster(api: str, version: int, key: str) -> None:
    with MockBroker(3) as brokers:
        third = brokers.bootstrap_servers.split(",")[2]
        with closing(Peer(third)) as peer:
            for change, running in ((brokers.stop, [2, 3]), (brokers.start, [1, 2, 3])):
                change(1)
                fields = {"topics": []} if api == "Metadata" else {}
                assert [one[key] for one in peer.ask(api, fields, version)["brokers"]] == running


def test_a_broker_refuses_new_connections_and_keeps_the_old(broker: MockBroker, peer: Peer) -> None:
    peer.ask("ListGroups", {}, 4)
    broker.refuse(1)
    with pytest.raises(ConnectionRefusedError):
        Peer(broker.bootstrap_servers)
    assert peer.ask("ListGroups", {}, 4)["error_code"] == 0
    broker.start(1)
    Peer(broker.bootstrap_servers).close()


@pytest.mark.skipif(sys.platform != "linux", reason="two sockets at one port")
def test_the_port_of_a_broker_that_refuses_is_free_at_no_moment(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process would take it, and the broker could not start again."""
    host, _, port = broker.bootstrap_servers.partition(":")
    close, tried = socket.socket.close, []

    def close_and_look(self: socket.socket) -> None:
        close(self)
        other = socket.socket()
        try:
            with pytest.raises(OSError, match="in use"):
                other.bind((host, int(port)))
            tried.append(port)
        finally:
            close(other)

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "close", close_and_look)
            broker.refuse(1)
        with pytest.raises(ConnectionRefusedError):
            Peer(broker.bootstrap_servers)
        broker.start(1)
    assert tried == [port, port]
    broker.close()
    with socket.create_server((host, int(port))):
        pass  # given back at the end


def go_wrong(broker: MockBroker) -> None:
    broker.on("ListGroups").reply({"gruops": []})
    with closing(Peer(broker.bootstrap_servers)) as peer:
        peer.send("ListGroups", {}, 4)
        assert peer.read(1) == b""


def test_a_script_that_goes_wrong_is_told_at_the_end() -> None:
    """Or a test would pass that has tried nothing of what it says."""
    with (
        pytest.raises(RuntimeError, match=r"ListGroups, version 4, was not answered: .* \['gruops'\]"),
        MockBroker() as broker,
    ):
        go_wrong(broker)
    broker = MockBroker()
    broker.on("ListGroups", when=lambda request: request.fields["nothing"])
    go_wrong(broker)
    with pytest.raises(RuntimeError, match="KeyError: 'nothing'"):
        broker.close()


def test_a_script_that_goes_wrong_while_the_brokers_stop_is_no_failure() -> None:
    broker, reached = MockBroker(), threading.Event()

    def fail(_: MockRequest) -> bytes:
        reached.set()
        with broker.cluster.changed:
            broker.cluster.changed.wait_for(lambda: not broker.cluster.running, WITHIN_S)
        raise IndexError

    broker.on("ListGroups").reply(fail)
    with closing(Peer(broker.bootstrap_servers)) as peer:
        peer.send("ListGroups", {}, 4)
        assert reached.wait(WITHIN_S)
        broker.close()
        assert peer.read(1) == b""


def test_what_a_test_raises_itself_comes_first() -> None:
    def test() -> None:
        with MockBroker() as broker:
            go_wrong(broker)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        test()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"\xff\xff\xff\xfe", "is no length of a request"),
        (b"\x16\x03\x01\x02", "is no length of a request"),  # TLS
        (b"GET / HTTP/1.1", "is no length of a request"),
        (b"\0\0\0\0", "a request can't be read"),
        (b"\0\0\0\x0a\0\x03\0\x09\0\0\0\0\0\x05", "a request can't be read"),  # Metadata, of a short name
    ],
)
def test_what_is_no_request_ends_the_connection(
    peer: Peer, caplog: pytest.LogCaptureFixture, sent: bytes, words: str
) -> None:
    with caplog.at_level(logging.WARNING):
        peer.socket.sendall(sent)
        assert peer.read(1) == b""
    assert words in caplog.text


@pytest.mark.parametrize(
    ("of_topic", "of_request"), [(b"\1\x63\3any", b"\0"), (b"\0", b"\1\x63\3any")], ids=["topic", "request"]
)
def test_a_tagged_field_that_the_specification_lacks_is_skipped(
    peer: Peer, of_topic: bytes, of_request: bytes
) -> None:
    """Clients that are newer than the specification may send one (KIP-482)."""
    body = struct.pack(">hhih", 3, 9, 7, 1) + b"c\0" + b"\2\2a" + of_topic + b"\0\0\0" + of_request
    peer.socket.sendall(struct.pack(">i", len(body)) + body)

    told = peer.receive("Metadata", 9)

    assert [(topic["name"], topic["error_code"]) for topic in told["topics"]] == [("a", 0)]


def test_requests_that_are_cut_anywhere_harm_nobody(broker: MockBroker) -> None:
    version, fields = ASKED["Produce"]
    spec = message_specs()["ProduceRequest"]
    body = struct.pack(">hhih", 0, version, 7, 1) + b"c\0" + spec.write(fields, version)
    for size in range(len(body)):
        with closing(Peer(broker.bootstrap_servers)) as peer:
            peer.socket.sendall(struct.pack(">i", size) + body[:size])
            peer.socket.shutdown(socket.SHUT_WR)
            assert peer.read(1) == b""
    with closing(Peer(broker.bootstrap_servers)) as peer:
        assert codes(peer.ask("Produce", fields, version)) == {87}  # INVALID_RECORD: there is no batch
    assert len(broker.asked("Produce")) == 1


def test_it_closes_though_a_handshake_waits() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    broker = MockBroker(tls=context)
    with closing(Peer(broker.bootstrap_servers)) as silent, closing(Peer(broker.bootstrap_servers)) as other:
        other.socket.sendall(b"no TLS at all")
        other.read(99)  # the one that came before it is served by now
        closed = threading.Thread(target=broker.close, daemon=True)
        closed.start()
        closed.join(WITHIN_S)
        assert not closed.is_alive()
        assert silent.read(1) == b""


def test_brokers_of_which_one_can_not_listen_leave_none_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Listener] = []

    def start(listener: Listener, number: Callable[[], int]) -> None:
        if listener.node_id == 3:
            raise OSError(errno.EMFILE, "Too many open files")
        started.append(listener)
        real(listener, number)

    real = Listener.start
    monkeypatch.setattr(Listener, "start", start)
    with pytest.raises(OSError, match="Too many open files"):
        MockBroker(3)
    assert [listener.is_listening for listener in started] == [False, False]
    for listener in started:
        with pytest.raises(ConnectionRefusedError):
            Peer(f"127.0.0.1:{listener.port}")


def test_a_broker_that_is_stopped_keeps_its_port(broker: MockBroker) -> None:
    host, port = broker.bootstrap_servers.split(":")
    for _ in range(2):
        broker.stop(1)
        with socket.socket() as sock:
            with pytest.raises(OSError, match="in use"):
                sock.bind((host, int(port)))
            with pytest.raises(ConnectionRefusedError):
                sock.connect((host, int(port)))
    broker.create_topic("c")
    assert broker.leader("c") == -1
    broker.start(1)
    with closing(Peer(broker.bootstrap_servers)) as peer:
        assert peer.ask("ListGroups", {}, 4)["groups"] == []
    assert broker.leader("c") == 1


def test_what_cannot_be_is_refused(broker: MockBroker) -> None:
    for ask, words in (
        (lambda: broker.append("a", []), "there is no record to append to a"),
        (lambda: broker.create_topic("c", partitions=0), "partitions is 0"),
        (lambda: broker.delete_records("a", 0, 1), r"can't move to 1: the log has the offsets 0 to 0"),
        (lambda: broker.move_leader("a", 0, 2), "broker 2 does not run"),
        (lambda: broker.cut_log("a", 0, 1), r"can't end at 1: it has the offsets 0 to 0"),
        (lambda: broker.on("Fetch", after=-1), "times is 1 and after is -1"),
        (lambda: MockBroker(versions={"Fetch": (4, 99)}), "versions of Fetch are 4 to 99"),
        (lambda: MockBroker(versions={"fetch": (4, 5)}), "Kafka has no API 'fetch'"),
    ):
        with pytest.raises(ValueError, match=words):
            ask()


def test_asking_for_a_group_does_not_make_it(broker: MockBroker, peer: Peer) -> None:
    assert broker.committed("g") == {}
    peer.ask("OffsetFetch", ASKED["OffsetFetch"][1], 1)
    assert peer.ask("ListGroups", {}, 4)["groups"] == []


def test_ends_of_epochs(broker: MockBroker, peer: Peer) -> None:
    """As Kafka's LeaderEpochFileCache.endOffsetFor has them (KIP-320)."""
    broker.append("a", [b"1", b"2"])
    broker.move_leader("a", 0, 1)
    broker.move_leader("a", 0, 1)
    broker.append("a", [b"3"])

    def end(epoch: int) -> tuple[int, int]:
        asked = {"topic": "a", "partitions": [{"partition": 0, "leader_epoch": epoch}]}
        (told,) = peer.ask("OffsetForLeaderEpoch", {"topics": [asked]}, 4)["topics"][0]["partitions"]
        return told["leader_epoch"], told["end_offset"]

    assert [end(epoch) for epoch in range(4)] == [(0, 2), (0, 2), (2, 3), (-1, -1)]
    broker.delete_records("a", 0, 2)
    assert end(0) == (0, 2)
