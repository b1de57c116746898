"""`ScramAdmin`: the SASL/SCRAM users that the cluster stores itself (KIP-554)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from typing import Final

from ..config.secret import Secret
from ..error_code import ErrorCode
from ..protocol.api.scram_users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from ..runtime.deadline import Deadline, Timeout
from ..security.sasl import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_HASHES
from .family import AdminFamily, ItemResult, Task, names_of, refuse

_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_MAX_BROKER_ITERATIONS: Final = 16_384
_SALT_BYTES: Final = 24


class ScramAdmin(AdminFamily):
    """SASL/SCRAM users."""

    def describe_scram_users(
        self, users: Collection[str] | None = None, timeout: Timeout = None
    ) -> dict[str, dict[str, int]]:
        """For each user (None: all) the mechanisms with their iterations; {} for an unknown user."""
        # All by an empty list: to null, Kafka's brokers do not answer where the permission is missing.
        names = [UserName(name=name) for name in names_of(users or (), "users")]
        if users is not None and not names:
            return {}
        response = self._router.send_any(
            DescribeUserScramCredentialsRequest(users=names), self._limit(timeout)
        )
        refuse(
            ItemResult("SCRAM users", response.error_code, response.error_message), "describing", "Describe"
        )
        found: dict[str, dict[str, int]] = {}
        for result in response.results:
            if result.error_code is not ErrorCode.RESOURCE_NOT_FOUND:
                outcome = ItemResult(result.user, result.error_code, result.error_message)
                refuse(outcome, "describing SCRAM user", "Describe")
            found[result.user] = {
                mechanism: one.iterations
                for one in result.credential_infos
                for mechanism, number in _NUMBERS.items()
                if number == one.mechanism
            }
        return found

    def set_scram_user(
        self,
        user: str,
        password: str | Secret,
        timeout: Timeout = None,
        *,
        mechanism: str = "SCRAM-SHA-512",
        iterations: int = 8_192,
    ) -> None:
        """Create a user of ``mechanism``, or change the password. The password itself is not sent.

        Raises `BrokerError` if the controller refuses.
        """
        text = password.reveal() if isinstance(password, Secret) else password
        if not user or not isinstance(text, str) or not text:
            raise ValueError("the user and its password must be texts that are not empty")
        most = min(MAX_ITERATIONS, _MAX_BROKER_ITERATIONS)
        if not MIN_ITERATIONS <= iterations <= most:
            raise ValueError(f"iterations must be from {MIN_ITERATIONS} to {most}, not {iterations}")
        number, salt = _number(mechanism), secrets.token_bytes(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], text.encode(), salt, iterations)
        upsertion = ScramCredentialUpsertion(
            name=user, mechanism=number, iterations=iterations, salt=salt, salted_password=salted
        )
        self._alter(
            AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]), user, self._limit(timeout)
        )

    def delete_scram_user(
        self, user: str, timeout: Timeout = None, *, mechanism: str = "SCRAM-SHA-512"
    ) -> None:
        """Delete the credentials of ``user`` for ``mechanism``. Raises `BrokerError` (RESOURCE_NOT_FOUND)."""
        deletion = ScramCredentialDeletion(name=user, mechanism=_number(mechanism))
        self._alter(
            AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]), user, self._limit(timeout)
        )

    def _alter(self, request: AlterUserScramCredentialsRequest, user: str, limit: Deadline) -> None:
        def ask(_: list[object]) -> list[ItemResult]:
            results = self._ask_controller(request, limit).results
            return [ItemResult(one.user, one.error_code, one.error_message) for one in results]

        gone = ErrorCode.RESOURCE_NOT_FOUND if request.deletions else None
        self._settle([user], ask, Task("altering SCRAM user", "Alter", done_by_lost=gone), limit)


def _number(mechanism: str) -> int:
    if mechanism not in _NUMBERS:
        raise ValueError(f"the mechanism is one of {', '.join(_NUMBERS)}, not {mechanism!r}")
    return _NUMBERS[mechanism]
