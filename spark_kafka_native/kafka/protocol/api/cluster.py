"""DescribeCluster: brokers and controller, without topics (KIP-700)."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Boolean, Error, Int8, Int32, String
from .metadata import OPERATIONS_UNKNOWN

BROKER_ENDPOINT = 1
CONTROLLER_ENDPOINT = 2


class DescribeClusterBroker(Struct):
    """A broker, with the address that it advertises for the listener of the request."""

    broker_id: Int32
    host: String
    port: Int32
    rack: String | None = None
    is_fenced: Boolean = field(since=2, default=False)


class DescribeClusterResponse(Response):
    """The cluster's brokers."""

    throttle_time_ms: Int32
    error_code: Error
    error_message: String | None = None
    endpoint_type: Int8 = field(since=1, default=BROKER_ENDPOINT)
    cluster_id: String
    controller_id: Int32 = field(default=-1)
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: Int32 = field(default=OPERATIONS_UNKNOWN)


class DescribeClusterRequest(Request[DescribeClusterResponse], api_key=60, versions=(0, 2), flexible=0):
    """Sent to any broker."""

    include_cluster_authorized_operations: Boolean = False
    endpoint_type: Int8 = field(since=1, default=BROKER_ENDPOINT)
    include_fenced_brokers: Boolean = field(since=2, default=False)
