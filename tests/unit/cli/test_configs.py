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
