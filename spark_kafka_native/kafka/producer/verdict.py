"""`judge`: what a broker's answer to one batch means. Pure; the sender acts on it.

Codes that nobody listed are final: "retry and hope" is how records come twice. Sources: KIP-98, KIP-360,
KIP-467, Java's `Sender.completeBatch` and `TransactionManager`, librdkafka's INTRODUCTION on idempotence.
"""

from __future__ import annotations

import enum

from ..error_code import ErrorCode


class Verdict(enum.Enum):
    """What to do with a batch."""

    DELIVERED = "delivered"
    DUPLICATE = "delivered by an earlier attempt"
    """The broker had it already; where, it does not say."""
    RETRY = "send again"
    REFRESH = "send again, to whoever leads the partition now"
    SPLIT = "send in two halves"
    RENUMBER = "send again under a new epoch"
    """Its sequence numbers can't be accepted any more, and it is known not to be in the log."""
    FAIL = "give up"
    FATAL = "give up everything"
    """Records that were confirmed are gone, or another producer took over: going on would hide it."""


INDEFINITE = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Codes after which the batch may be in the log nevertheless."""
UNKNOWN_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Codes of a topic that is gone, or that a broker does not know yet, or not for the moment."""

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_FATAL = _FENCED | {ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE})
_OUT_OF_SEQUENCE = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


def judge(
    error_code: ErrorCode,
    *,
    records: int,
    head_of_line: bool,
    gap: bool,
    indefinite: bool,
    numbered: bool,
    foreign: bool = False,
) -> Verdict:
    """What ``error_code`` means for a batch of ``records``.

    ``head_of_line``: nothing before it is unconfirmed; ``gap``: a batch before it was given up;
    ``indefinite``: an earlier attempt of it has an unknown outcome; ``numbered``: it carries sequence
    numbers.
    """
    if error_code is ErrorCode.NONE:
        return Verdict.DELIVERED
    if error_code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        return Verdict.DUPLICATE
    if foreign and numbered and error_code in _OUT_OF_SEQUENCE | _FENCED:
        return Verdict.RENUMBER
    if error_code in _OUT_OF_SEQUENCE and numbered:
        return _judge_sequence(error_code, head_of_line, gap, indefinite)
    if error_code in _TOO_LARGE:
        return Verdict.SPLIT if records > 1 else Verdict.FAIL
    if error_code in _FATAL:
        return Verdict.FATAL
    if error_code.stale_metadata:
        return Verdict.REFRESH
    return Verdict.RETRY if error_code.retriable else Verdict.FAIL


def _judge_sequence(error_code: ErrorCode, head_of_line: bool, gap: bool, indefinite: bool) -> Verdict:
    if not head_of_line:
        # Only because one before it is missing; that one is sent again first.
        return Verdict.RETRY
    if gap:
        return Verdict.RENUMBER
    if error_code is ErrorCode.UNKNOWN_PRODUCER_ID and not indefinite:
        # Idle for longer than the broker remembers producers (KIP-360); nothing of this batch can be in
        # the log.
        return Verdict.RENUMBER
    return Verdict.FATAL
