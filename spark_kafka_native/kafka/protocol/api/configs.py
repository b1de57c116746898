"""DescribeConfigs, IncrementalAlterConfigs: the configuration of topics and brokers."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Boolean, Error, Int8, Int32, String

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4


class DescribeConfigsResource(Struct):
    """A topic by name or a broker by its id as a string; ``configuration_keys`` null for all keys."""

    resource_type: Int8
    resource_name: String
    configuration_keys: list[String] | None


class DescribeConfigsSynonym(Struct):
    """Another source of the same configuration, in order of precedence."""

    name: String
    value: String | None
    source: Int8


class DescribeConfigsResourceResult(Struct):
    """One configuration; ``value`` is null where ``is_sensitive``."""

    name: String
    value: String | None
    read_only: Boolean
    config_source: Int8 = field(since=1, ignorable=True, default=-1)
    is_sensitive: Boolean
    synonyms: list[DescribeConfigsSynonym] = field(since=1, ignorable=True, default_factory=list)
    config_type: Int8 = field(since=3, ignorable=True, default=0)
    documentation: String | None = field(since=3, ignorable=True, default="")


class DescribeConfigsResult(Struct):
    """The configurations of one resource."""

    error_code: Error
    error_message: String | None
    resource_type: Int8
    resource_name: String
    configs: list[DescribeConfigsResourceResult]


class DescribeConfigsResponse(Response):
    """One result per resource."""

    throttle_time_ms: Int32
    results: list[DescribeConfigsResult]


class DescribeConfigsRequest(Request[DescribeConfigsResponse], api_key=32, versions=(1, 4), flexible=4):
    """Sent to any broker, or for the configuration of a broker to that broker."""

    resources: list[DescribeConfigsResource]
    include_synonyms: Boolean = field(since=1, default=False)
    include_documentation: Boolean = field(since=3, default=False)


class AlterConfigsResourceResponse(Struct):
    """The outcome of one resource."""

    error_code: Error
    error_message: String | None
    resource_type: Int8
    resource_name: String


class IncrementalAlterConfigsResponse(Response):
    """One outcome per resource."""

    throttle_time_ms: Int32
    responses: list[AlterConfigsResourceResponse]


class AlterableConfig(Struct):
    """A change; ``config_operation`` 0: set, 1: delete, 2: append, 3: subtract (the last two on lists)."""

    name: String
    config_operation: Int8
    value: String | None


class AlterConfigsResource(Struct):
    """The changes of one resource."""

    resource_type: Int8
    resource_name: String
    configs: list[AlterableConfig]


class IncrementalAlterConfigsRequest(
    Request[IncrementalAlterConfigsResponse], api_key=44, versions=(0, 1), flexible=1
):
    """Sent to any broker, or for the configuration of a broker to that broker."""

    resources: list[AlterConfigsResource]
    validate_only: Boolean
