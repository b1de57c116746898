"""ApiVersions: the versions of each API that a broker supports (KIP-35, KIP-511)."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Boolean, Error, Int16, Int32, Int64, String


class ApiVersion(Struct):
    """The range of one API."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeatureKey(Struct):
    """A cluster feature that the broker supports."""

    name: String
    min_version: Int16
    max_version: Int16


class FinalizedFeatureKey(Struct):
    """A cluster feature that the cluster has finalized."""

    name: String
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(Response):
    """The version ranges of a broker; with UNSUPPORTED_VERSION the body always has version 0 (KIP-511)."""

    error_code: Error
    api_keys: list[ApiVersion]
    throttle_time_ms: Int32 = field(since=1, ignorable=True, default=0)
    supported_features: list[SupportedFeatureKey] = field(
        since=3, tag=0, ignorable=True, default_factory=list
    )
    finalized_features_epoch: Int64 = field(since=3, tag=1, ignorable=True, default=-1)
    finalized_features: list[FinalizedFeatureKey] = field(
        since=3, tag=2, ignorable=True, default_factory=list
    )
    zk_migration_ready: Boolean = field(since=3, tag=3, ignorable=True, default=False)


class ApiVersionsRequest(Request[ApiVersionsResponse], api_key=18, versions=(0, 4), flexible=3):
    """The first request on every connection."""

    client_software_name: String = field(since=3, ignorable=True, default="")
    client_software_version: String = field(since=3, ignorable=True, default="")
