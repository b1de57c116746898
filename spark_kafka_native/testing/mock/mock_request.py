"""`MockRequest`: a request as a mock broker saw it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

_PARTITIONS = ("partitions", "partition_data", "partition_indexes")
_INDEX = ("partition", "index", "partition_index")
_TOPIC_RESOURCE = 2

Place = tuple[str, int | None]
"""A topic, and a partition of it where one is named."""


@dataclass(frozen=True, kw_only=True)
class MockRequest:
    """One request. ``fields`` has Kafka's names for its fields, in snake case, as its version has them."""

    api: str
    """As in Kafka's documentation: ``Produce``, ``ListOffsets``."""
    version: int
    fields: dict[str, Any] = field(repr=False)
    node_id: int
    """The broker that was asked."""
    connection: int
    """Connections are numbered from 1, over all brokers."""
    at: float
    """When it came, by `time.monotonic`."""
    body: bytes = field(repr=False)
    """The bytes behind its header."""
    client_id: str | None
    correlation_id: int
    places: tuple[Place, ...] = ()
    """Which topics and partitions it is about."""


def find_places(fields: Mapping[str, Any], topic_name: Callable[[UUID], str | None]) -> Iterator[Place]:
    """The topics and partitions that a request names, wherever its API puts them."""
    for key, value in fields.items():
        if not isinstance(value, list):
            continue
        for one in value:
            if key == "topic_names":
                yield one, None
            elif isinstance(one, dict):
                yield from _places_of(one, topic_name)


def _places_of(item: Mapping[str, Any], topic_name: Callable[[UUID], str | None]) -> Iterator[Place]:
    topic = topic_of(item, topic_name)
    if topic is None:
        yield from find_places(item, topic_name)
        return
    partitions = next((item[key] for key in _PARTITIONS if key in item), None)
    if partitions is None:
        yield topic, None
        return
    for partition in partitions:
        yield topic, index_of(partition) if isinstance(partition, dict) else partition


def topic_of(item: Mapping[str, Any], topic_name: Callable[[UUID], str | None]) -> str | None:
    """The topic that a part of a request is about, by its name or its id; None if it has neither."""
    if item.get("resource_type") == _TOPIC_RESOURCE:
        return str(item["resource_name"])
    named = item.get("name") or item.get("topic")
    if named or "topic_id" not in item:
        return named
    return topic_name(item["topic_id"])


def index_of(item: Mapping[str, Any]) -> int:
    """The partition that a part of a request is about."""
    return int(next(item[key] for key in _INDEX if key in item))
