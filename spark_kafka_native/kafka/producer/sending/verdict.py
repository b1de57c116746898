"""`judge`: what a broker's answer to one batch means. Pure; the sender acts on it.

Codes that are not listed are final: "retry and hope" is how records get duplicated. Sources: KIP-98, KIP-360,
KIP-467, Java's `Sender.completeBatch` and `TransactionManager`, librdkafka's INTRODUCTION on idempotence.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ...error_code import ErrorCode


class FailureScope(enum.Enum):
    """How much is given up."""

    BATCH = "the batch"
    WAITING = "all that waits in its partition: the topic is gone"
    PRODUCER = "everything: confirmed records are gone, or another producer took over; going on would hide it"


@dataclass(frozen=True)
class Delivered:
    """The batch is in the log."""

    duplicate: bool = False
    """An earlier attempt has written it: the broker does not say where."""


@dataclass(frozen=True)
class Retry:
    """The batch is sent again: its partition's queue has it in its old place."""

    refresh: bool = False
    """The partition may have another leader: look it up."""
    renumber: bool = False
    """Under a new epoch: its sequence numbers can't be accepted any more, and it is known not to be in the
    log."""


@dataclass(frozen=True)
class Split:
    """The batch is too large, and is sent in two halves."""


@dataclass(frozen=True)
class Failed:
    """Given up: sending the same again would be refused again, or might duplicate it."""

    scope: FailureScope = FailureScope.BATCH
    oversized: bool = False
    """It is a single record over a limit: `over_limit` says what becomes of it."""
    exhausted: bool = False
    """It was sent as often as ``retries`` allows: only the caller may try again."""


Verdict = Delivered | Retry | Split | Failed
"""What a broker's answer to one batch means."""

DELIVERED, DUPLICATE = Delivered(), Delivered(duplicate=True)
CONFIRMED = {ErrorCode.NONE: DELIVERED, ErrorCode.DUPLICATE_SEQUENCE_NUMBER: DUPLICATE}
"""The answers that say that the leader has the batch."""
RETRY, REFRESH, RENUMBER = Retry(), Retry(refresh=True), Retry(renumber=True)
SPLIT = Split()
FAIL, OVERSIZED, EXHAUSTED = Failed(), Failed(oversized=True), Failed(exhausted=True)
GONE, FATAL = Failed(FailureScope.WAITING), Failed(FailureScope.PRODUCER)

_INDEFINITE = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        # A leader that is deposed between its append and that of its followers says so too (Kafka's
        # DelayedProduce): they may have got the batch.
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_FATAL = _FENCED | {ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
_ENDED_TRANSACTION = {
    ErrorCode.INVALID_TXN_STATE: FATAL,
    ErrorCode.TRANSACTION_ABORTABLE: FAIL,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: FAIL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: FATAL,
}
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
"""Codes for a batch over a limit: of its topic's messages, or of its topic's segments."""
_OUT_OF_SEQUENCE = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


def is_indefinite(error_code: ErrorCode) -> bool:
    """True if the batch may be in the log although the broker said ``error_code``: that is not known of a
    code that a newer broker has added.
    """
    return error_code in _INDEFINITE or not error_code.known


def judge(  # noqa: C901, PLR0913 - a table and its columns
    error_code: ErrorCode,
    *,
    records: int,
    head_of_line: bool,
    gap: bool,
    indefinite: bool,
    numbered: bool,
    foreign: bool = False,
    transactional: bool = False,
    sets_apart: bool = False,
) -> Verdict:
    """What ``error_code`` means for a batch of ``records``.

    ``head_of_line``: nothing before it is unconfirmed; ``gap``: a batch before it was given up;
    ``indefinite``: an earlier attempt of it has an unknown outcome; ``numbered``: it carries sequence
    numbers; ``transactional``: giving it up only means that its transaction is aborted; ``sets_apart``: a
    single record over a limit does not fail.
    """
    if error_code in CONFIRMED:
        return CONFIRMED[error_code]
    if foreign and numbered and error_code in _OUT_OF_SEQUENCE | _FENCED:
        return RENUMBER
    if transactional and error_code in _ENDED_TRANSACTION:
        return _ENDED_TRANSACTION[error_code]
    if error_code in _OUT_OF_SEQUENCE and numbered:
        found = _judge_sequence(error_code, head_of_line, gap, indefinite)
        # Only the coordinator renews its numbers, and the batches missing before it are aborted with it.
        return FAIL if transactional and found != RETRY else found
    if error_code is ErrorCode.MESSAGE_TOO_LARGE or (sets_apart and error_code in TOO_LARGE):
        return SPLIT if records > 1 else OVERSIZED
    if error_code in _FATAL:
        return FATAL
    if error_code.stale_metadata:
        return REFRESH
    if error_code.retriable:
        return RETRY
    return OVERSIZED if records == 1 and error_code in TOO_LARGE else FAIL


def _judge_sequence(error_code: ErrorCode, head_of_line: bool, gap: bool, indefinite: bool) -> Verdict:
    if not head_of_line:
        # Only because a batch before it is missing, which is sent again first.
        return RETRY
    if gap:
        return RENUMBER
    if error_code is ErrorCode.UNKNOWN_PRODUCER_ID and not indefinite:
        # Idle for longer than the broker remembers producers (KIP-360); nothing of this batch can be in
        # the log.
        return RENUMBER
    return FATAL
