"""DescribeConfigs: the configs of topics and brokers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..errors import BrokerError, IncompleteResponseError
from ..protocol.api.configs import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ..runtime.deadline import Deadline
from .router import Router

Configs = dict[str, str | None]
"""Values by name; None if the broker does not reveal the value."""


def describe_topic_configs(
    router: Router,
    topics: Collection[str],
    deadline: Deadline | None = None,
    *,
    names: Sequence[str] | None = None,
    leave_out_refused: bool = False,
) -> dict[str, Configs]:
    """Return the configs of each topic; with ``names``, only these.

    Raises `BrokerError` with the name of a topic that the broker refuses to describe, and
    `IncompleteResponseError` with that of a topic that the response lacks, unless such topics are left out.
    """
    request = _build(TOPIC_RESOURCE, topics, names)
    found = _read(router.send_any(request, deadline), leave_out_refused=leave_out_refused)
    return found if leave_out_refused else {topic: _of(found, topic) for topic in topics}


def describe_broker_configs(router: Router, node_id: int, deadline: Deadline | None = None) -> Configs:
    """Return the configs of one broker, as that broker has them; errors as `describe_topic_configs`."""
    name = str(node_id)
    found = _read(router.send_to(node_id, _build(BROKER_RESOURCE, [name], None), deadline))
    return _of(found, name, "broker ")


def _of(found: dict[str, Configs], name: str, kind: str = "") -> Configs:
    if name not in found:
        raise IncompleteResponseError(f"describing configs of {kind}{name}: the response lacks them")
    return found[name]


def _build(kind: int, resources: Collection[str], names: Sequence[str] | None) -> DescribeConfigsRequest:
    keys = None if names is None else list(names)
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for name in resources
        ]
    )


def _read(response: DescribeConfigsResponse, *, leave_out_refused: bool = False) -> dict[str, Configs]:
    configs: dict[str, Configs] = {}
    for result in response.results:
        if result.error_code:
            if leave_out_refused:
                continue
            where = f"describing configs of {result.resource_name}"
            raise BrokerError(result.error_code, where, result.error_message, operation="DescribeConfigs")
        configs[result.resource_name] = {config.name: config.value for config in result.configs}
    return configs
