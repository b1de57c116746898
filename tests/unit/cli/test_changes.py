"""Commands that change a cluster: they change the things that are named, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafka_native.cli.main import main
from spark_kafka_native.kafka import Admin, TopicPartition
from spark_kafka_native.testing import MockBroker

ALLOW, DENY = 3, 2
READ, WRITE = 3, 4
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
ANY, LITERAL, PREFIXED = 1, 3, 4
SHA_256, SHA_512 = 1, 2
BUFFERED = os.environ | {"PYTHONUNBUFFERED": ""}
"""The environment of a command, the output of which fails only once it is flushed."""


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker(3) as broker:
        broker.create_topic("orders", partitions=3)
        for partition in range(3):
            broker.append("orders", [f"{partition}{number}" for number in range(4)], partition=partition)
        yield broker


def run(broker: MockBroker, *arguments: str) -> None:
    assert main([*arguments, "-b", broker.bootstrap_servers]) == 0


def asked(broker: MockBroker, api: str) -> dict[str, Any]:
    """The fields of the only request."""
    (request,) = broker.asked(api)
    return request.fields


DAVE = ("--principal", "User:dave", "--host", "10.0.0.7", "--operation", "read", "--topic", "orders")


@pytest.mark.parametrize(
    ("options", "permission", "pattern"),
    [((), ALLOW, LITERAL), (("--deny",), DENY, LITERAL), (("--prefix",), ALLOW, PREFIXED)],
    ids=["allow", "deny", "prefix"],
)
def test_an_acl_is_added_and_removed_with_all_that_was_named(
    broker: MockBroker, options: tuple[str, ...], permission: int, pattern: int
) -> None:
    broker.on("CreateAcls").reply({"results": [{}]})
    broker.on("DeleteAcls").reply({"filter_results": [{}]})
    run(broker, "acls", "add", *DAVE, *options)
    run(broker, "acls", "remove", *DAVE, *options)
    (added,) = asked(broker, "CreateAcls")["creations"]
    (removed,) = asked(broker, "DeleteAcls")["filters"]
    expected = ("User:dave", "10.0.0.7", READ, permission, TOPIC, "orders", pattern)
    names = ("principal", "host", "operation", "permission_type")
    where = ("resource_type", "resource_name", "resource_pattern_type")
    assert tuple(added[name] for name in (*names, *where)) == expected
    names = ("principal_filter", "host_filter", "operation", "permission_type")
    where = ("resource_type_filter", "resource_name_filter", "pattern_type_filter")
    assert tuple(removed[name] for name in (*names, *where)) == expected


@pytest.mark.parametrize(
    ("option", "kind"), [("--topic", TOPIC), ("--group", GROUP), ("--transactional-id", TRANSACTIONAL_ID)]
)
def test_an_empty_name_of_a_resource_is_not_every_resource(
    broker: MockBroker, option: str, kind: int
) -> None:
    """A script with a variable that is not set would remove all that a user is allowed."""
    broker.on("DeleteAcls").reply({"filter_results": [{}]})
    run(broker, "acls", "remove", "--principal", "User:dave", option, "")
    (removed,) = asked(broker, "DeleteAcls")["filters"]
    where = ("resource_type_filter", "resource_name_filter", "pattern_type_filter")
    assert tuple(removed[name] for name in where) == (kind, "", LITERAL)


@pytest.mark.parametrize(
    ("options", "listed", "removed"),
    [
        (("--principal", "User:dave"), (ANY, ANY), (ALLOW, ANY)),
        (("--principal", "User:dave", "--deny"), (DENY, ANY), (DENY, ANY)),
        (("--principal", "User:dave", "--prefix"), (ANY, PREFIXED), (ALLOW, PREFIXED)),
        (("--topic", "orders"), (ANY, ANY), (ALLOW, LITERAL)),
        (("--group", "orders", "--prefix"), (ANY, PREFIXED), (ALLOW, PREFIXED)),
        (("--cluster", "--deny"), (DENY, ANY), (DENY, LITERAL)),
    ],
)
def test_acls_of_one_pattern_are_removed_only_where_there_is_a_name(
    broker: MockBroker, options: tuple[str, ...], listed: tuple[int, int], removed: tuple[int, int]
) -> None:
    """Without a name those of prefixes are removed, too: else the user would keep them."""
    broker.on("DescribeAcls").reply({"resources": []})
    broker.on("DeleteAcls").reply({"filter_results": [{}]})
    run(broker, "acls", "list", *options)
    run(broker, "acls", "remove", *options)
    for api, wanted in (("DescribeAcls", listed), ("DeleteAcls", removed)):
        fields = asked(broker, api)
        (found,) = fields.get("filters", [fields])
        assert (found["permission_type"], found["pattern_type_filter"]) == wanted


def test_acls_are_listed_and_not_removed(broker: MockBroker, capsys: pytest.CaptureFixture[str]) -> None:
    rule = {"principal": "User:dave", "host": "*", "operation": READ, "permission_type": DENY}
    resource = {"resource_type": CLUSTER, "resource_name": "kafka-cluster", "pattern_type": LITERAL}
    broker.on("DescribeAcls", times=2).reply({"resources": [resource | {"acls": [rule]}]})
    run(broker, "acls", "--cluster", "--operation", "read", "--operation", "write", "--json")
    assert broker.asked("DeleteAcls") == []
    sent = [one.fields for one in broker.asked("DescribeAcls")]
    names = ("resource_type_filter", "resource_name_filter", "operation", "permission_type", "host_filter")
    assert [tuple(one[name] for name in names) for one in sent] == [
        (CLUSTER, "kafka-cluster", operation, ANY, None) for operation in (READ, WRITE)
    ]
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["permission"], shown["principal"], shown["operation"]) == ("deny", "User:dave", "read")


def test_an_acl_without_a_host_is_for_every_one(broker: MockBroker) -> None:
    broker.on("CreateAcls").reply({"results": [{}]})
    run(broker, "acls", "add", "--principal", "User:dave", "--operation", "read", "--topic", "orders")
    (added,) = asked(broker, "CreateAcls")["creations"]
    assert added["host"] == "*"


def test_a_dry_run_makes_no_topic_and_no_partition(broker: MockBroker) -> None:
    run(broker, "topics", "create", "checked", "--partitions", "2", "--dry-run")
    run(broker, "topics", "grow", "orders", "--partitions", "5", "--dry-run")
    assert asked(broker, "CreateTopics")["validate_only"] is True
    assert asked(broker, "CreatePartitions")["validate_only"] is True
    with broker.cluster.changed:
        assert list(broker.cluster.topics) == ["orders"]
    assert broker.leader("orders", 2) > 0
    with pytest.raises(ValueError, match="no partition 3"):
        broker.leader("orders", 3)


def test_of_several_topics_those_that_stay_are_named(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic("late")
    assert main(["topics", "delete", "order", "late", "-b", broker.bootstrap_servers]) == 1
    with broker.cluster.changed:
        assert list(broker.cluster.topics) == ["orders"]
    refused, deleted = capsys.readouterr().err.splitlines()
    assert "deleting topic order: UNKNOWN_TOPIC_OR_PARTITION" in refused
    assert deleted == "late: deleted"
    assert main(["topics", "delete", "order", "--if-exists", "-b", broker.bootstrap_servers]) == 0


def test_replicas_stay_in_their_order(broker: MockBroker) -> None:
    """The first one of each partition leads it."""
    run(broker, "topics", "create", "placed", "--replicas", "3:1,2:3", "--dry-run")
    (topic,) = asked(broker, "CreateTopics")["topics"]
    placed = [(one["partition_index"], one["broker_ids"]) for one in topic["assignments"]]
    assert placed == [(0, [3, 1]), (1, [2, 3])]


@pytest.mark.parametrize(("name", "entity"), [("alice", "alice"), ("default", None)])
@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["made", "dry run"])
def test_a_limit_is_that_of_the_name(
    broker: MockBroker, name: str, entity: str | None, more: list[str]
) -> None:
    broker.on("AlterClientQuotas").reply({"entries": [{}]})
    changes = (
        "--set",
        "producer_byte_rate=5",
        "--set",
        "request_percentage=7",
        "--unset",
        "consumer_byte_rate",
    )
    run(broker, "quotas", "--user", name, *changes, *more)
    fields = asked(broker, "AlterClientQuotas")
    (entry,) = fields["entries"]
    assert [(one["entity_type"], one["entity_name"]) for one in entry["entity"]] == [("user", entity)]
    ops = {(one["key"], one["value"] if not one["remove"] else None) for one in entry["ops"]}
    assert ops == {("producer_byte_rate", 5.0), ("request_percentage", 7.0), ("consumer_byte_rate", None)}
    assert fields["validate_only"] is bool(more)


def test_a_limit_that_is_wrong_prints_no_outcome(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(broker, "quotas", "--user", "a", "--set", "producer_byte_rate=-5", "--json")
    assert capsys.readouterr().out == ""


def test_a_changed_limit_says_its_outcome_as_json(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.on("AlterClientQuotas").reply({"entries": [{}]})
    run(broker, "quotas", "--user", "default", "--set", "producer_byte_rate=5", "--json")
    assert json.loads(capsys.readouterr().out) == [
        {"name": "user default", "result": "changed", "error": None}
    ]


@pytest.mark.parametrize(
    ("options", "mechanism"),
    [((), SHA_512), (("--mechanism", "SCRAM-SHA-256"), SHA_256), (("--mechanism", "SCRAM-SHA-512"), SHA_512)],
)
def test_credentials_are_those_of_the_mechanism(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], mechanism: int
) -> None:
    monkeypatch.setenv("A_PASSWORD", "geheim")
    broker.on("AlterUserScramCredentials", times=2).reply({"results": [{"user": "alice"}]})
    run(broker, "users", "set", "alice", "--password", "env:A_PASSWORD", *options)
    run(broker, "users", "delete", "alice", *options)
    first, last = (one.fields for one in broker.asked("AlterUserScramCredentials"))
    (set_one,), (deleted,) = first["upsertions"], last["deletions"]
    assert (set_one["name"], set_one["mechanism"], first["deletions"]) == ("alice", mechanism, [])
    assert (deleted["name"], deleted["mechanism"], last["upsertions"]) == ("alice", mechanism, [])


@pytest.mark.parametrize(("options", "iterations"), [((), 8_192), (("--iterations", "16384"), 16_384)])
def test_a_password_is_hashed_as_often_as_was_asked_for(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], iterations: int
) -> None:
    monkeypatch.setenv("A_PASSWORD", "geheim")
    broker.on("AlterUserScramCredentials").reply({"results": [{"user": "alice"}]})
    run(broker, "users", "set", "alice", "--password", "env:A_PASSWORD", *options)
    (made,) = asked(broker, "AlterUserScramCredentials")["upsertions"]
    assert made["iterations"] == iterations


def test_a_group_moves_in_the_partitions_that_are_named(broker: MockBroker) -> None:
    run(broker, "reset", "g", "--to", "2", "-t", "orders", "--execute")
    run(broker, "reset", "g", "--to", "latest", "-t", "orders", "-p", "1", "--execute")
    expected = {TopicPartition("orders", partition): 4 if partition == 1 else 2 for partition in range(3)}
    assert broker.committed("g") == expected
    run(broker, "reset", "g", "--shift-by=-1", "-t", "orders", "-p", "2", "--execute")
    assert broker.committed("g") == expected | {TopicPartition("orders", 2): 1}
    run(broker, "reset", "g", "--shift-by=1", "-t", "orders")  # without --execute
    run(broker, "reset", "g", "--shift-by=0", "--execute")
    assert broker.committed("g") == expected | {TopicPartition("orders", 2): 1}
    run(broker, "reset", "g", "--to", "0", "-t", "orders", "-p", "0", "--execute")
    assert broker.committed("g") == expected | {
        TopicPartition("orders", 0): 0,
        TopicPartition("orders", 2): 1,
    }


@pytest.mark.parametrize(("shift", "wanted", "offset"), [("9", 11, 4), ("-9", -7, 1)])
def test_a_group_moves_no_further_than_the_records(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], shift: str, wanted: int, offset: int
) -> None:
    """An offset that does not exist would be lost to auto.offset.reset."""
    run(broker, "delete-records", "orders", "-p", "1", "--before", "1", "--execute")
    run(broker, "reset", "g", "--to", "2", "-t", "orders", "-p", "1", "--execute")
    run(broker, "reset", "g", f"--shift-by={shift}", "--execute")
    assert broker.committed("g") == {TopicPartition("orders", 1): offset}
    assert f"there is no offset {wanted} in orders-1 (it has 1 to 4)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ("reset", "g", "--to", "2", "-t", "orders", "--execute"),
        ("delete-records", "orders", "--before", "2", "--execute"),
        ("offsets", "orders"),
        ("tail", "orders"),
        ("tail", "orders", "-f"),
    ],
)
def test_a_partition_that_does_not_exist_is_refused(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """At once: one that does not answer would be waited for, and `tail -f` would go on without it."""
    for options in (["-p", "99"], ["-p", "1", "-p", "3"]):
        assert main([*command, *options, "-b", broker.bootstrap_servers]) == 1
        assert f"partition orders-{options[-1]}" in (err := capsys.readouterr().err)
        assert "topic orders has 3 partitions" in err
    assert broker.asked("ListOffsets") == []
    assert broker.committed("g") == {}
    assert len(broker.records("orders", 1)) == 4


def test_a_time_after_the_last_record_is_the_end(broker: MockBroker) -> None:
    run(broker, "reset", "g", "--to", "2100-01-01", "-t", "orders", "-p", "1", "--execute")
    assert broker.committed("g") == {TopicPartition("orders", 1): 4}


def test_records_are_deleted_in_the_partitions_that_are_named(broker: MockBroker) -> None:
    run(broker, "delete-records", "orders", "-p", "1", "--before", "3", "--execute")
    assert [len(broker.records("orders", partition)) for partition in range(3)] == [4, 1, 4]


def test_the_partitions_whose_records_are_deleted_are_shown_though_another_refuses(
    broker: MockBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = [{"partition_index": 1, "error_code": 29}]
    bad = broker.leader("orders", 1)
    broker.on("DeleteRecords", node_id=bad).reply({"topics": [{"name": "orders", "partitions": refused}]})
    command = ["delete-records", "orders", "--before", "3", "--execute", "--json"]
    assert main([*command, "-b", broker.bootstrap_servers]) == 1
    shown = capfd.readouterr()
    assert [(row["partition"], row["records"]) for row in json.loads(shown.out)] == [(0, 3), (2, 3)]
    assert "deleting records of orders-1 before offset 3: TOPIC_AUTHORIZATION_FAILED" in shown.err
    assert shown.err.endswith("deleted in the other partitions\n")
    assert [len(broker.records("orders", partition)) for partition in range(3)] == [1, 4, 1]


def test_a_change_that_may_have_been_made_is_said_to(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.on("CreateTopics", times=None).cut()
    command = ["topics", "create", "new", "--json", "--timeout", "1", "-b", broker.bootstrap_servers]
    assert main(command) == 1
    shown = capsys.readouterr()
    (row,) = json.loads(shown.out)
    for text in (row["error"], shown.err):
        assert "; an attempt, of which the response was lost, may have been carried out" in text
    assert "new" in broker.cluster.topics


@pytest.mark.parametrize("is_partial", [False, True])
def test_records_that_may_be_deleted_are_not_said_to_be_there(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], is_partial: bool
) -> None:
    broker.on("DeleteRecords", node_id=broker.leader("orders", 1), times=None).cut()
    only = [] if is_partial else ["-p", "1"]
    command = ["delete-records", "orders", "--before", "3", "--execute", "--timeout", "1", *only]
    assert main([*command, "-b", broker.bootstrap_servers]) == 1
    err = capsys.readouterr().err
    assert "records may have been deleted nevertheless: orders-1\n" in err
    assert "not deleted" not in err
    assert ("deleted in the other partitions" in err) is is_partial
    assert len(broker.records("orders", 1)) == 1


def test_the_transaction_that_is_named_is_aborted(broker: MockBroker) -> None:
    producers = [
        {"producer_id": 70 + at, "producer_epoch": 3, "current_txn_start_offset": at} for at in (1, 2)
    ]
    there = [{"partition_index": index, "active_producers": producers} for index in range(3)]
    broker.on("DescribeProducers").reply({"topics": [{"name": "orders", "partitions": there}]})
    written = {"name": "orders", "partitions": [{"partition_index": 1}]}
    broker.on("WriteTxnMarkers").reply({"markers": [{"producer_id": 72, "topics": [written]}]})
    run(broker, "transactions", "abort", "orders", "-p", "1", "--start-offset", "2")
    (marker,) = asked(broker, "WriteTxnMarkers")["markers"]
    assert (marker["producer_id"], marker["producer_epoch"], marker["transaction_result"]) == (72, 3, False)
    assert [(one["name"], one["partition_indexes"]) for one in marker["topics"]] == [("orders", [1])]


@pytest.mark.parametrize(
    "words",
    [
        ("orders", "-p", "1"),
        ("orders", "--start-offset", "2"),
        ("orders", "lines", "-p", "1", "--start-offset", "2"),
    ],
)
def test_an_abort_takes_all_that_names_a_transaction(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """Without an offset a producer that has no open transaction would be taken."""
    idle = {"producer_id": 71, "producer_epoch": 3, "current_txn_start_offset": -1}
    there = [{"partition_index": 1, "active_producers": [idle]}]
    broker.on("DescribeProducers", times=None).reply({"topics": [{"name": "orders", "partitions": there}]})
    with pytest.raises(SystemExit, match="2"):
        run(broker, "transactions", "abort", *words)
    assert "abort: give one topic, --partition and --start-offset" in capsys.readouterr().err
    assert broker.asked("WriteTxnMarkers") == []


def test_an_abort_at_an_offset_where_no_transaction_begins_fails(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    producers = [{"producer_id": 71, "producer_epoch": 3, "current_txn_start_offset": 1}]
    there = [{"partition_index": 1, "active_producers": producers}]
    broker.on("DescribeProducers").reply({"topics": [{"name": "orders", "partitions": there}]})
    command = ("transactions", "abort", "orders", "-p", "1", "--start-offset", "2")
    assert main([*command, "-b", broker.bootstrap_servers]) == 1
    assert "error: no transaction is open in orders-1 that begins at offset 2" in capsys.readouterr().err
    assert broker.asked("WriteTxnMarkers") == []


@pytest.mark.parametrize(
    ("is_aborted", "says"),
    [(True, "is aborted"), (False, "is no longer open: aborted, or ended by its producer")],
)
def test_an_abort_says_no_more_than_it_knows(
    broker: MockBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_aborted: bool,
    says: str,
) -> None:
    """The producer may have committed it, where the response of the leader was lost."""
    monkeypatch.setattr(Admin, "abort_hanging", lambda *_: is_aborted)
    run(broker, "transactions", "abort", "orders", "-p", "1", "--start-offset", "2")
    assert capsys.readouterr().err == f"orders-1: the transaction from offset 2 {says}\n"


@pytest.mark.parametrize(
    ("action", "api", "period"),
    [
        (["expire"], "ExpireDelegationToken", "expiry_time_period_ms"),
        (["renew", "--period", "2h"], "RenewDelegationToken", "renew_period_ms"),
    ],
)
def test_the_token_that_is_named_expires_or_lives_on(
    broker: MockBroker, action: list[str], api: str, period: str
) -> None:
    tokens = [{"token_id": name, "hmac": name.encode()} for name in ("first", "second", "third")]
    broker.on("DescribeDelegationToken").reply({"tokens": tokens})
    broker.on(api).reply({})
    run(broker, "tokens", action[0], "second", *action[1:])
    fields = asked(broker, api)
    assert (fields["hmac"], fields[period]) == (b"second", 7_200_000 if action[1:] else -1)


def test_each_renewer_that_is_named_may_renew_the_token(broker: MockBroker) -> None:
    broker.on("CreateDelegationToken").reply({})
    run(broker, "tokens", "create", "--renewer", "User:a", "--renewer", "User:b")
    renewers = asked(broker, "CreateDelegationToken")["renewers"]
    assert [(one["principal_type"], one["principal_name"]) for one in renewers] == [
        ("User", "a"),
        ("User", "b"),
    ]


def run_into_closed_pipe(
    broker: MockBroker, *arguments: str, buffered: bool = False, stop: bool = False
) -> tuple[int, str]:
    """The exit code, and standard error, where the reader of standard output has hung up; ``stop``: Ctrl-C
    once a topic is deleted."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONUNBUFFERED": "" if buffered else "1"}
    command = [sys.executable, "-m", "spark_kafka_native", *arguments, "-b", broker.bootstrap_servers]
    with (
        os.fdopen(writing, "w") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, env=environment) as ran,
    ):
        try:
            while stop and len(broker.asked("DeleteTopics")) < 2:
                time.sleep(0.01)
            if stop:
                ran.send_signal(signal.SIGINT)
            return ran.wait(60), ran.stderr.read() if ran.stderr else ""
        finally:
            ran.kill()


@pytest.mark.parametrize("buffered", [False, True])
def test_records_are_deleted_though_the_reader_has_hung_up(broker: MockBroker, buffered: bool) -> None:
    command = ("delete-records", "orders", "--before", "3", "--execute")
    assert run_into_closed_pipe(broker, *command, buffered=buffered) == (0, "deleted\n")
    assert [len(broker.records("orders", partition)) for partition in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("buffered", [False, True])
def test_a_reader_that_has_hung_up_changes_no_exit_code(broker: MockBroker, buffered: bool) -> None:
    code, err = run_into_closed_pipe(broker, "topics", "delete", "order", "--json", buffered=buffered)
    assert (code, "deleting topic order: UNKNOWN_TOPIC_OR_PARTITION" in err) == (1, True)
    rule = {"principal": "User:b", "resource_type": TOPIC, "resource_name": "orders", "pattern_type": LITERAL}
    rule |= {"host": "*", "operation": READ, "permission_type": ALLOW}
    broker.on("DeleteAcls").reply({"filter_results": [{"matching_acls": [rule]}]})
    broker.on("DeleteAcls").reply({"filter_results": [{"error_code": 31}]})
    command = ("acls", "remove", "--principal", "User:b", "--operation", "read", "--operation", "write")
    code, err = run_into_closed_pipe(broker, *command, buffered=buffered)
    assert (code, err.startswith("1 removed\nBrokerError: deleting ACLs: CLUSTER_AUTHORIZATION_FAILED")) == (
        1,
        True,
    )
    broker.create_topic("late")
    broker.on("DeleteTopics", after=1).delay(60)
    command = ("topics", "delete", "late", "orders", "--json")
    code, err = run_into_closed_pipe(broker, *command, buffered=buffered, stop=True)
    assert (code, err) == (130, "Stopped.\n")


@pytest.mark.parametrize(
    ("command", "buffered"),
    [
        (["topics"], True),
        (["topics"], False),
        (["topics", "--json"], True),
        (["tail", "orders"], True),
        (["doctor"], False),
    ],
)
def test_failures_make_the_exit_code_though_the_reader_has_hung_up(
    broker: MockBroker, command: list[str], buffered: bool
) -> None:
    """Also of an output that is longer than the buffer, where an earlier line fails."""
    for number in range(300):
        broker.create_topic(f"{number:040}")
    broker.create_topic("secret")

    def hide(fields: dict[str, Any]) -> None:
        for topic in fields["topics"]:
            if topic["name"] == "secret":
                topic |= {"error_code": 29, "partitions": []}

    broker.on("Metadata", times=None).change(hide)
    with broker.cluster.changed:
        broker.cluster.topics["orders"].partitions[0].leader = -1
    if command == ["doctor"]:
        broker.stop(3, is_noticed=False)
    code, err = run_into_closed_pipe(broker, *command, buffered=buffered)
    assert (code, "BrokenPipe" in err) == (1, False)


def test_each_name_is_tried_also_if_one_does_not_answer(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    def deleted(request: Any) -> dict[str, Any]:
        names = request.fields["groups_names"]
        return {"results": [{"group_id": name, "error_code": 15 if name == "one" else 0} for name in names]}

    broker.on("DeleteGroups", times=None).reply(deleted)
    for name in ("one", "two"):
        run(broker, "reset", name, "--to", "2", "-t", "orders", "--execute")
    capsys.readouterr()
    command = ["groups", "one", "two", "--delete", "--json", "--timeout", "1", "-b", broker.bootstrap_servers]
    assert main(command) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["result"]) for row in rows] == [("one", "failed"), ("two", "deleted")]
    assert "COORDINATOR_NOT_AVAILABLE" in rows[0]["error"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a\udcff", r"this is not UTF-8: 'a\udcff'"),
        ("x" * 40_000, "a string of 40000 bytes is longer than 32767"),
    ],
    ids=["no UTF-8", "too long"],
)
@pytest.mark.parametrize(
    "command",
    [("topics", "create"), ("topics", "delete"), ("groups", "--delete"), ("offsets",)],
    ids=" ".join,
)
def test_a_name_that_kafka_can_not_have_is_one_line(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], name: str, says: str
) -> None:
    assert main([*command, name, "-b", broker.bootstrap_servers]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert says in line


def test_the_line_of_a_failure_names_what_it_is_about(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["topics", "delete", "gone", "orders", "-b", broker.bootstrap_servers]
    assert main(command) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["gone", "orders"]


def test_a_wrong_password_is_tried_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Each login locks the account a little more."""
    login = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=SCRAM-SHA-256", "sasl.username=u"]
    options = [part for one in [*login, "sasl.password=wrong"] for part in ("-X", one)]
    with MockBroker(users={"u": "p"}) as broker:
        command = ["topics", "delete", *"abc", "-b", broker.bootstrap_servers, *options, "--json"]
        assert main(command) == 1
        assert len(broker.asked("SaslHandshake")) == 1
    printed = capsys.readouterr()
    assert (json.loads(printed.out), printed.err.count("AuthenticationError")) == ([], 1)


@pytest.mark.parametrize("matching", [0, 1])
def test_a_removal_says_how_many_acls_there_were(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], matching: int
) -> None:
    rule = {"principal": "User:b", "resource_type": TOPIC, "resource_name": "orders", "pattern_type": LITERAL}
    rule |= {"host": "*", "operation": READ, "permission_type": ALLOW}
    broker.on("DeleteAcls").reply({"filter_results": [{"matching_acls": [rule] * matching}]})
    run(broker, "acls", "remove", "--principal", "User:b")
    assert capsys.readouterr().err == f"{matching} removed\n"


def test_acls_that_were_removed_beside_one_that_was_refused_are_not_none(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = {"principal": "User:b", "resource_type": TOPIC, "resource_name": "orders", "pattern_type": LITERAL}
    rule |= {"host": "*", "operation": READ, "permission_type": ALLOW}
    refused = rule | {"operation": WRITE, "error_code": 31}
    broker.on("DeleteAcls").reply({"filter_results": [{"matching_acls": [rule, refused]}]})
    assert main(["acls", "remove", "--principal", "User:b", "-b", broker.bootstrap_servers]) == 1
    err = capsys.readouterr().err
    assert "0 removed" not in err
    assert "deleted nevertheless: allow User:b from * to read topic orders" in err


@pytest.mark.parametrize(
    ("more", "said"), [([], "would be created"), (["--if-not-exists"], "would be there")]
)
def test_a_dry_run_says_no_more_than_it_knows(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    run(broker, "topics", "create", "new", "--dry-run", *more)
    assert capsys.readouterr().err == f"new: {said}\n"


def test_a_group_is_not_shifted_where_it_has_committed_nothing(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is it in the other partitions then."""
    run(broker, "reset", "g", "--to", "2", "-t", "orders", "-p", "1", "--execute")
    with pytest.raises(SystemExit, match="2"):
        run(broker, "reset", "g", "--shift-by=1", "-t", "orders", "--execute")
    assert "--shift-by: group g has committed nothing for orders-0" in capsys.readouterr().err
    assert broker.committed("g") == {TopicPartition("orders", 1): 2}


def test_partitions_without_a_topic_are_wrong_usage_of_a_reset(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The group would move in all of its partitions."""
    run(broker, "reset", "g", "--to", "2", "-t", "orders", "--execute")
    with pytest.raises(SystemExit, match="2"):
        run(broker, "reset", "g", "--to", "earliest", "-p", "1", "--execute")
    assert "--partition: of which topic?" in capsys.readouterr().err
    assert set(broker.committed("g").values()) == {2}


@pytest.mark.parametrize(("again", "code"), [("geheim", 0), ("gehiem", 2), ("", 2)])
def test_a_password_is_typed_twice(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, again: str, code: int
) -> None:
    typed = iter(["geheim", again])
    monkeypatch.setattr("getpass.getpass", lambda _prompt: next(typed))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    broker.on("AlterUserScramCredentials").reply({"results": [{"user": "alice"}]})
    with pytest.raises(SystemExit, match="2") if code else nullcontext():
        run(broker, "users", "set", "alice")
    assert len(broker.asked("AlterUserScramCredentials")) == (0 if code else 1)


@pytest.mark.parametrize(
    "options",
    [(), ("--operation", "read"), ("--principal", ""), ("--host", "10.0.0.7", "--deny"), ("--prefix",)],
    ids=["nothing", "operation", "empty principal", "host", "prefix"],
)
def test_acls_of_everything_are_not_removed(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    """A script with a variable that is not set would remove those of all users."""
    with pytest.raises(SystemExit, match="2"):
        run(broker, "acls", "remove", *options)
    assert "remove: whose, or of what?" in capsys.readouterr().err
    assert broker.asked("DeleteAcls") == []


@pytest.mark.parametrize("action", ["expire", "renew", "describe"])
def test_a_token_that_is_not_there_makes_the_exit_code_and_the_others_are_changed(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    tokens = [{"token_id": name, "hmac": name.encode()} for name in ("first", "second")]
    broker.on("DescribeDelegationToken").reply({"tokens": tokens})
    broker.on("ExpireDelegationToken").reply({})
    broker.on("RenewDelegationToken").reply({})
    command = ["tokens", action, "second", "gone", "--json", "-b", broker.bootstrap_servers]
    assert main(command) == 1
    shown = capsys.readouterr()
    [row] = json.loads(shown.out)
    assert row["token_id" if action == "describe" else "name"] == "second"
    assert "error: no token gone that this user may see" in shown.err


def test_a_token_that_is_named_twice_is_changed_once(broker: MockBroker) -> None:
    """The second time it would not be there, which would pass for a failure."""
    broker.on("DescribeDelegationToken").reply({"tokens": [{"token_id": "one", "hmac": b"one"}]})
    broker.on("ExpireDelegationToken").reply({})
    run(broker, "tokens", "expire", "one", "one")
    assert len(broker.asked("ExpireDelegationToken")) == 1


def test_an_absent_topic_is_not_said_to_be_deleted(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    run(broker, "topics", "delete", "gone", "--if-exists")
    assert capsys.readouterr().err == "gone: is not there\n"


@pytest.mark.parametrize("count", ["--partitions=2", "--replication-factor=1"])
def test_counts_beside_the_replicas_of_each_partition_are_wrong_usage(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], count: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(broker, "topics", "create", "new", "--replicas", "1:2", count)
    assert "--replicas says how many partitions and replicas there are" in capsys.readouterr().err
    assert broker.asked("CreateTopics") == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("produce", "orders", "-p", "0", "--json"), "1 record of 1 written."),
        (("reset", "g", "--shift-by=-1", "--execute", "--json"), "Group g moved: orders-0 to 1"),
        (("produce", "orders", "-p", "0", "--json", "-X", "acks=0"), "1 record of 1 sent."),
        (("tokens", "create"), "The token id-1 is made, and its HMAC is lost: expire it."),
        (("topics", "create", "new", "newer", "--json"), "new: created\nnewer: created"),
        (("topics", "delete", "orders", "--json"), "orders: deleted"),
        (("acls", "add", "--principal=User:b", "--operation=read", "--topic=t"), "1 ACL added."),
    ],
)
def test_a_change_is_said_to_be_made_where_its_output_can_not_be_written(
    broker: MockBroker, command: tuple[str, ...], said: str
) -> None:
    """A script that took it for a failure wrote twice, or moved the group twice."""
    run(broker, "reset", "g", "--to", "2", "-t", "orders", "-p", "0", "--execute")
    broker.on("CreateDelegationToken").reply({"token_id": "id-1", "hmac": b"x"})
    broker.on("CreateAcls").reply({"results": [{}]})
    line = [sys.executable, "-m", "spark_kafka_native", *command, "-b", broker.bootstrap_servers]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(line, input="x\n", stdout=full, stderr=subprocess.PIPE, text=True, env=BUFFERED)
    assert (ran.returncode, ran.stderr.startswith(said + "\n")) == (1, True)
    assert "No space left" in ran.stderr


def test_a_token_whose_reader_has_hung_up_is_no_success(broker: MockBroker) -> None:
    """Its HMAC is shown once: in a pipe that breaks, a token was left that no one can use."""
    broker.on("CreateDelegationToken").reply({"token_id": "id-1", "hmac": b"x"})
    line = [sys.executable, "-m", "spark_kafka_native", "tokens", "create", "-b", broker.bootstrap_servers]
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, text=True, env=BUFFERED)
    os.close(writer)
    assert ran.returncode == 1
    assert ran.stderr == "The token id-1 is made, and its HMAC is lost: expire it.\n"


def test_a_group_that_may_have_moved_when_a_signal_came_is_said_to(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(broker, "reset", "g", "--to", "2", "-t", "orders", "-p", "0", "--execute")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Admin, "reset_offsets", stopped)
    with pytest.raises(KeyboardInterrupt):
        main(["reset", "g", "--shift-by=-1", "--execute", "-b", broker.bootstrap_servers])
    assert capsys.readouterr().err.startswith("Group g may have moved nevertheless: orders-0 to 1.")


def test_a_group_that_may_have_moved_is_said_to(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    run(broker, "reset", "g", "--to", "2", "-t", "orders", "-p", "0", "--execute")
    broker.on("OffsetCommit", times=None).drop_reply()
    command = ["reset", "g", "--shift-by=-1", "--execute", "--timeout", "1", "-b", broker.bootstrap_servers]
    assert main(command) == 1
    said = "Group g may have moved nevertheless: orders-0 to 1. --to sets an offset."
    assert capsys.readouterr().err.splitlines()[0] == said


def test_words_behind_two_dashes_are_names(broker: MockBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """Records were deleted for the topic `--execute`, which a script had put there as a name."""
    to = ("-b", broker.bootstrap_servers)
    assert main(["delete-records", "--before", "latest", *to, "--", "orders", "--execute"]) != 0
    assert [len(broker.records("orders", partition)) for partition in range(3)] == [4, 4, 4]
    assert not broker.asked("DeleteRecords")
    assert main(["reset", "--to", "2", "-t", "orders", "--execute", *to, "--", "-x"]) == 0
    assert set(broker.committed("-x").values()) == {2}
    capsys.readouterr()
    assert main(["groups", "--lag", "--json", *to, "--", "-x"]) == 0
    assert {row["group"] for row in json.loads(capsys.readouterr().out)} == {"-x"}
    with pytest.raises(SystemExit, match="2"):
        main(["reset", *to, "--to", "2", "--", "-x", "--y"])
    assert "unrecognized arguments: --y" in capsys.readouterr().err
    for command in (
        ["produce", *to, "orders", "--key", "--", "-x"],
        ["reset", *to, "g", "-t", "--", "orders"],
    ):
        with pytest.raises(SystemExit, match="2"):  # an option without its value takes no name for it
            main(command)
        assert "expected one argument" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["topics", *to, "--", "--lst"])
    assert "invalid choice: '--lst'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "api", "reply"),
    [
        (("topics", "delete", "orders", "orders"), "DeleteTopics", {"responses": [{"name": "orders"}]}),
        (("topics", "create", "new", "new"), "CreateTopics", None),
        (("users", "delete", "a", "a"), "AlterUserScramCredentials", {"results": [{"user": "a"}]}),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_a_name_that_is_given_twice_is_changed_once(
    broker: MockBroker, command: tuple[str, ...], api: str, reply: dict[str, Any] | None
) -> None:
    """The second change would be refused, which makes the exit code."""
    if reply is not None:
        broker.on(api).reply(reply)
    run(broker, *command)
    assert len(broker.asked(api)) == 1


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_no_records_are_deleted_without_the_word(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    run(broker, "delete-records", "orders", "-p", "1", "--before", "3", *more)
    shown = capsys.readouterr()
    assert shown.err == "Nothing was deleted: --execute does it.\n"
    row = {"topic": "orders", "partition": 1, "first": 0, "before": 3, "records": 3}
    assert shown.out == (f"{json.dumps([row])}\n" if more else "orders\t1\t0\t3\t3\n")
    assert broker.asked("DeleteRecords") == []


@pytest.mark.parametrize("pattern", ["ord*", "order?", "[o]rders", "^orders"])
@pytest.mark.parametrize(
    ("command", "api"),
    [
        (("topics", "delete"), "DeleteTopics"),
        (("topics", "create"), "CreateTopics"),
        (("topics", "grow", "--partitions", "9"), "CreatePartitions"),
        (("delete-records", "--before", "latest", "--execute"), "DeleteRecords"),
    ],
    ids=["delete", "create", "grow", "delete-records"],
)
def test_a_pattern_changes_no_topic(
    broker: MockBroker,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    api: str,
    pattern: str,
) -> None:
    """More topics may match it than its author knows."""
    with pytest.raises(SystemExit, match="2"):
        run(broker, *command, "--", pattern)
    assert f"'{pattern}' is a pattern: name each topic" in capsys.readouterr().err
    assert broker.asked(api) == []


@pytest.mark.parametrize("execute", [True, False])
def test_a_reset_shows_where_the_group_was_and_where_it_goes(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], execute: bool
) -> None:
    run(broker, "reset", "g", "--to", "3", "-t", "orders", "-p", "1", "--execute")
    capsys.readouterr()
    options = ["--execute"] if execute else []
    run(broker, "reset", "g", "--to", "1", "-t", "orders", "-p", "0", "-p", "1", "--json", *options)
    shown = capsys.readouterr()
    assert [tuple(row.values()) for row in json.loads(shown.out)] == [
        ("orders", 0, None, 1),
        ("orders", 1, 3, 1),
    ]
    assert shown.err == ("" if execute else "Nothing was changed: --execute does it.\n")


def test_a_group_without_offsets_can_not_be_moved_in_all_of_its_partitions(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt name of a group would pass for one that has moved."""
    assert main(["reset", "typo", "--to", "latest", "--execute", "-b", broker.bootstrap_servers]) == 1
    assert "Group typo has committed no offsets" in capsys.readouterr().err
    assert broker.asked("OffsetCommit") == []


@pytest.mark.parametrize("password", ["geheim", "ENV:A_PASSWORD", ""])
def test_a_password_is_not_taken_from_the_command_line(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], password: str
) -> None:
    """Every user of the machine can read it there."""
    with pytest.raises(SystemExit, match="2"):
        run(broker, "users", "set", "alice", "--password", password)
    err = capsys.readouterr().err
    assert ("--password names a place: env:NAME or file:/path" in err, "geheim" in err) == (True, False)
    assert broker.asked("AlterUserScramCredentials") == []


@pytest.mark.parametrize(
    ("options", "owner", "lifetime_ms"),
    [
        ((), ("", ""), -1),
        (("--owner", "User:bob"), ("User", "bob"), -1),
        (("--max-lifetime", "90m"), ("", ""), 5_400_000),
    ],
    ids=["nothing", "owner", "lifetime"],
)
def test_a_token_is_that_of_its_owner_for_the_time_that_is_given(
    broker: MockBroker, options: tuple[str, ...], owner: tuple[str, str], lifetime_ms: int
) -> None:
    broker.on("CreateDelegationToken").reply({})
    run(broker, "tokens", "create", *options)
    fields = asked(broker, "CreateDelegationToken")
    assert (fields["owner_principal_type"], fields["owner_principal_name"]) == owner
    assert fields["max_lifetime_ms"] == lifetime_ms


@pytest.mark.parametrize(
    ("options", "owners"),
    [((), None), (("--owner", "User:bob"), [{"principal_type": "User", "principal_name": "bob"}])],
)
def test_tokens_of_the_owner_alone_are_shown(
    broker: MockBroker, options: tuple[str, ...], owners: list[dict[str, str]] | None
) -> None:
    broker.on("DescribeDelegationToken").reply({"tokens": []})
    run(broker, "tokens", "describe", *options)
    assert asked(broker, "DescribeDelegationToken")["owners"] == owners


@pytest.mark.parametrize(
    ("action", "api"), [("expire", "ExpireDelegationToken"), ("renew", "RenewDelegationToken")]
)
def test_a_token_that_may_not_be_changed_makes_the_exit_code(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], action: str, api: str
) -> None:
    broker.on("DescribeDelegationToken").reply({"tokens": [{"token_id": "one", "hmac": b"one"}]})
    broker.on(api).reply({"error_code": 63})
    assert main(["tokens", action, "one", "-b", broker.bootstrap_servers]) == 1
    assert "DELEGATION_TOKEN_OWNER_MISMATCH" in capsys.readouterr().err


def test_a_token_with_times_that_are_no_dates_is_shown(
    broker: MockBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its HMAC is shown only this once."""
    times = {"issue_timestamp_ms": 0, "expiry_timestamp_ms": 2**62, "max_timestamp_ms": -(2**62)}
    broker.on("CreateDelegationToken").reply({"token_id": "id-1", "hmac": b"x"} | times)
    run(broker, "tokens", "create", "--json")
    [row] = json.loads(capsys.readouterr().out)
    assert (row["hmac"], row["issued"]) == ("eA==", "1970-01-01T00:00:00.000+00:00")
    assert (row["expires"], row["max"]) == (f"{2**62} ms", f"{-(2**62)} ms")


@pytest.mark.parametrize(
    ("option", "kind"), [("--user", "user"), ("--client-id", "client-id"), ("--ip", "ip")]
)
@pytest.mark.parametrize(("name", "entity"), [("x", "x"), ("default", None)])
def test_limits_are_those_of_the_kind_of_name(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], option: str, kind: str, name: str, entity: Any
) -> None:
    broker.on("AlterClientQuotas").reply({"entries": [{}]})
    run(broker, "quotas", option, name, "--set", "a=1")
    (changed,) = asked(broker, "AlterClientQuotas")["entries"]
    assert [(one["entity_type"], one["entity_name"]) for one in changed["entity"]] == [(kind, entity)]
    capsys.readouterr()
    found = {
        "entity": [{"entity_type": kind, "entity_name": entity}],
        "values": [{"key": "a", "value": 1.0}],
    }
    broker.on("DescribeClientQuotas").reply({"entries": [found]})
    run(broker, "quotas", option, name, "--json")
    assert json.loads(capsys.readouterr().out) == [{kind: name, "limit": "a", "value": 1.0}]
    (one,) = asked(broker, "DescribeClientQuotas")["components"]
    assert (one["entity_type"], one["match"]) == (kind, entity)


def test_a_topic_is_made_as_the_options_say(broker: MockBroker) -> None:
    options = ("--partitions", "3", "--replication-factor", "2", "--set", "a=b", "--set", "c=")
    run(broker, "topics", "create", "new", *options)
    (topic,) = asked(broker, "CreateTopics")["topics"]
    assert (topic["name"], topic["num_partitions"], topic["replication_factor"]) == ("new", 3, 2)
    assert {one["name"]: one["value"] for one in topic["configs"]} == {"a": "b", "c": ""}
    run(broker, "topics", "grow", "new", "--partitions", "5")
    (grown,) = asked(broker, "CreatePartitions")["topics"]
    assert (grown["name"], grown["count"]) == ("new", 5)


@pytest.mark.parametrize(("options", "code"), [((), 1), (("--if-not-exists",), 0)])
def test_a_topic_that_is_there_is_a_failure_unless_that_is_accepted(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], code: int
) -> None:
    assert main(["topics", "create", "orders", *options, "-b", broker.bootstrap_servers]) == code
    assert ("TOPIC_ALREADY_EXISTS" in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize("command", [("topics",), ("topics", "--json"), ("offsets", "orders")])
def test_a_list_that_can_not_be_written_is_no_success(broker: MockBroker, command: tuple[str, ...]) -> None:
    """As where the disk is full: a script would go on with a part of it."""
    line = [sys.executable, "-m", "spark_kafka_native", *command, "-b", broker.bootstrap_servers]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, env=BUFFERED)
    assert (ran.returncode, "No space left" in ran.stderr) == (1, True)


def test_messages_are_no_output_where_standard_error_is_closed(broker: MockBroker) -> None:
    """Python would print them to standard output then, where a script looks for names."""
    words = [sys.executable, "-m", "spark_kafka_native", "topics", "delete", "gone", "orders"]
    line = ["sh", "-c", 'exec "$0" "$@" 2>&-', *words, "-b", broker.bootstrap_servers]
    ran = subprocess.run(line, stdout=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stdout) == (1, "")
