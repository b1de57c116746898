"""`configs`: each option by itself is a change."""

from __future__ import annotations

import json

import pytest

from spark_kafka_native.cli.main import main
from spark_kafka_native.testing import MockBroker

SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.mark.parametrize(
    ("option", "change"),
    [
        ("--set=retention.ms=7", ("retention.ms", SET, "7")),
        ("--set=cleanup.policy=", ("cleanup.policy", SET, "")),  # an empty list is no default
        ("--unset=retention.ms", ("retention.ms", DELETE, None)),
        ("--append=cleanup.policy=compact", ("cleanup.policy", APPEND, "compact")),
        ("--subtract=cleanup.policy=delete", ("cleanup.policy", SUBTRACT, "delete")),
    ],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["made", "dry run"])
def test_one_option_changes_what_it_names(
    option: str, change: tuple[str, int, str | None], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with MockBroker() as broker:
        broker.on("IncrementalAlterConfigs").reply(
            {"responses": [{"resource_type": 2, "resource_name": "orders"}]}
        )
        assert main(["configs", "topic", "orders", option, *more, "-b", broker.bootstrap_servers]) == 0
        (asked,) = broker.asked("IncrementalAlterConfigs")
    (resource,) = asked.fields["resources"]
    assert (resource["resource_type"], resource["resource_name"]) == (2, "orders")
    assert [(one["name"], one["config_operation"], one["value"]) for one in resource["configs"]] == [change]
    assert asked.fields["validate_only"] == bool(more)
    shown = capsys.readouterr()
    done = "the change is possible" if more else "changed"
    assert (shown.out, shown.err) == ("", f"topic orders: {done}\n")


def test_a_change_says_its_outcome_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with MockBroker() as broker:
        broker.on("IncrementalAlterConfigs").reply(
            {"responses": [{"resource_type": 2, "resource_name": "orders"}]}
        )
        words = ["configs", "topic", "orders", "--set", "retention.ms=1", "--json"]
        assert main([*words, "-b", broker.bootstrap_servers]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == [{"name": "topic orders", "result": "changed", "error": None}]
    assert shown.err == ""


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], [("hidden", "(hidden)", "topic"), ("set", "7", "topic")]),
        (["--all"], [("hidden", "(hidden)", "topic"), ("set", "7", "topic"), ("usual", "1", "default")]),
    ],
)
def test_settings_that_are_no_defaults_are_shown_without_secrets(
    options: list[str],
    shown: list[tuple[str, str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    configs = [
        {"name": "usual", "value": "1", "config_source": 5},
        {"name": "set", "value": "7", "config_source": 1},
        {"name": "hidden", "value": "from an odd broker", "is_sensitive": True, "config_source": 1},
    ]
    with MockBroker() as broker:
        broker.on("DescribeConfigs").reply({"results": [{"resource_name": "orders", "configs": configs}]})
        words = ["configs", "topic", "orders", *options, "--json", "-b", broker.bootstrap_servers]
        assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["value"], row["source"]) for row in rows] == shown


def test_a_topic_is_described_with_the_settings_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    configs = [
        {"name": f"of {source}", "value": str(source), "config_source": source} for source in (1, 2, 3, 4, 5)
    ]
    with MockBroker() as broker:
        broker.create_topic("orders", partitions=2)
        broker.on("DescribeConfigs").reply({"results": [{"resource_name": "orders", "configs": configs}]})
        assert main(["describe", "orders", "--json", "-b", broker.bootstrap_servers]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["topic"], row["settings"]) == ("orders", {"of 1": "1"})
    assert [(one["partition"], one["leader"], one["in_sync"]) for one in row["partitions"]] == [
        (0, 1, [1]),
        (1, 1, [1]),
    ]


@pytest.mark.parametrize(("controller", "shown"), [(2, [False, True]), (-1, [False, False])])
def test_the_controller_is_one_broker_or_none(
    controller: int, shown: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    with MockBroker(2) as broker:
        broker.on("Metadata", times=None).change(lambda fields: fields.update(controller_id=controller))
        assert main(["describe", "--json", "-b", broker.bootstrap_servers]) == 0
    described = json.loads(capsys.readouterr().out)
    assert [one["controller"] for one in described["brokers"]] == shown


@pytest.mark.parametrize(
    ("words", "resource"),
    [
        (["topic", "1"], (2, "1")),
        (["group", "1"], (32, "1")),
        (["broker", "1"], (4, "1")),
        (["broker", "all"], (4, "")),
        (["loggers", "1"], (8, "1")),
    ],
    ids=str,
)
def test_settings_are_those_of_the_kind_that_is_named(words: list[str], resource: tuple[int, str]) -> None:
    """A topic, a group and a broker may have the same name."""
    kind, name = resource
    with MockBroker() as broker:
        broker.on("DescribeConfigs").reply({"results": [{"resource_type": kind, "resource_name": name}]})
        broker.on("IncrementalAlterConfigs").reply({"responses": [{"resource_type": kind}]})
        assert main(["configs", *words, "-b", broker.bootstrap_servers]) == 0
        assert main(["configs", *words, "--set", "a=b", "-b", broker.bootstrap_servers]) == 0
        for api in ("DescribeConfigs", "IncrementalAlterConfigs"):
            [one] = broker.asked(api)[0].fields["resources"]
            assert (one["resource_type"], one["resource_name"]) == resource


def test_a_disk_that_has_failed_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    replicas = [{"partition_index": number, "partition_size": 700} for number in (0, 1)]
    disks = [
        {
            "log_dir": "/good", "total_bytes": 9_000, "usable_bytes": 0,
            "topics": [{"name": "t", "partitions": replicas}],
        },
        {"log_dir": "/bad", "error_code": 56, "total_bytes": -1, "usable_bytes": -1},
    ]  # fmt: skip
    with MockBroker() as broker:
        broker.on("DescribeLogDirs", times=2).reply({"results": disks})
        assert main(["describe", "--disks", "--json", "-b", broker.bootstrap_servers]) == 0
        rows = json.loads(capsys.readouterr().out)["disks"]
        assert main(["describe", "--disks", "-b", broker.bootstrap_servers]) == 0
        lines = capsys.readouterr().out.splitlines()[-2:]
    assert [tuple(row.values()) for row in rows] == [
        (1, "/good", 2, 1_400, 0, 9_000, None),
        (1, "/bad", 0, 0, None, None, "KAFKA_STORAGE_ERROR"),
    ]
    assert lines == ["1\t/good\t2\t1.4 KiB\t0 B\t-", "1\t/bad\t0\t0 B\t-\tKAFKA_STORAGE_ERROR"]


@pytest.mark.parametrize("words", [["orders"], ["-t", "orders"]], ids=" ".join)
def test_a_topic_is_described_wherever_its_name_stands(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with MockBroker() as broker:
        broker.create_topic("orders")
        broker.on("DescribeConfigs").reply({"results": [{"resource_name": "orders"}]})
        assert main(["describe", *words, "-b", broker.bootstrap_servers]) == 0
    assert capsys.readouterr().out.split("\t")[:3] == ["orders", "0", "1"]
