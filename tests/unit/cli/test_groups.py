"""`groups`: those that are named, and an error for a name that is none."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from spark_kafka_native.cli.main import main
from spark_kafka_native.kafka import Admin, TopicPartition
from spark_kafka_native.testing import MockBroker


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


@pytest.mark.parametrize("how", [[], ["--lag"], ["--members"]], ids=["list", "lag", "members"])
def test_a_name_that_is_no_group_is_an_error(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], how: list[str]
) -> None:
    """It would look like a group without lag, or without members."""
    assert main(["groups", "one", "tow", *how, "-b", broker.bootstrap_servers]) == 1
    shown = capsys.readouterr()
    assert (shown.out, "group tow: GROUP_ID_NOT_FOUND" in shown.err) == ("", True)


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
