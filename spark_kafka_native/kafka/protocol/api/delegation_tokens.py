"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken (KIP-48)."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Bytes, Error, Int32, Int64, String


def _without_hmac(message: Struct) -> str:
    """The ``repr`` of a message with an HMAC: a dump of the traffic shows none."""
    return f"{type(message).__name__}(hmac=****)"


class CreateDelegationTokenResponse(Response):
    """The token; its HMAC is the password of a login with it."""

    error_code: Error
    principal_type: String
    principal_name: String
    token_requester_principal_type: String = field(since=3, default="")
    token_requester_principal_name: String = field(since=3, default="")
    issue_timestamp_ms: Int64
    expiry_timestamp_ms: Int64
    max_timestamp_ms: Int64
    token_id: String
    hmac: Bytes
    throttle_time_ms: Int32

    __repr__ = _without_hmac


class CreatableRenewers(Struct):
    """A principal that may renew the token, besides its owner."""

    principal_type: String
    principal_name: String


class CreateDelegationTokenRequest(
    Request[CreateDelegationTokenResponse], api_key=38, versions=(1, 3), flexible=2
):
    """Sent to the controller. Without an owner it is the principal of the connection; -1 is the brokers'
    maximum.
    """

    owner_principal_type: String | None = field(since=3, default="")
    owner_principal_name: String | None = field(since=3, default="")
    renewers: list[CreatableRenewers]
    max_lifetime_ms: Int64


class RenewDelegationTokenResponse(Response):
    """The new time of expiry."""

    error_code: Error
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32


class RenewDelegationTokenRequest(
    Request[RenewDelegationTokenResponse], api_key=39, versions=(1, 2), flexible=2
):
    """Sent to the controller. -1 is the brokers' default period."""

    hmac: Bytes
    renew_period_ms: Int64

    __repr__ = _without_hmac


class ExpireDelegationTokenResponse(Response):
    """The new time of expiry."""

    error_code: Error
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32


class ExpireDelegationTokenRequest(
    Request[ExpireDelegationTokenResponse], api_key=40, versions=(1, 2), flexible=2
):
    """Sent to the controller. A negative period expires the token at once."""

    hmac: Bytes
    expiry_time_period_ms: Int64

    __repr__ = _without_hmac


class DescribedDelegationTokenRenewer(Struct):
    """A principal that may renew the token, besides its owner."""

    principal_type: String
    principal_name: String


class DescribedDelegationToken(Struct):
    """A token, its HMAC included."""

    principal_type: String
    principal_name: String
    token_requester_principal_type: String = field(since=3, default="")
    token_requester_principal_name: String = field(since=3, default="")
    issue_timestamp: Int64
    expiry_timestamp: Int64
    max_timestamp: Int64
    token_id: String
    hmac: Bytes
    renewers: list[DescribedDelegationTokenRenewer]

    __repr__ = _without_hmac


class DescribeDelegationTokenResponse(Response):
    """The tokens that the principal of the connection may see."""

    error_code: Error
    tokens: list[DescribedDelegationToken]
    throttle_time_ms: Int32


class DescribeDelegationTokenOwner(Struct):
    """The owner of the tokens to describe."""

    principal_type: String
    principal_name: String


class DescribeDelegationTokenRequest(
    Request[DescribeDelegationTokenResponse], api_key=41, versions=(1, 3), flexible=2
):
    """Answered by any broker, from what it has learned so far. Null: the tokens of all owners."""

    owners: list[DescribeDelegationTokenOwner] | None
