"""The settings of a group member, by Java's names: their values, and contradictions that are refused."""

from __future__ import annotations

import pytest

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.group.group_config import GroupConfig, GroupProtocol


def config(**properties: str) -> GroupConfig:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return GroupConfig.from_properties({"group.id": "g"} | named)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("sticky", ("sticky",)),
        (" cooperative-sticky , range,", ("cooperative-sticky", "range")),
        ("org.apache.kafka.clients.consumer.RoundRobinAssignor", ("roundrobin",)),
        ("range,org.apache.kafka.clients.consumer.RangeAssignor", ("range",)),
    ],
)
def test_assignors_have_their_own_names_and_javas(text: str, names: tuple[str, ...]) -> None:
    assert config(partition_assignment_strategy=text).partition_assignment_strategy == names


@pytest.mark.parametrize("text", ["", " , ", "uniform", "range,uniform"])
def test_a_strategy_without_an_assignor_and_an_unknown_one_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"partition\.assignment\.strategy.* must be one or more of range"):
        config(partition_assignment_strategy=text)


@pytest.mark.parametrize(
    ("text", "protocol"),
    [("CONSUMER", GroupProtocol.CONSUMER), (" Classic ", GroupProtocol.CLASSIC)],
)
def test_the_protocol_may_be_in_upper_case(text: str, protocol: GroupProtocol) -> None:
    """As Kafka's own clients take it."""
    assert config(group_protocol=text).group_protocol is protocol


@pytest.mark.parametrize(("text", "commits"), [("true", True), (" True ", True), ("false", False)])
def test_automatic_commits_are_on_or_off_as_the_property_says(text: str, commits: bool) -> None:
    assert config(enable_auto_commit=text).enable_auto_commit is commits


@pytest.mark.parametrize("heartbeat_ms", ["6000", "6001"])
def test_heartbeats_that_come_no_sooner_than_the_session_ends_are_refused(heartbeat_ms: str) -> None:
    assert config(session_timeout_ms="6000", heartbeat_interval_ms="5999").heartbeat_interval_ms == 5_999
    with pytest.raises(ConfigError, match=r"heartbeat\.interval\.ms .* must be less than session\.timeout"):
        config(session_timeout_ms="6000", heartbeat_interval_ms=heartbeat_ms)
