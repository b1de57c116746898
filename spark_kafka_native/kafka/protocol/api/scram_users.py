"""DescribeUserScramCredentials, AlterUserScramCredentials: users of SASL/SCRAM (KIP-554)."""

from __future__ import annotations

from ..message import Request, Response, Struct
from ..wire import Bytes, Error, Int8, Int32, String


class CredentialInfo(Struct):
    """A mechanism (1: SCRAM-SHA-256, 2: SCRAM-SHA-512) and its iterations."""

    mechanism: Int8
    iterations: Int32


class DescribeUserScramCredentialsResult(Struct):
    """The credentials of one user."""

    user: String
    error_code: Error
    error_message: String | None
    credential_infos: list[CredentialInfo]


class DescribeUserScramCredentialsResponse(Response):
    """One result per user."""

    throttle_time_ms: Int32
    error_code: Error
    error_message: String | None
    results: list[DescribeUserScramCredentialsResult]


class UserName(Struct):
    """A user to describe."""

    name: String


class DescribeUserScramCredentialsRequest(
    Request[DescribeUserScramCredentialsResponse], api_key=50, versions=(0, 0), flexible=0
):
    """Null or no users: all users."""

    users: list[UserName] | None


class AlterUserScramCredentialsResult(Struct):
    """The outcome of one user."""

    user: String
    error_code: Error
    error_message: String | None


class AlterUserScramCredentialsResponse(Response):
    """One outcome per user."""

    throttle_time_ms: Int32
    results: list[AlterUserScramCredentialsResult]


class ScramCredentialDeletion(Struct):
    """A credential to delete."""

    name: String
    mechanism: Int8


class ScramCredentialUpsertion(Struct):
    """A credential to set; the password itself is never sent. Its ``repr`` does not show the salted one,
    which is enough to log in.
    """

    name: String
    mechanism: Int8
    iterations: Int32
    salt: Bytes
    salted_password: Bytes

    def __repr__(self) -> str:
        return f"ScramCredentialUpsertion(name={self.name!r}, salt=****, salted_password=****)"


class AlterUserScramCredentialsRequest(
    Request[AlterUserScramCredentialsResponse], api_key=51, versions=(0, 0), flexible=0
):
    """Sent to the controller. It may name each user only once."""

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]
