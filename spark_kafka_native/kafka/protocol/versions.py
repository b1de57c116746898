"""Version negotiation: the version of an API on a connection. Each broker has its own ranges (rolling
upgrades).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..error_code import ErrorCode
from ..errors import UnsupportedVersionError
from .api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from .message import Request

VersionRanges = Mapping[int, tuple[int, int]]
"""By API key, the lowest and the highest version that a broker supports."""


def read_version_ranges(response: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    """Return the ranges in an ApiVersions response."""
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def negotiate(
    request_class: type[Request[Any]], broker_ranges: VersionRanges, *, at_most: int | None = None
) -> int:
    """Return the highest version that both broker and client support, no higher than ``at_most``.

    Raises `UnsupportedVersionError`, naming the API and both ranges, if there is none.
    """
    lowest, highest = request_class.versions
    if at_most is not None:
        highest = min(highest, at_most)
    broker_range = broker_ranges.get(request_class.api_key)
    if broker_range is None:
        raise UnsupportedVersionError(
            f"the broker does not offer {request_class.api_name()} (API key {request_class.api_key}); "
            f"this client needs a version from {lowest} to {highest} of it"
        )
    version = min(highest, broker_range[1])
    if version < max(lowest, broker_range[0]):
        raise UnsupportedVersionError(
            f"{request_class.api_name()}: the broker speaks versions {broker_range[0]} to {broker_range[1]}, "
            f"this client {lowest} to {highest}"
        )
    return version


def choose_version(broker_ranges: VersionRanges, api_key: int, min_version: int, max_version: int) -> int:
    """Return the highest version from ``min_version`` to ``max_version`` that the broker supports: for
    requests that the caller encodes itself. Raises `UnsupportedVersionError` if there is none.
    """
    low, high = broker_ranges.get(api_key, (0, -1))
    version = min(high, max_version)
    if version < max(low, min_version):
        speaks = f"speaks versions {low} to {high} of" if high >= low else "does not offer"
        raise UnsupportedVersionError(
            f"the broker {speaks} API key {api_key}; asked for were {min_version} to {max_version}"
        )
    return version


def lower_api_versions(response: ApiVersionsResponse, tried: int) -> int | None:
    """Return the version for another ApiVersions request, or None if ``response`` is final.

    A broker that does not know version ``tried`` answers UNSUPPORTED_VERSION and, since Kafka 2.4, its own
    range (KIP-511). The returned version is strictly lower, so that the retries end.
    """
    if response.error_code is not ErrorCode.UNSUPPORTED_VERSION or tried == 0:
        return None
    ranges = read_version_ranges(response)
    if ApiVersionsRequest.api_key not in ranges:
        return 0
    return max(0, min(negotiate(ApiVersionsRequest, ranges), tried - 1))
