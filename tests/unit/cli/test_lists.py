"""Commands that list: those that are named, and an error for a name that is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster

from spark_kafka_native.cli.cluster_moment import look_at_cluster
from spark_kafka_native.cli.main import main
from spark_kafka_native.kafka import Admin, BrokerError, TopicPartition, TransactionalProducer
from spark_kafka_native.kafka.admin.groups import PartitionLag
from spark_kafka_native.kafka.errors import AuthenticationError
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from spark_kafka_native.kafka.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ProtocolTopicPartitions,
    write_versioned,
)
from spark_kafka_native.spark.write.commit_markers import CommitMarker
from spark_kafka_native.testing import MockBroker, MockRequest


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    """Three groups have committed."""
    with MockBroker() as broker:
        broker.create_topic("orders")
        broker.append("orders", ["a", "b", "c"])
        with Admin(broker.bootstrap_servers) as admin:
            for name in ("one", "three", "two"):
                admin.reset_offsets(name, {TopicPartition("orders", 0): 1})
        yield broker


def test_groups_that_are_named_are_listed(broker: MockBroker, capsys: pytest.CaptureFixture[str]) -> None:
    for names, found in (([], ["one", "three", "two"]), (["two", "one"], ["one", "two"])):
        assert main(["groups", *names, "--json", "-b", broker.bootstrap_servers]) == 0
        assert [row["group"] for row in json.loads(capsys.readouterr().out)] == found
    assert main(["groups", "two", "--lag", "--json", "-b", broker.bootstrap_servers]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {"group": "two", "topic": "orders", "partition": 0, "committed": 1, "end": 3, "lag": 2}


def test_groups_of_a_state_are_listed(broker: MockBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that deletes the empty ones deletes no others."""
    states = {"one": "Empty", "three": "Stable", "two": "Stable"}

    def listed(request: MockRequest) -> dict[str, object]:
        wanted = request.fields["states_filter"] or states.values()
        groups = [{"group_id": one, "group_state": state} for one, state in states.items() if state in wanted]
        return {"groups": groups}

    broker.on("ListGroups", times=None).reply(listed)
    for options in ([], ["one", "two"], ["--lag"], ["two", "one", "--lag"]):
        command = ["groups", *options, "--state", "empty", "--json", "-b", broker.bootstrap_servers]
        assert main(command) == 0
        assert [row["group"] for row in json.loads(capsys.readouterr().out)] == ["one"]


@pytest.mark.parametrize("how", [[], ["--lag"], ["--members"]], ids=["list", "lag", "members"])
def test_a_name_that_is_no_group_is_an_error(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], how: list[str]
) -> None:
    """It would look like a group without lag, or without members."""
    assert main(["groups", "one", "tow", *how, "-b", broker.bootstrap_servers]) == 1
    shown = capsys.readouterr()
    assert (shown.out, "group tow: GROUP_ID_NOT_FOUND" in shown.err) == ("", True)


def test_a_group_without_the_permission_to_describe_it_is_not_one_that_does_not_exist(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brokers leave it out of their lists."""
    denied = {"error_code": 30, "group_id": "hidden"}  # GROUP_AUTHORIZATION_FAILED
    broker.on("ConsumerGroupDescribe", times=None).reply({"groups": [denied]})
    broker.on("DescribeGroups", times=None).reply({"groups": [denied]})
    assert main(["groups", "hidden", "--lag", "-b", broker.bootstrap_servers]) == 1
    assert "hidden: GROUP_AUTHORIZATION_FAILED" in capsys.readouterr().err


def test_a_group_that_can_not_be_described_does_not_hide_those_after_it(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of streams, or one that was deleted meanwhile."""

    def described(request: MockRequest) -> dict[str, object]:
        (name,) = request.fields["groups"]
        if name == "one":
            return {"groups": [{"error_code": 69, "group_id": name}]}
        member = {"member_id": f"in {name}", "client_id": "c", "client_host": "/h"}
        group = {"group_id": name, "group_state": "Stable", "protocol_type": "consumer", "members": [member]}
        return {"groups": [group]}

    def no_new_one(request: MockRequest) -> dict[str, object]:
        return {"groups": [{"error_code": 69, "group_id": name} for name in request.fields["group_ids"]]}

    broker.on("ConsumerGroupDescribe", times=None).reply(no_new_one)
    broker.on("DescribeGroups", times=None).reply(described)
    assert main(["groups", "--members", "--json", "-b", broker.bootstrap_servers]) == 0
    shown = capsys.readouterr()
    assert [row["member"] for row in json.loads(shown.out)] == ["in three", "in two"]
    assert "warning: describing group one: GROUP_ID_NOT_FOUND" in shown.err
    named = ["groups", "two", "one", "--members", "--json", "-b", broker.bootstrap_servers]
    assert main(named) == 1
    assert [row["member"] for row in json.loads(capsys.readouterr().out)] == ["in two"]


@pytest.mark.parametrize("code", [30, 15], ids=["no permission", "no coordinator"])
def test_a_group_that_does_not_answer_is_a_failure(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    def refused(request: MockRequest) -> dict[str, object]:
        names = request.fields.get("group_ids") or request.fields["groups"]
        return {"groups": [{"error_code": code if name == "one" else 69, "group_id": name} for name in names]}

    broker.on("ConsumerGroupDescribe", times=None).reply(refused)
    broker.on("DescribeGroups", times=None).reply(refused)
    command = ["groups", "--members", "--json", "--timeout", "1", "-b", broker.bootstrap_servers]
    assert main(command) == 1
    shown = capsys.readouterr()
    assert (json.loads(shown.out), shown.err.count("warning: ")) == ([], 3)


def test_a_transactional_id_that_is_not_there_is_a_failure(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    listings = [
        {"transactional_id": name, "producer_id": 1, "transaction_state": "Empty"} for name in ("a", "other")
    ]
    broker.on("ListTransactions", times=None).reply({"transaction_states": listings})
    command = ["transactions", "list", "a", "b", "--json", "-b", broker.bootstrap_servers]
    assert main(command) == 1
    shown = capsys.readouterr()
    assert [row["transactional_id"] for row in json.loads(shown.out)] == ["a"]
    assert shown.err == "warning: there is no transactional id b\n"


def test_a_state_of_transactions_that_brokers_do_not_know_is_wrong_usage(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.on("ListTransactions", times=None).reply({"unknown_state_filters": ["Dead"]})
    with pytest.raises(SystemExit, match="2"):
        main(["transactions", "list", "--state", "Dead", "-b", broker.bootstrap_servers])
    assert "there is no state Dead" in capsys.readouterr().err


def commit_marker(broker: MockBroker, group: str) -> None:
    marker = CommitMarker(batch_id=7, rows=3, hash=5).offset()
    with TransactionalProducer(broker.bootstrap_servers, "task") as producer, producer.transaction():
        producer.send_offsets({TopicPartition("orders", 0): marker}, group)


def test_an_offset_beyond_the_end_is_said(broker: MockBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """It looked like a group that has read everything."""
    with TransactionalProducer(broker.bootstrap_servers, "x") as producer, producer.transaction():
        producer.send_offsets({TopicPartition("orders", 0): 100}, "one")
    assert main(["groups", "one", "two", "--lag", "-b", broker.bootstrap_servers]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: group one has committed 100 for orders-0, which ends at 3: ")


def test_groups_of_markers_have_no_lag(broker: MockBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """Each task of an exactly-once query looked like a consumer that hangs."""
    commit_marker(broker, "query-0")
    assert main(["groups", "--lag", "--json", "-b", broker.bootstrap_servers]) == 0
    assert [row["group"] for row in json.loads(capsys.readouterr().out)] == ["one", "three", "two"]
    assert main(["groups", "query-0", "--lag", "--json", "-b", broker.bootstrap_servers]) == 0
    assert [row["committed"] for row in json.loads(capsys.readouterr().out)] == [7]
    with Admin(broker.bootstrap_servers) as admin:
        assert sorted(look_at_cluster(admin, []).groups) == ["one", "three", "two"]


def test_groups_of_markers_are_changed_only_where_that_is_asked_for(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without them records that are committed are written again."""
    commit_marker(broker, "query-0")
    delete = ["groups", "query-0", "--delete", "-b", broker.bootstrap_servers]
    reset = ["reset", "query-0", "--to", "earliest", "--execute", "-b", broker.bootstrap_servers]
    dry = ["reset", "query-0", "--to", "earliest", "-b", broker.bootstrap_servers]
    for command, advice in ((delete, "add --markers"), (dry, "can't be moved"), (reset, "can't be moved")):
        assert main(command) == 1
        assert advice in capsys.readouterr().err
    assert broker.committed("query-0") == {TopicPartition("orders", 0): 7}
    assert not broker.asked("DeleteGroups")
    # A transaction that hangs holds up no clean-up.
    assert [one.fields["require_stable"] for one in broker.asked("OffsetFetch")][-3:] == [
        False,
        True,
        True,
    ]
    broker.on("DeleteGroups").reply({"results": [{"group_id": "query-0"}]})
    assert main([*delete, "--markers"]) == 0
    assert len(broker.asked("DeleteGroups")) == 1


def test_a_group_that_shows_no_offsets_is_deleted_only_where_that_is_asked_for(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its markers may be in a transaction that is still open, or of topics that may not be described."""
    commit_marker(broker, "query-0")
    broker.on("OffsetFetch", times=None).change(lambda f: [one["topics"].clear() for one in f["groups"]])
    delete = ["groups", "query-0", "--delete", "-b", broker.bootstrap_servers]
    assert main(delete) == 1
    assert "group query-0 shows no offsets" in capsys.readouterr().err
    assert main(["groups", "missing", "--delete", "-b", broker.bootstrap_servers]) == 1
    assert "GROUP_ID_NOT_FOUND" in capsys.readouterr().err
    assert not broker.asked("DeleteGroups")
    broker.on("DeleteGroups").reply({"results": [{"group_id": "query-0"}]})
    assert main([*delete, "--markers"]) == 0


def test_groups_that_are_named_are_deleted_and_no_others(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = {"one": 68, "two": 0}  # NON_EMPTY_GROUP
    for name, code in codes.items():
        broker.on("DeleteGroups").reply({"results": [{"group_id": name, "error_code": code}]})
    assert main(["groups", "one", "two", "two", "--delete", "-b", broker.bootstrap_servers]) == 1
    assert [one.fields["groups_names"] for one in broker.asked("DeleteGroups")] == [["one"], ["two"]]
    refused, deleted = capsys.readouterr().err.splitlines()
    assert "deleting group one: NON_EMPTY_GROUP" in refused
    assert deleted == "two: deleted"


def test_users_without_credentials_are_an_error(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    alice = {"user": "alice", "credential_infos": [{"mechanism": 2, "iterations": 8192}]}
    carol = {"user": "carol", "error_code": 91, "credential_infos": []}  # RESOURCE_NOT_FOUND
    broker.on("DescribeUserScramCredentials").reply({"results": [alice, carol]})
    assert main(["users", "list", "alice", "carol", "--json", "-b", broker.bootstrap_servers]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out) == [{"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 8192}]
    assert shown.err == "error: user carol has no credentials\n"


def test_partitions_without_a_leader_or_a_replica_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Internal topics are listed on request: a pattern that begins as their names do, or an option."""

    def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
        response = cluster.metadata(request, version)
        for topic in response.topics:
            for at, partition in enumerate(topic.partitions):
                partition.replica_nodes[:] = [1, 2, 3]
                partition.isr_nodes[:] = [1, 2, 3][: 3 - at]
        topics = [replace(one, is_internal=(one.name or "").startswith("_")) for one in response.topics]
        return replace(response, topics=topics)

    with ScriptedCluster(1) as cluster:
        cluster.create("orders", partitions=3)
        cluster.create("_of_kafka")
        cluster.logs[TopicPartition("orders", 2)].leader = -1
        cluster[1].on(MetadataRequest, metadata)

        def listed(*arguments: str) -> dict[str, tuple[int, ...]]:
            assert main(["topics", "list", *arguments, "--json", "-b", cluster.bootstrap_servers]) == 0
            columns = ("partitions", "replicas", "under_replicated", "leaderless")
            rows = json.loads(capsys.readouterr().out)
            return {row["topic"]: tuple(row[name] for name in columns) for row in rows}

        orders, of_kafka = {"orders": (3, 3, 2, 1)}, {"_of_kafka": (1, 3, 0, 0)}
        assert listed() == listed("*") == listed("^") == orders
        assert listed("--internal") == orders | of_kafka
        assert listed("_*") == listed("^_of") == of_kafka


def test_a_topic_that_can_not_be_described_does_not_hide_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(fields: dict[str, Any]) -> None:
        for topic in fields["topics"]:
            if topic["name"] == "odd":
                topic["error_code"], topic["partitions"] = 29, []

    with MockBroker() as broker:
        for name in ("odd", "good"):
            broker.create_topic(name)
        broker.on("Metadata", times=None).change(refuse)
        assert main(["topics", "--json", "-b", broker.bootstrap_servers]) == 1
        shown = capsys.readouterr()
        assert [row["topic"] for row in json.loads(shown.out)] == ["good"]
        assert "topic odd: TOPIC_AUTHORIZATION_FAILED" in shown.err
        with Admin(broker.bootstrap_servers) as admin:
            assert [name for name, one in admin.describe_topics().items() if not one.error_code] == ["good"]
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                admin.describe_topics(["odd"])


def test_a_group_that_two_brokers_report_is_listed_once() -> None:
    """Its coordinator moved while they were asked one after the other."""
    with MockBroker(2) as broker:
        groups = [{"group_id": "g", "protocol_type": "consumer", "group_state": "Stable"}]
        broker.on("ListGroups", times=None).reply({"groups": groups})
        with Admin(broker.bootstrap_servers) as admin:
            assert [one.group_id for one in admin.list_groups()] == ["g"]


def test_the_lag_in_a_topic_that_the_metadata_lack_has_no_end() -> None:
    with MockBroker() as broker:
        broker.create_topic("a")
        with Admin(broker.bootstrap_servers) as admin:
            admin.reset_offsets("g", {TopicPartition("a", 0): 0})
            broker.on("Metadata", times=None).change(lambda fields: fields["topics"].clear())
            assert admin.group_lag("g")[TopicPartition("a", 0)].lag is None


@pytest.mark.parametrize(
    "command", [["topics"], ["describe"], ["offsets"], ["tail"], ["transactions", "hanging"]], ids=" ".join
)
@pytest.mark.parametrize("pattern", ["none*", "^none", "[n]one"])
def test_a_pattern_that_matches_no_topic_is_not_one_of_all(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], command: list[str], pattern: str
) -> None:
    names = [pattern] if command != ["topics"] else ["list", pattern]
    assert main([*command, *names, "-b", broker.bootstrap_servers]) == 1
    shown = capsys.readouterr()
    assert (shown.out, f"no topic matches '{pattern}'" in shown.err) == ("", True)


def test_groups_that_share_records_have_no_lag_and_no_members_of_ours(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = [{"group_id": "one", "group_type": "Classic"}, {"group_id": "s", "group_type": "Share"}]
    broker.on("ListGroups", times=None).reply({"groups": groups})
    member = {"member_id": "m", "client_id": "c", "client_host": "/h"}
    broker.on("ConsumerGroupDescribe", times=None).reply({"groups": [{"error_code": 69, "group_id": "one"}]})
    described = {"group_id": "one", "group_state": "Stable", "protocol_type": "consumer", "members": [member]}
    broker.on("DescribeGroups", times=None).reply({"groups": [described]})
    for how in ("--lag", "--members"):
        assert main(["groups", how, "--json", "-b", broker.bootstrap_servers]) == 0
        shown = capsys.readouterr()
        assert ([row["group"] for row in json.loads(shown.out)], shown.err) == (["one"], "")


def test_lag_that_no_group_gives_is_an_error_and_not_an_empty_table(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.on("OffsetFetch", times=None).fail("GROUP_AUTHORIZATION_FAILED")
    assert main(["groups", "--lag", "--json", "-b", broker.bootstrap_servers]) == 1
    shown = capsys.readouterr()
    assert (shown.out, "GROUP_AUTHORIZATION_FAILED" in shown.err) == ("", True)


@pytest.mark.parametrize(
    ("options", "states"),
    [([], []), (["--state", "Ongoing", "--state", "PrepareAbort"], ["Ongoing", "PrepareAbort"])],
)
def test_transactions_of_a_state_are_listed(
    broker: MockBroker, options: list[str], states: list[str]
) -> None:
    broker.on("ListTransactions").reply({"transaction_states": []})
    assert main(["transactions", "list", *options, "-b", broker.bootstrap_servers]) == 0
    [request] = broker.asked("ListTransactions")
    assert request.fields["state_filters"] == states


def test_a_transaction_is_described_with_its_partitions(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {
        "transactional_id": "x", "transaction_state": "Ongoing", "producer_id": 7, "producer_epoch": 3,
        "transaction_timeout_ms": 60_000, "transaction_start_time_ms": 1_700_000_000_000,
        "topics": [{"topic": "orders", "partitions": [0, 2]}, {"topic": "lines", "partitions": [1]}],
    }  # fmt: skip
    broker.on("DescribeTransactions").reply({"transaction_states": [state]})
    assert main(["transactions", "describe", "x", "--json", "-b", broker.bootstrap_servers]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "transactional_id": "x", "state": "Ongoing", "producer_id": 7, "producer_epoch": 3,
            "timeout_ms": 60_000, "started_ms": 1_700_000_000_000,
            "partitions": ["orders-0", "orders-2", "lines-1"],
        }
    ]  # fmt: skip


def test_a_member_is_shown_with_its_partitions(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assigned = [ProtocolTopicPartitions(topic="orders", partitions=[1, 0])]
    member = {
        "member_id": "m", "group_instance_id": "i", "client_id": "c", "client_host": "/h",
        "member_assignment": write_versioned(ConsumerProtocolAssignment(assigned_partitions=assigned)),
    }  # fmt: skip
    group = {"group_id": "one", "group_state": "Stable", "protocol_type": "consumer", "members": [member]}
    broker.on("ConsumerGroupDescribe").reply({"groups": [{"error_code": 69, "group_id": "one"}]})
    broker.on("DescribeGroups").reply({"groups": [group]})
    assert main(["groups", "one", "--members", "--json", "-b", broker.bootstrap_servers]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "group": "one", "member": "m", "client": "c", "host": "/h", "instance": "i", "partitions": 2,
            "assignment": ["orders-0", "orders-1"],
        }
    ]  # fmt: skip


@pytest.mark.parametrize("command", [["offsets"], ["delete-records", "--before", "1"]])
@pytest.mark.parametrize("options", [["-p", "0", "-p", "0"], ["-t", "orders"]], ids=" ".join)
def test_a_partition_that_is_named_twice_is_shown_once(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], command: list[str], options: list[str]
) -> None:
    """The sum over the rows would be too large."""
    assert main([*command, "orders", *options, "--json", "-b", broker.bootstrap_servers]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["topic"], row["partition"]) for row in rows] == [("orders", 0)]


@pytest.mark.parametrize("names", [[], ["alice"]])
def test_users_that_are_named_are_asked_for(broker: MockBroker, names: list[str]) -> None:
    alice = {"user": "alice", "credential_infos": [{"mechanism": 1, "iterations": 4096}]}
    broker.on("DescribeUserScramCredentials").reply({"results": [alice]})
    assert main(["users", "list", *names, "-b", broker.bootstrap_servers]) == 0
    [request] = broker.asked("DescribeUserScramCredentials")
    assert request.fields["users"] == [{"name": name} for name in names]


@pytest.mark.parametrize(("how", "call"), [("--lag", "group_lag"), ("--members", "describe_groups")])
def test_a_login_that_is_refused_meanwhile_is_not_tried_for_each_group(
    broker: MockBroker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    call: str,
) -> None:
    asked = list[object]()

    def refuse(_: Admin, *named: object) -> None:
        asked.extend(named)
        raise AuthenticationError("the password has changed")

    monkeypatch.setattr(Admin, call, refuse)
    assert main(["groups", "one", "two", how, "-b", broker.bootstrap_servers]) == 1
    assert len(asked) == 1
    assert "AuthenticationError: the password has changed" in capsys.readouterr().err


def test_a_login_that_one_leader_refuses_is_not_tried_for_each_group(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    refusal = AuthenticationError("the password has changed")

    def lag(_: Admin, name: str) -> dict[TopicPartition, PartitionLag]:
        asked.append(name)
        ends = [PartitionLag(committed_offset=1, end_offset=1)]
        ends.append(PartitionLag(committed_offset=1, end_offset=None, error=refusal))
        return {TopicPartition("orders", i): end for i, end in enumerate(ends)}

    monkeypatch.setattr(Admin, "group_lag", lag)
    assert main(["groups", "one", "two", "--lag", "-b", broker.bootstrap_servers]) == 1
    assert asked == ["one"]
    assert "AuthenticationError: the password has changed" in capsys.readouterr().err
