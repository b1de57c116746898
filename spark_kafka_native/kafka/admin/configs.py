"""`ConfigAdmin`: describe and alter the configs of topics, brokers and groups."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

from ..cluster.describe_configs import describe_topic_configs
from ..error_code import ErrorCode
from ..errors import BrokerError, IncompleteResponseError
from ..protocol.api.configs import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
)
from ..protocol.message import Request, Response
from ..runtime.deadline import Deadline, Timeout
from .family import AdminFamily, ItemResult, Task, before_sending, names_of, refuse

R = TypeVar("R", bound=Response)

BROKER_LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32

_WORDS = {
    TOPIC_RESOURCE: "topic",
    BROKER_RESOURCE: "broker",
    BROKER_LOGGER_RESOURCE: "loggers of broker",
    CLIENT_METRICS_RESOURCE: "client metrics",
    GROUP_RESOURCE: "group",
}


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A resource with configs. Made by `topic`, `broker`, `all_brokers`, `group`, `broker_loggers`."""

    kind: int
    name: str

    @classmethod
    def topic(cls, name: str) -> Self:
        """A topic."""
        return cls(TOPIC_RESOURCE, name)

    @classmethod
    def broker(cls, node_id: int) -> Self:
        """One broker, with its own configs."""
        return cls(BROKER_RESOURCE, str(int(node_id)))

    @classmethod
    def all_brokers(cls) -> Self:
        """The cluster-wide defaults, for brokers without their own value."""
        return cls(BROKER_RESOURCE, "")

    @classmethod
    def group(cls, group_id: str) -> Self:
        """A group of the consumer protocol (KIP-848)."""
        return cls(GROUP_RESOURCE, group_id)

    @classmethod
    def broker_loggers(cls, node_id: int) -> Self:
        """The log levels of one broker."""
        return cls(BROKER_LOGGER_RESOURCE, str(int(node_id)))

    @property
    def node_id(self) -> int | None:
        """The broker that has to be asked; None for any broker."""
        if self.kind in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE) and self.name:
            return int(self.name)
        return None

    def __str__(self) -> str:
        word = _WORDS.get(self.kind, f"resource of type {self.kind}")
        return f"{word} {self.name}" if self.name else "all brokers"


class ConfigSource(enum.IntEnum):
    """Where a value was set, as in Kafka's ``ConfigEntry.ConfigSource``."""

    UNKNOWN = -1
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_ALL_BROKERS = 3
    BROKER_FILE = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        del value
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One config."""

    name: str
    value: str | None
    """None if the broker does not reveal it (``sensitive``), or if there is none."""
    source: ConfigSource
    read_only: bool
    sensitive: bool
    documentation: str | None = None
    """Kafka's own; only if requested."""

    @property
    def is_default(self) -> bool:
        """True if it has its default value."""
        return self.source is ConfigSource.DEFAULT


class _Change(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigAdmin(AdminFamily):
    """Configs of topics, brokers and groups."""

    def describe_topic_configs(
        self, names: Collection[str], timeout: Timeout = None
    ) -> dict[str, dict[str, str | None]]:
        """The configs of each topic by name; None if the broker does not reveal the value."""
        return describe_topic_configs(self._router, names_of(names, "topics"), self._limit(timeout))

    def describe_broker_configs(self, node_id: int, timeout: Timeout = None) -> dict[str, str | None]:
        """The configs of one broker, as that broker has them."""
        entries = self.describe_configs(ConfigResource.broker(node_id), timeout)
        return {name: entry.value for name, entry in entries.items()}

    def describe_configs(
        self,
        resource: ConfigResource,
        timeout: Timeout = None,
        *,
        names: Iterable[str] | None = None,
        documentation: bool = False,
    ) -> dict[str, ConfigEntry]:
        """The configs of ``resource`` (or those in ``names``) by name, each with its source.

        Raises `BrokerError` if the broker refuses, or the cluster has no broker with that id.
        """
        wanted = None if names is None else names_of(names, "names")
        asked = DescribeConfigsResource(
            resource_type=resource.kind, resource_name=resource.name, configuration_keys=wanted
        )
        request = DescribeConfigsRequest(resources=[asked], include_documentation=documentation)
        found = _read(self._ask_resource(resource, request, self._limit(timeout)), resource)
        # An empty list of names is all of them for a broker.
        return {name: one for name, one in found.items() if wanted is None or name in wanted}

    def alter_configs(
        self,
        resource: ConfigResource,
        values: Mapping[str, str | None] | None = None,
        timeout: Timeout = None,
        *,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change configs of ``resource`` and leave the others unchanged (KIP-339, all or none).

        ``values`` are set; None restores the default. ``append`` and ``subtract`` add to and remove from
        configs that are lists. Raises `BrokerError` if the broker refuses.
        """
        changes = _changes(values or {}, append or {}, subtract or {})
        if not changes:
            raise ValueError(f"altering configs of {resource}: there is nothing to change")
        altered = AlterConfigsResource(
            resource_type=resource.kind, resource_name=resource.name, configs=changes
        )
        request = IncrementalAlterConfigsRequest(resources=[altered], validate_only=validate_only)
        limit = self._limit(timeout)
        self._checked_node(resource, request, limit)  # not again and again

        def ask(_: list[object]) -> list[ItemResult]:
            node_id = resource.node_id
            # One attempt, so that it is known which one was lost.
            if node_id is None:
                response = self._ask_controller(request, limit)
            else:
                with before_sending():
                    self._router.connection(node_id, limit)
                response = self._router.send_to(node_id, request, limit)
            return [ItemResult(resource, one.error_code, one.error_message) for one in response.responses]

        task = Task("altering configs of", "AlterConfigs", changes=not validate_only)
        self._settle([resource], ask, task, limit)

    def _ask_resource(self, resource: ConfigResource, request: Request[R], limit: Deadline) -> R:
        node_id = self._checked_node(resource, request, limit)
        if node_id is None:
            return self._router.send_any(request, limit)
        return self._router.retry(
            lambda: self._router.send_to(node_id, request, limit),
            what=f"{request.api_name()} of {resource}",
            deadline=limit,
        )

    def _checked_node(self, resource: ConfigResource, request: Request[R], limit: Deadline) -> int | None:
        """The broker that has to be asked. Raises `BrokerError` if the cluster does not have it."""
        node_id = resource.node_id
        if node_id is not None and node_id not in self._router.metadata((), deadline=limit).brokers:
            brokers = self._router.metadata((), refresh=True, deadline=limit).brokers
            if node_id not in brokers:  # a caller that expects a starting broker can ask again
                there = ", ".join(map(str, sorted(brokers))) or "none"
                told = f"the cluster has no such broker just now; there are {there}"
                raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"{request.api_name()} of {resource}", told)
        return node_id


def _changes(
    values: Mapping[str, str | None], append: Mapping[str, str], subtract: Mapping[str, str]
) -> list[AlterableConfig]:
    for name, value in (*values.items(), *append.items(), *subtract.items()):
        if not isinstance(name, str) or not isinstance(value, str | None):
            raise ValueError(f"names and values of settings are texts, not {name!r}: {value!r}")
    kinds = [
        *((_Change.DELETE if value is None else _Change.SET, name, value) for name, value in values.items()),
        *((_Change.APPEND, name, value) for name, value in append.items()),
        *((_Change.SUBTRACT, name, value) for name, value in subtract.items()),
    ]
    return [AlterableConfig(name=name, config_operation=kind, value=value) for kind, name, value in kinds]


def _read(response: DescribeConfigsResponse, resource: ConfigResource) -> dict[str, ConfigEntry]:
    if not response.results:
        raise IncompleteResponseError(f"describing configs of {resource}: the broker's response lacks it")
    entries: dict[str, ConfigEntry] = {}
    for result in response.results:
        outcome = ItemResult(resource, result.error_code, result.error_message)
        refuse(outcome, "describing configs of", "DescribeConfigs")
        entries.update((config.name, _entry(config)) for config in result.configs)
    return entries


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=ConfigSource(config.config_source),
        read_only=config.read_only,
        sensitive=config.is_sensitive,
        documentation=config.documentation or None,
    )
