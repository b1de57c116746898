"""`pykafka exporter`: what a scrape shows, also while the cluster hangs, and when a look is too old."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import eventually

from spark_kafka_native.cli import cluster_moment, top
from spark_kafka_native.cli import exporter as exporter_module
from spark_kafka_native.cli.cluster_moment import ClusterMoment
from spark_kafka_native.cli.exporter import WatchedCluster, _address
from spark_kafka_native.cli.main import Stopped, main
from spark_kafka_native.cli.top import group_rows, topic_rows
from spark_kafka_native.kafka import Admin, GroupConsumer
from spark_kafka_native.kafka.admin import groups
from spark_kafka_native.kafka.cluster import offsets
from spark_kafka_native.kafka.cluster.router import CoordinatorKey
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import AuthenticationError, BrokerError, KafkaError, NetworkError
from spark_kafka_native.kafka.model import OffsetToCommit, TopicPartition
from spark_kafka_native.testing import MockBroker, MockRequest

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@contextmanager
def exporter(*arguments: str) -> Iterator[str]:
    """The URL of one that runs in a process of its own. It ends in good order."""
    command = [sys.executable, "-m", "spark_kafka_native", "exporter", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            serving = re.fullmatch(r"serving (http://127\.0\.0\.1:\d+/metrics)\n", process.stderr.readline())
            assert serving
            yield serving[1]
        finally:
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
    assert process.returncode == 143
    assert "Traceback" not in rest


def scraped(url: str) -> set[str]:
    with urllib.request.urlopen(url, timeout=60) as response:
        return set(response.read().decode().splitlines())


def test_lag_of_groups_and_ends_of_topics() -> None:
    with MockBroker() as broker:
        broker.create_topic("orders", 2)
        broker.append("orders", [b"a", b"b", b"c"])
        with GroupConsumer(
            broker.bootstrap_servers, "orders", group="billing", auto_offset_reset="earliest"
        ) as consumer:
            consumer.fetch_record(timeout=60)
            consumer.commit()
        broker.append("orders", [b"d"], partition=1)
        with exporter("-b", broker.bootstrap_servers, "-i", "1") as url:
            eventually(lambda: "kafka_exporter_up 1.0" in scraped(url))
            ends = 'kafka_topic_partition_current_offset{topic="orders"} '
            lag = 'kafka_consumergroup_lag{consumergroup="billing",topic="orders"} '
            assert ends + "4.0" in scraped(url)
            assert 'kafka_topic_partitions{topic="orders"} 2.0' in scraped(url)
            before = next(float(line.removeprefix(lag)) for line in scraped(url) if line.startswith(lag))
            assert before >= 2
            broker.append("orders", [b"e"] * 5)
            eventually(lambda: f"{lag}{before + 5}" in scraped(url))
        broker.create_topic("payments")
        with exporter("-b", broker.bootstrap_servers, "--by-partition", "orders") as url:
            eventually(lambda: "kafka_exporter_up 1.0" in scraped(url))
            assert 'kafka_topic_partition_current_offset{partition="0",topic="orders"} 8.0' in scraped(url)
            assert "kafka_exporter_problems 0.0" in scraped(url)
            assert not [line for line in scraped(url) if "payments" in line]


def test_a_scrape_does_not_wait_for_a_cluster_that_hangs() -> None:
    with MockBroker() as broker:
        broker.create_topic("orders")
        with exporter("-b", broker.bootstrap_servers, "-i", "1", "--timeout", "1") as url:
            eventually(lambda: "kafka_exporter_up 1.0" in scraped(url))
            hang = broker.on("Metadata").ignore()
            eventually(lambda: "kafka_exporter_up 0.0" in scraped(url))
            assert 'kafka_topic_partition_current_offset{topic="orders"} 0.0' in scraped(url)
            hang.withdraw()
            eventually(lambda: "kafka_exporter_up 1.0" in scraped(url))


def test_it_starts_before_its_cluster() -> None:
    with exporter("-b", "127.0.0.1:1", "-i", "1", "--timeout", "1") as url:
        assert "kafka_exporter_up 0.0" in scraped(url)
        assert "kafka_exporter_last_success_timestamp_seconds 0.0" in scraped(url)


def listed(name: str, state: str = "Empty") -> Any:
    return SimpleNamespace(group_id=name, state=state, type="classic")


def names(watched: WatchedCluster) -> dict[str, float]:
    return {str(key): value for key, value in watched.metrics() if isinstance(value, int | float)}


@pytest.mark.parametrize(("only_these", "seen"), [(False, {"g": {}}), (True, {})])
def test_a_group_that_has_committed_nothing_is_seen_unless_topics_are_named(
    only_these: bool, seen: dict[str, Any]
) -> None:
    class OfNothing:
        def group_offsets(self, _name: str, _timeout: float) -> dict[TopicPartition, Any]:
            return {}

    admin: Any = OfNothing()
    moment = ClusterMoment(at=0.0)
    cluster_moment._look_at_group(admin, listed("g"), moment, only_these, 1.0)
    assert moment.groups == seen
    assert moment.members == dict.fromkeys(seen, 0)


def test_a_group_whose_members_may_not_be_described_has_its_lag() -> None:
    """It ended the view, later it was not in it."""
    tp = TopicPartition("orders", 0)

    class Refusing:
        def group_offsets(self, _name: str, _timeout: float) -> dict[TopicPartition, Any]:
            return {tp: OffsetToCommit(offset=3)}

        def describe_groups(self, names: list[str], _timeout: float) -> Any:
            raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, names[0])

    admin: Any = Refusing()
    moment = ClusterMoment(at=0.0, ends={tp: 5})
    with pytest.raises(BrokerError, match="g: GROUP_AUTHORIZATION_FAILED"):
        cluster_moment._look_at_group(admin, listed("g", "Stable"), moment, False, 1.0)
    assert (moment.states, moment.members) == ({"g": "Stable"}, {})
    [row] = group_rows(moment, moment)
    assert (row["lag"], row["members"]) == (2, None)


def test_groups_that_answer_do_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them took half a minute, and all that was seen was too old at the end."""
    now, given = [100.0], list[tuple[str, float]]()

    def look(_admin: Any, group: Any, moment: ClusterMoment, _only_these: bool, timeout_s: float) -> None:
        given.append((group.group_id, timeout_s))
        if group.group_id.startswith("silent"):
            now[0] += timeout_s
            raise NetworkError(group.group_id)
        now[0] += 60
        moment.groups[group.group_id] = {}

    monkeypatch.setattr(cluster_moment, "_look_at_group", look)
    monkeypatch.setattr(cluster_moment, "time", SimpleNamespace(monotonic=lambda: now[0]))
    names = ["one", "silent 1", "silent 2", "two", "silent 3", "other broker", "silent other"]
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        given_groups = [listed(name) for name in names]
        monkeypatch.setattr(groups, "list_groups_of_each_broker", lambda *_: (given_groups, {}))
        for name in names:
            admin.router.coordinators.note(CoordinatorKey.group(name), 2 if "other" in name else 1)
        moment = cluster_moment.look_at_cluster(admin, [])
    assert list(moment.groups) == ["one", "two", "other broker"]
    assert moment.problems == ["silent 1", "silent 2", "silent 3", "silent other"]
    assert given == [(name, 0.2 if 2 <= index < 5 else 5.0) for index, name in enumerate(names)]


@pytest.mark.parametrize(
    ("outage", "problem"),
    [
        (lambda broker: broker.stop(2, is_noticed=False), "broker 2: cannot connect"),
        (lambda broker: broker.on("ListGroups", node_id=2, times=None).ignore(), "ListGroups .*: no answer"),
        (
            lambda broker: broker.on("ListGroups", node_id=2, times=None).reply(
                {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            ),
            "groups of broker 2: COORDINATOR_LOAD_IN_PROGRESS",
        ),
    ],
    ids=["unreachable", "silent", "loading"],
)
def test_a_broker_that_does_not_list_its_groups_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, outage: Callable[[MockBroker], object], problem: str
) -> None:
    """It hid all ends and groups, after the whole time of the client."""
    monkeypatch.setattr(offsets, "MISSING_MS", 1_000)
    with MockBroker(2) as broker, Admin(broker.bootstrap_servers, default_api_timeout_ms=60_000) as admin:
        broker.create_topic("t")
        broker.append("t", [b"a", b"b"])
        admin.reset_offsets("g", {T0: 1})
        outage(broker)
        moment = cluster_moment.look_at_cluster(admin, [])
    assert (moment.ends, moment.groups) == ({T0: 2}, {"g": {T0: 1}})
    [said] = moment.problems
    assert re.search(problem, said)


def test_a_look_fails_if_no_broker_lists_its_groups() -> None:
    """Else each group would be gone at once, and an alert would be reset."""
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("t")
        broker.on("ListGroups").reply({"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED})
        with pytest.raises(BrokerError, match="listing groups of broker 1"):
            cluster_moment.look_at_cluster(admin, [])


@pytest.mark.parametrize("as_json", [False, True])
def test_a_look_that_fails_is_a_line_of_top_and_not_its_end(
    as_json: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """The next view shows the changes since the last look that did not fail."""
    with MockBroker() as broker:
        broker.create_topic("t")

        def refuse(_: MockRequest) -> dict[str, object]:
            broker.append("t", [b"a"])
            return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}

        broker.on("ListGroups", after=1).reply(refuse)
        options = ["--json"] if as_json else []
        assert main(["top", "-c", "2", "-i", "0.1", "-b", broker.bootstrap_servers, *options]) == 0
    shown = capfd.readouterr().out
    refused = "listing groups of broker 1: CLUSTER_AUTHORIZATION_FAILED"
    if not as_json:
        assert shown.startswith(f"! {refused}")
        assert "\n\n1 broker, 1 topic, 0 groups\n" in shown
        return
    failed, view = [json.loads(line) for line in shown.splitlines()]
    assert (failed["topics"], failed["groups"]) == ([], [])
    assert [refused in problem for problem in failed["problems"]] == [True]
    assert view["problems"] == []
    assert view["topics"][0]["records_per_s"] > 0


@pytest.mark.parametrize(
    ("error", "looks"), [(AuthenticationError("wrong password"), 1), (NetworkError("cut"), 3)]
)
def test_top_ends_where_each_login_may_lock_the_account_and_fails_where_the_last_look_does(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: KafkaError, looks: int
) -> None:
    look, failed = cluster_moment.look_at_cluster, []

    def look_once(admin: Admin, names: list[str]) -> cluster_moment.ClusterMoment:
        if not failed:
            failed.append(False)
            return look(admin, names)
        failed.append(True)
        raise error

    monkeypatch.setattr(top, "look_at_cluster", look_once)
    with MockBroker() as broker:
        assert main(["top", "--json", "-c", "3", "-i", "0.1", "-b", broker.bootstrap_servers]) == 1
    assert failed.count(True) == looks


def test_the_exporter_ends_where_each_login_may_lock_the_account(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    looks = [NetworkError("cut"), AuthenticationError("wrong password")]

    def look(*_: Any) -> ClusterMoment:
        raise looks.pop(0)

    monkeypatch.setattr(exporter_module, "look_at_cluster", look)
    with MockBroker() as broker:
        server = ["-b", broker.bootstrap_servers]
        assert main(["exporter", "--listen", "127.0.0.1:0", "-i", "1", *server]) == 1
    assert capfd.readouterr().err.splitlines()[1:] == [
        "warning: cut",
        "AuthenticationError: wrong password",
    ]


@pytest.mark.parametrize("partitions", [1, 2], ids=["list of groups", "leader"])
def test_a_login_that_one_of_the_brokers_refuses_is_no_mere_problem(partitions: int) -> None:
    """It would be repeated with each look."""
    login: dict[str, Any] = {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN"}
    login |= {"username": "alice", "password": "secret"}
    with MockBroker(2, users={"alice": "secret"}) as broker:
        broker.create_topic("t", partitions)
        leader = broker.leader("t", 0)
        address = broker.bootstrap_servers.split(",")[leader - 1]
        broker.on("SaslAuthenticate", node_id=3 - leader, times=None).reply({"error_code": 58})
        with Admin(address, **login) as admin, pytest.raises(AuthenticationError):
            cluster_moment.look_at_cluster(admin, [])
        assert len([one for one in broker.asked("SaslAuthenticate") if one.node_id != leader]) == 1


def test_a_topic_that_is_gone_does_not_hide_the_others_that_were_named() -> None:
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("orders")
        moment = cluster_moment.look_at_cluster(admin, ["gone", "orders"])
        assert list(moment.ends) == [TopicPartition("orders", 0)]
        assert [problem.split(":")[0] for problem in moment.problems] == ["topic gone"]
        with pytest.raises(BrokerError, match="gone"):
            cluster_moment.look_at_cluster(admin, ["gone"])


def test_a_topic_that_can_not_be_described_is_a_problem_and_not_an_absent_one() -> None:
    def refuse(fields: dict[str, Any]) -> None:
        for topic in fields["topics"]:
            if topic["name"] == "odd":
                topic["error_code"], topic["partitions"] = 29, []

    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        for name in ("odd", "orders"):
            broker.create_topic(name)
        broker.on("Metadata", times=None).change(refuse)
        moment = cluster_moment.look_at_cluster(admin, [])
    assert list(moment.ends) == [TopicPartition("orders", 0)]
    assert moment.problems == ["odd: TOPIC_AUTHORIZATION_FAILED"]


@pytest.mark.parametrize("topics", [[], ["orders"]], ids=["all", "named"])
def test_partitions_that_were_just_added_are_seen(topics: list[str]) -> None:
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("orders")
        assert len(cluster_moment.look_at_cluster(admin, topics).ends) == 1
        with Admin(broker.bootstrap_servers) as other:
            other.create_partitions({"orders": 3})
        assert len(cluster_moment.look_at_cluster(admin, topics).ends) == 3


def test_a_look_is_served_while_others_fail(capfd: pytest.CaptureFixture[str]) -> None:
    watched = WatchedCluster(60)
    moment = ClusterMoment(
        at=time.monotonic(),
        brokers=3,
        ends={T0: 10, T1: 5},
        groups={"g": {T0: 4, T1: 7}},
        members={"g": 2},
        problems=["t-2: LEADER_NOT_AVAILABLE"],
    )
    watched.see(moment)
    seen = names(watched)
    assert seen["kafka.consumergroup.lag{consumergroup=g,topic=t,partition=0}"] == 6
    assert seen["kafka.consumergroup.lag{consumergroup=g,topic=t,partition=1}"] == 0  # recreated
    assert seen["kafka.consumergroup.members{consumergroup=g}"] == 2
    assert (seen["kafka.brokers"], seen["kafka.exporter.problems"], seen["kafka.exporter.up"]) == (3, 1, 1)
    for _ in range(2):
        watched.miss(NetworkError("gone"))
    after = names(watched)
    assert after.pop("kafka.exporter.up") == 0
    assert after == {name: value for name, value in seen.items() if name != "kafka.exporter.up"}
    assert capfd.readouterr().err == "warning: t-2: LEADER_NOT_AVAILABLE\nwarning: gone\n"
    watched.see(replace(moment, problems=[]))
    watched.miss(NetworkError("gone"))  # again, after a look without a problem
    assert capfd.readouterr().err == "warning: gone\n"


@pytest.mark.parametrize("took_s", [0, 66, 600])
def test_a_look_counts_from_its_end_and_until_the_next_that_takes_as_long(
    monkeypatch: pytest.MonkeyPatch, took_s: int
) -> None:
    """A slow one was too old before it was shown: a cluster with many groups had no metrics at all."""
    now = [1000.0 + took_s]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr(exporter_module, "time", clock)
    watched = WatchedCluster(60)
    watched.see(ClusterMoment(at=1000.0, ends={T0: 10}, groups={"g": {T0: 4}}))
    for after_s in (0, took_s + 59):
        now[0] = 1000.0 + took_s + after_s
        seen = names(watched)
        assert seen["kafka.exporter.up"] == 1
        assert seen["kafka.consumergroup.lag{consumergroup=g,topic=t,partition=0}"] == 6
    now[0] += 1
    assert set(names(watched)) == {"kafka.exporter.up", "kafka.exporter.last_success.timestamp"}
    assert names(watched)["kafka.exporter.up"] == 0


@pytest.mark.parametrize("address", ["9308", "localhost", "localhost:http", "localhost:65536", ""])
def test_an_address_has_a_port(address: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["exporter", "--listen", address, "-b", "h"])
    assert "HOST:PORT is wanted" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "address"),
    [("[::1]:9308", ("::1", 9308)), (":9308", ("0.0.0.0", 9308))],
)
def test_an_address_may_be_of_ipv6_or_of_all(text: str, address: tuple[str, int]) -> None:
    assert _address(text) == address


def test_an_address_in_use_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["exporter", "--listen", address, "-b", "127.0.0.1:1"]) == 1
    assert "in use" in capfd.readouterr().err


def test_rates_of_top_are_those_of_what_two_looks_have_in_common() -> None:
    """Nothing is written between them in a partition that is new, or in a topic that is created again."""
    new = TopicPartition("new", 0)
    before = ClusterMoment(
        at=0.0,
        ends_at=10.0,
        ends={T0: 10, T1: 50},
        groups={"g": {T0: 4, T1: 50}},
        committed_at={"g": 11.0},
    )
    now = ClusterMoment(
        at=11.5,
        ends_at=12.0,
        committed_at={"g": 13.0, "late": 14.0},
        ends={T0: 30, T1: 5, new: 1_000},
        groups={"g": {T0: 14, T1: 7, new: 900}, "late": {new: 1_000}},
        states={"g": "Stable", "late": "Empty"},
    )
    assert topic_rows(now, before) == [
        {"topic": "t", "partitions": 2, "end_offsets": 35, "records_per_s": 10.0},
        {"topic": "new", "partitions": 1, "end_offsets": 1_000, "records_per_s": 0.0},
    ]
    rows = {
        row["group"]: (row["lag"], row["committed_per_s"], row["behind"]) for row in group_rows(now, before)
    }
    assert rows == {"g": (116, 5.0, "23 s"), "late": (0, 0.0, None)}
    still = replace(now, committed_at={"g": 15.0, "late": 15.0})
    assert [row["behind"] for row in group_rows(still, now)] == ["for ever", None]


@pytest.mark.parametrize("is_silent", [False, True])
def test_numbers_have_the_time_at_which_they_were_read(
    monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """Rates were many times off after a slow look. A leader that is waited for in vain is asked beside the
    others."""
    now = [100.0]
    monkeypatch.setattr(cluster_moment, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def takes(seconds: float) -> Callable[[Any], None]:
        def pass_time(_: Any) -> None:
            now[0] += seconds

        return pass_time

    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("t")
        admin.reset_offsets("g", {T0: 0})
        broker.on("Metadata").change(takes(10))
        ends = broker.on("ListOffsets").change(takes(1))
        if is_silent:
            ends.fail("LEADER_NOT_AVAILABLE")
        broker.on("OffsetFetch").change(takes(3))
        broker.on("ListGroups").reply({"groups": [{"group_id": "g", "group_state": "Empty"}]})
        moment = cluster_moment.look_at_cluster(admin, [])
    assert bool(moment.problems) is is_silent
    assert (moment.at, moment.ends_at) == (100.0, 110.0)
    assert moment.committed_at == {"g": now[0]}


def test_a_look_leaves_out_topics_of_kafka_itself_and_groups_that_commit_nothing() -> None:
    types = {"c": "classic", "d": "consumer", "s": "Share", "x": "Streams"}

    def hide(fields: dict[str, Any]) -> None:
        for topic in fields["topics"]:
            topic["is_internal"] = topic["name"].startswith("__")

    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        for name in ("orders", "__consumer_offsets"):
            broker.create_topic(name)
        broker.on("Metadata", times=None).change(hide)
        groups = [
            {"group_id": name, "group_type": kind, "group_state": "Empty"} for name, kind in types.items()
        ]
        broker.on("ListGroups", times=None).reply({"groups": groups})
        moment = cluster_moment.look_at_cluster(admin, [])
        asked = broker.asked("ListOffsets")
    assert {tp.topic for tp in moment.ends} == {"orders"}
    assert sorted(moment.groups) == ["c", "d", "x"]
    # Those of an open transaction have been written, too.
    assert {one.fields["isolation_level"] for one in asked} == {0}


def test_a_streams_group_has_its_lag_and_no_members() -> None:
    """Another request describes it; for the requests of other types it does not exist."""
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("t")
        broker.append("t", [b"a"] * 10)
        admin.reset_offsets("app", {T0: 3})
        app = {"group_id": "app", "group_state": "Stable", "group_type": "Streams"}
        broker.on("ListGroups").reply({"groups": [app]})
        moment = cluster_moment.look_at_cluster(admin, [])
        asked = [*broker.asked("ConsumerGroupDescribe"), *broker.asked("DescribeGroups")]
    assert (moment.groups, moment.states) == ({"app": {T0: 3}}, {"app": "Stable"})
    assert (moment.members, moment.problems, asked) == ({}, [], [])
    [row] = group_rows(moment, moment)
    assert (row["lag"], row["members"]) == (7, None)


@pytest.mark.parametrize(("interval", "kept_s"), [("1", 60.0), ("15", 60.0), ("100", 400.0)])
def test_a_look_is_kept_for_several_intervals_and_a_minute_at_least(
    monkeypatch: pytest.MonkeyPatch, interval: str, kept_s: float
) -> None:
    """Between two looks that are far apart, an alert would be reset by itself."""
    made: list[float] = []

    def watched(given_s: float) -> WatchedCluster:
        made.append(given_s)
        raise NetworkError("not needed")

    monkeypatch.setattr(exporter_module, "WatchedCluster", watched)
    assert main(["exporter", "-i", interval, "--listen", "127.0.0.1:0", "-b", "127.0.0.1:1"]) == 1
    assert made == [kept_s]


def test_a_look_finds_the_coordinators_of_all_groups_at_once() -> None:
    """The time that a coordinator does not answer would be that of all groups, of which none is known."""
    names = [f"g{number}" for number in range(3)]
    with MockBroker(2) as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("t")
        with Admin(broker.bootstrap_servers) as other:
            for name in names:
                other.reset_offsets(name, {T0: 0})
        before = len(broker.asked("FindCoordinator"))
        assert sorted(cluster_moment.look_at_cluster(admin, []).groups) == names
        found = [one.fields["coordinator_keys"] for one in broker.asked("FindCoordinator")[before:]]
    assert [sorted(keys) for keys in found] == [names]


@pytest.mark.parametrize("live", [True, False])
def test_a_terminal_has_its_cursor_again_however_top_ends(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], live: bool
) -> None:
    def stop(_: float) -> None:
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr(top, "on_terminal", lambda: live)
    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=stop))
    with MockBroker() as broker:
        assert main(["top", "-b", broker.bootstrap_servers]) == 130
    shown = capfd.readouterr().out
    assert (shown.count("\x1b[?25l"), shown.count("\x1b[?25h")) == ((1, 1) if live else (0, 0))
    assert shown.endswith("\x1b[?25h" if live else "")


def test_a_live_view_fits_into_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A line too many would scroll the view, and a wrapped one is two."""
    size = SimpleNamespace(columns=20, lines=8)
    monkeypatch.setattr(top, "shutil", SimpleNamespace(get_terminal_size=lambda: size))
    ends = {TopicPartition(f"{number:040}", 0): number for number in range(30)}
    moment = ClusterMoment(at=1.0, brokers=1, ends=ends)
    top._show(moment, moment, False, True)
    lines = re.sub("\x1b\\[[0-9]*[A-Za-z]", "", capfd.readouterr().out).split("\n")
    assert len(lines) == 7
    assert max(map(len, lines)) == 20


@pytest.mark.parametrize("live", [True, False])
def test_a_terminal_gets_no_control_characters_of_a_problem(
    capfd: pytest.CaptureFixture[str], live: bool
) -> None:
    moment = ClusterMoment(at=1.0, problems=["group a\x1b[2Jb: refused"])
    top._show(moment, moment, False, live)
    assert "! group a\\x1b[2Jb: refused" in capfd.readouterr().out


def test_a_look_waits_for_leaders_for_seconds_and_counts_all_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another look follows soon: one leader that stands still would make all that is seen too old."""
    ask, left_ms = offsets.try_offsets, list[float]()

    def try_offsets(router: Any, places: Any, level: Any, limit: Any) -> Any:
        left_ms.append(limit.remaining_ms)
        return ask(router, places, level, limit)

    monkeypatch.setattr(offsets, "try_offsets", try_offsets)
    with MockBroker(3) as broker, Admin(broker.bootstrap_servers, default_api_timeout_ms=600_000) as admin:
        broker.create_topic("t")
        assert cluster_moment.look_at_cluster(admin, []).brokers == 3
    assert 0 < left_ms[0] <= offsets.MISSING_MS


@pytest.mark.parametrize(
    ("command", "module"),
    [(["exporter", "--listen", "127.0.0.1:0"], exporter_module), (["top"], top)],
    ids=["exporter", "top"],
)
@pytest.mark.parametrize("interval", [7, 300])
def test_looks_are_as_far_apart_as_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, command: list[str], module: Any, interval: int
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr(
        module, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic, time=time.time)
    )
    with MockBroker() as broker:
        assert main([*command, "-i", str(interval), "-b", broker.bootstrap_servers]) == 130
    assert slept == [interval]


@pytest.mark.parametrize("brokers", [0, 1])
def test_problems_are_lines_of_a_view(capfd: pytest.CaptureFixture[str], brokers: int) -> None:
    moment = ClusterMoment(at=1.0, brokers=brokers, problems=["t-1: LEADER_NOT_AVAILABLE", "g: no answer"])
    top._show(moment, moment, False, False)
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("!")] == [f"! {one}" for one in moment.problems]
    assert lines[0] == ("1 broker, 0 topics, 0 groups" if brokers else "! t-1: LEADER_NOT_AVAILABLE")
