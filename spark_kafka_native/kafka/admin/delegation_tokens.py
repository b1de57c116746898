"""`TokenAdmin`: delegation tokens (KIP-48), also for other owners (KIP-373)."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ..cluster.fan_out import ask_each_broker
from ..config.secret import Secret
from ..error_code import ErrorCode
from ..errors import IncompleteResponseError, KafkaError, NetworkError
from ..network.connection import Connection
from ..network.pending_response import PendingResponse
from ..protocol.api.delegation_tokens import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from ..runtime.deadline import Deadline, Timeout
from ..runtime.retry import is_retriable
from .family import AdminFamily, ItemResult, Task, names_of, refuse

UNREACHED_SHARE: Final = 1 / 3
"""The share of a wait for all brokers that one gets which can not be reached."""
MAX_MS: Final = 2**63 - 1
ANSWERED_MS: Final = 100
"""To read a response that has arrived."""
_Changed = RenewDelegationTokenResponse | ExpireDelegationTokenResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """A delegation token. Its times are milliseconds since the epoch, by the clock of the controller.

    To log in with it: SCRAM with `token_id` as the user name, `hmac` as the password and
    ``sasl.tokenauth=true``.
    """

    token_id: str
    hmac: Secret
    """In base64. All that a client needs to act as the owner."""
    owner: str
    """A principal, as ``User:alice``."""
    requester: str
    """The principal that has created it; the owner with brokers older than 3.3, which don't say."""
    issued_ms: int
    expires_ms: int
    """Until then it works, unless it is renewed or expired before."""
    max_ms: int
    """Until then it can be renewed."""
    renewers: tuple[str, ...] = ()


class TokenAdmin(AdminFamily):
    """Delegation tokens. All methods need a connection that is authenticated, but not with a token."""

    def create_delegation_token(
        self,
        timeout: Timeout = None,
        *,
        owner: str | None = None,
        renewers: Collection[str] = (),
        max_lifetime_ms: int | None = None,
    ) -> DelegationToken:
        """Create a token of ``owner`` (default: the principal of this client), which ``renewers`` may renew.

        Principals are texts such as ``User:alice``. ``max_lifetime_ms``: at most, and by default, the
        brokers' ``delegation.token.max.lifetime.ms``. Other brokers learn of the token a moment later. If an
        answer gets lost, the retry leaves another token behind, which expires by itself. Raises
        `BrokerError`.
        """
        limit = self._limit(timeout)
        of_owner = ("", "") if owner is None else _parted(owner)
        may_renew = names_of(renewers, "renewers")
        request = CreateDelegationTokenRequest(
            owner_principal_type=of_owner[0],
            owner_principal_name=of_owner[1],
            renewers=[
                CreatableRenewers(principal_type=kind, principal_name=name)
                for kind, name in map(_parted, may_renew)
            ],
            max_lifetime_ms=-1 if max_lifetime_ms is None else _positive(max_lifetime_ms, "max_lifetime_ms"),
        )
        name = "delegation token" if owner is None else f"delegation token of {owner}"
        answers: list[CreateDelegationTokenResponse] = []

        def ask(_: list[object]) -> list[ItemResult]:
            answers.append(self._ask_controller(request, limit))
            return [ItemResult(name, answers[-1].error_code)]

        self._settle([name], ask, Task("creating a"), limit)
        made = answers[-1]
        return _token(
            made,
            (made.issue_timestamp_ms, made.expiry_timestamp_ms, made.max_timestamp_ms),
            tuple(may_renew),
        )

    def renew_delegation_token(
        self, token: DelegationToken | Secret | str, timeout: Timeout = None, *, period_ms: int | None = None
    ) -> int:
        """Move the expiry of ``token`` (or of an HMAC in base64) to ``period_ms`` from now, but not behind
        its maximum lifetime. Default: ``delegation.token.expiry.time.ms`` of the brokers, which is the limit,
        too.

        Returns the new expiry. Raises `BrokerError`.
        """
        period = -1 if period_ms is None else _positive(period_ms, "period_ms")
        request = RenewDelegationTokenRequest(hmac=_hmac_of(token), renew_period_ms=period)
        limit = self._limit(timeout)
        return self._change(lambda: self._ask_controller(request, limit), token, Task("renewing"), limit)

    def expire_delegation_token(
        self, token: DelegationToken | Secret | str, timeout: Timeout = None, *, after_ms: int | None = None
    ) -> int:
        """End ``token`` (or the token of an HMAC in base64) now, or ``after_ms`` milliseconds from now.

        Returns the new expiry. Raises `BrokerError` (DELEGATION_TOKEN_NOT_FOUND).
        """
        period = -1 if after_ms is None else _positive(after_ms, "after_ms")
        request = ExpireDelegationTokenRequest(hmac=_hmac_of(token), expiry_time_period_ms=period)
        done = ErrorCode.DELEGATION_TOKEN_NOT_FOUND if after_ms is None else None
        limit = self._limit(timeout)
        return self._change(
            lambda: self._ask_controller(request, limit), token, Task("expiring", done_by_lost=done), limit
        )

    def describe_delegation_tokens(
        self, owners: Collection[str] | None = None, timeout: Timeout = None
    ) -> list[DelegationToken]:
        """The tokens of ``owners`` (None: of all) that this client may see, as far as one broker knows: those
        that its principal owns or may renew, and those of owners for which an ACL allows DescribeTokens.
        """
        response = self._router.send_any(_description(owners), self._limit(timeout))
        refuse(ItemResult("delegation tokens", response.error_code), "describing")
        return [_described(one) for one in response.tokens]

    def _change(
        self,
        ask_once: Callable[[], _Changed],
        token: DelegationToken | Secret | str,
        task: Task,
        limit: Deadline,
    ) -> int:
        named = f" {token.token_id}" if isinstance(token, DelegationToken) else ""
        name = f"delegation token{named}"
        answers: list[_Changed] = []

        def ask(_: list[object]) -> list[ItemResult]:
            answers.append(ask_once())
            return [ItemResult(name, answers[-1].error_code)]

        self._settle([name], ask, task, limit)
        last = answers[-1]
        # An attempt without an answer has ended it a moment ago.
        return int(time.time() * 1000) if last.error_code else last.expiry_timestamp_ms

    def await_delegation_token(self, token: DelegationToken, timeout: Timeout = None) -> None:
        """Wait until each broker that can be reached knows ``token``: a login before that is refused.

        All are asked at once, again and again. One that has not answered in a third of the time is left out,
        unless none has. Raises `DeadlineExceededError`, `BrokerError`.
        """
        limit = self._limit(timeout)
        patience_ms = limit.remaining_ms * UNREACHED_SHARE
        with suppress(NetworkError):  # one that stands still may be asked for the metadata, too
            self._router.refresh((), limit.within_ms(patience_ms / 2))
        self._router.metadata((), deadline=limit)
        patience = limit.within_ms(patience_ms)
        waiting = _Unaware(token.token_id, self._router.snapshot.brokers)

        def ask(_: int, connection: Connection) -> PendingResponse[DescribeDelegationTokenResponse]:
            return connection.submit(_description([token.owner]), deadline=limit)

        def attempt() -> None:
            share = limit if patience.expired else patience

            def read(node_id: int, pending: PendingResponse[DescribeDelegationTokenResponse]) -> None:
                # A broker that stands still may have used up the share; others have answered meanwhile.
                waiting.note(node_id, pending.result(max(share.remaining_ms, ANSWERED_MS), limit))

            failures = ask_each_broker(self._router, sorted(waiting.brokers), ask, read, share)
            waiting.check(failures, is_patient=not patience.expired)

        self._router.retry(attempt, what=f"waiting for delegation token {token.token_id}", deadline=limit)


class _Unaware:
    """The brokers that have not said yet that they know a token."""

    def __init__(self, token_id: str, brokers: Iterable[int]) -> None:
        self._token_id = token_id
        self.brokers = set(brokers)
        self._reached: set[int] = set()

    def note(self, node_id: int, response: DescribeDelegationTokenResponse) -> None:
        """The response of a broker. Raises `BrokerError` for a refusal."""
        refuse(ItemResult("delegation tokens", response.error_code), "describing")
        self._reached.add(node_id)
        if not any(one.token_id == self._token_id for one in response.tokens):
            raise IncompleteResponseError(f"broker {node_id} does not know {self._token_id} yet")
        self.brokers.discard(node_id)

    def check(self, failures: Mapping[int, KafkaError], *, is_patient: bool) -> None:
        """Raise the failure for which to go on, or to give up."""
        final = [error for error in failures.values() if not is_retriable(error)]
        unaware = [error for error in failures.values() if isinstance(error, IncompleteResponseError)]
        if not is_patient and self._reached and not final:
            # One that has answered before may merely be late: it lacked the token.
            self.brokers -= failures.keys() - self._reached
            failures = {node: error for node, error in failures.items() if node in self._reached}
        for error in (*final, *unaware, *failures.values()):
            raise error


def _description(owners: Collection[str] | None) -> DescribeDelegationTokenRequest:
    if owners is None:
        return DescribeDelegationTokenRequest(owners=None)
    wanted = [
        DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
        for kind, name in map(_parted, names_of(owners, "owners"))
    ]
    return DescribeDelegationTokenRequest(owners=wanted)


def _described(one: DescribedDelegationToken) -> DelegationToken:
    renewers = tuple(_joined(who.principal_type, who.principal_name) for who in one.renewers)
    return _token(one, (one.issue_timestamp, one.expiry_timestamp, one.max_timestamp), renewers)


def _token(
    said: CreateDelegationTokenResponse | DescribedDelegationToken,
    times_ms: tuple[int, int, int],
    renewers: tuple[str, ...],
) -> DelegationToken:
    """What a broker ``said`` of a token; the fields of its times have two names."""
    owner = _joined(said.principal_type, said.principal_name)
    requester = _joined(said.token_requester_principal_type, said.token_requester_principal_name)
    issued_ms, expires_ms, max_ms = times_ms
    return DelegationToken(
        token_id=said.token_id,
        hmac=Secret(base64.b64encode(said.hmac).decode()),
        owner=owner,
        requester=requester or owner,
        issued_ms=issued_ms,
        expires_ms=expires_ms,
        max_ms=max_ms,
        renewers=renewers,
    )


def _parted(principal: str) -> tuple[str, str]:
    kind, colon, name = principal.partition(":")
    if not colon or not kind or not name:
        raise ValueError(f"a principal is written User:name, not {principal!r}")
    return kind, name


def _joined(kind: str, name: str) -> str:
    return f"{kind}:{name}" if kind else ""


def _hmac_of(token: DelegationToken | Secret | str) -> bytes:
    secret = token.hmac if isinstance(token, DelegationToken) else token
    text = secret.reveal() if isinstance(secret, Secret) else secret
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        found = b""
    if not found:
        raise ValueError("a delegation token is given as a DelegationToken, or as its HMAC in base64")
    return found


def _positive(value: int, name: str) -> int:
    if not 1 <= value <= MAX_MS:
        raise ValueError(f"{name} must be at least 1 and at most 2**63 - 1, not {value}")
    return value
