"""The client's exceptions: one per decision a caller makes, not one per error code.

Each says what happened, where (broker, API, topic-partition, offset) and what to do. Misuse of our own API is
a `ConfigError` or `ValueError`; the broker's refusal a `BrokerError`; bytes that break the rules a
`ProtocolError`. All of them survive pickling (Spark ships them from executors): ``args`` are exactly the
constructor's arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from .error_code import UNKNOWN_TOPIC, ErrorCode
from .model import CORRUPT_COLUMN, ERROR_COLUMN, TopicPartition


class KafkaError(Exception):
    """Anything that went wrong in this client or in the cluster it talks to."""

    may_pass: bool = False
    """True for a failure to connect with settings that have worked before: a broker with a certificate that
    is out of date, or a file that is being replaced. At first contact it is the configuration that is wrong.
    """


class ConfigError(KafkaError, ValueError):
    """A configuration value is missing, malformed or contradicts another one."""


class UnsupportedVersionError(KafkaError):
    """Broker and client share no version of an API, or the shared version cannot carry a field of the
    request.
    """


class NetworkError(KafkaError):
    """A connection could not be made or died. Requests in flight may or may not have been applied."""


class UnreachableError(NetworkError):
    """No connection is possible, and the system said so at once: connections are refused, or the name is
    unknown.
    """


class HandshakeClosedError(NetworkError):
    """A listener closed the connection in the first exchange, as one with another security protocol does (or
    a broker that stops).
    """


class LoginClosedError(HandshakeClosedError):
    """A broker that had answered closed the connection at the login, or at a request without one. At first
    contact it is tried a few times only, as the settings may be wrong. Where a cluster has been seen the
    broker may be restarting: it is tried until the deadline, as a refusal is an `AuthenticationError`.
    """


class SecurityError(KafkaError):
    """Broker and client don't agree on TLS, a certificate or credentials. Trying again would not help."""


class AuthenticationError(SecurityError):
    """Broker and client don't accept each other's credentials. Final: trying again locks accounts."""


class RequestTimedOutError(NetworkError):
    """No answer in time. After the request timeout the connection is closed, so that others do not wait for a
    broker that is silent.
    """


class DeadlineExceededError(KafkaError, TimeoutError):
    """The time limit of an operation has passed; ``__cause__`` is the last failure."""


class ProtocolError(KafkaError):
    """Bytes from a broker violate the protocol; their connection is closed and never reused."""


class CorruptRecordError(ProtocolError):
    """A record batch violates the format. ``offset`` is the base offset of the batch (or the offset of the
    record).
    """

    def __init__(self, message: str, offset: int, topic_partition: TopicPartition | None = None) -> None:
        super().__init__(message, offset, topic_partition)
        self.message = message
        self.offset = offset
        self.topic_partition = topic_partition

    def at(self, topic_partition: TopicPartition) -> CorruptRecordError:
        """The same error with its topic-partition, which the decoder does not know."""
        return type(self)(self.message, self.offset, topic_partition)

    def __str__(self) -> str:
        where = (
            f"{self.topic_partition} at offset {self.offset}"
            if self.topic_partition
            else f"offset {self.offset}"
        )
        return f"{where}: {self.message}"


_DENIED: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "on the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "on the group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "on the cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "on the transactional id",
}


class BrokerError(KafkaError):
    """A broker answered with an error code. ``where`` names the API and the item of the request.

    ``operation``: the operation that an ACL would have to allow, as Kafka names it (Describe, Read, Write
    ...).
    """

    def __init__(
        self, error_code: ErrorCode, where: str, message: str | None = None, operation: str | None = None
    ) -> None:
        super().__init__(error_code, where, message, operation)
        self.error_code = error_code
        self.where = where
        self.message = message
        self.operation = operation

    def __str__(self) -> str:
        reason = self.message or self.error_code.description
        if self.operation is not None and self.error_code in _DENIED:
            reason = f"the client's principal needs an ACL for {self.operation} {_DENIED[self.error_code]}"
        return f"{self.where}: {self.error_code.name} ({reason})"


class IncompleteResponseError(KafkaError):
    """A response lacks something that was requested. Asking again may help."""


class PartialAnswerError(KafkaError):
    """Some partitions did not answer: ``failed`` contains their errors, ``found`` the results of the
    others.
    """

    def __init__(self, found: Any, failed: Mapping[TopicPartition, KafkaError]) -> None:
        super().__init__(found, failed)
        self.found = found
        self.failed = dict(failed)

    def __str__(self) -> str:
        first, *others = reasons_of(self.failed)
        more = f", and {len(others)} more" if others else ""
        return f"not all partitions answered: {first}{more}"


def reasons_of(failed: Mapping[TopicPartition, KafkaError]) -> list[str]:
    """The text of each error in ``failed`` once, with its partitions if it does not name them: all partitions
    of a leader that has not answered have the same error.
    """
    having: dict[KafkaError, list[TopicPartition]] = {}
    for tp, error in failed.items():
        having.setdefault(error, []).append(tp)
    return [
        text
        if len(partitions) == 1 and str(partitions[0]) in text
        else f"{', '.join(map(str, partitions))}: {text}"
        for text, partitions in ((str(error), partitions) for error, partitions in having.items())
    ]


class ClientClosedError(KafkaError):
    """A client was closed, perhaps by another thread while this one was waiting."""


class ConsumerClosedError(ClientClosedError):
    """A consumer was closed, perhaps by another thread while this one was reading."""


class OffsetOutOfRangeError(BrokerError):
    """An offset is outside the leader's log. The bounds are set if the leader sent them."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        offset: int,
        log_start_offset: int | None = None,
        high_watermark: int | None = None,
    ) -> None:
        has = (
            f"it has [{log_start_offset}, {high_watermark})"
            if log_start_offset is not None and high_watermark is not None
            else None
        )
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, f"{topic_partition} at offset {offset}", has)
        self.args = (topic_partition, offset, log_start_offset, high_watermark)
        self.topic_partition = topic_partition
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark


class EndOfLogError(KafkaError):
    """A range extends beyond its partition: the end of the log (or the last stable offset) is below its
    end.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        position: int,
        until_offset: int,
        high_watermark: int,
        last_stable_offset: int | None = None,
    ) -> None:
        super().__init__(topic_partition, position, until_offset, high_watermark, last_stable_offset)
        self.topic_partition = topic_partition
        self.position = position
        self.until_offset = until_offset
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset

    @property
    def in_open_transaction(self) -> bool:
        """True if the log contains the whole range, and only an open transaction hides the rest."""
        stable = self.last_stable_offset
        return stable is not None and stable < self.until_offset <= self.high_watermark

    def __str__(self) -> str:
        if self.in_open_transaction:
            return (
                f"{self.topic_partition}: offsets [{self.position}, {self.until_offset}) can't be read with "
                f"isolation.level=read_committed, as an open transaction holds the last stable offset at "
                f"{self.last_stable_offset} (high watermark {self.high_watermark}); it did not end in the "
                "poll timeout"
            )
        stable = "" if self.last_stable_offset is None else f", last stable offset {self.last_stable_offset}"
        return (
            f"{self.topic_partition}: offsets [{self.position}, {self.until_offset}) can't be read, as the "
            f"log ends before them (high watermark {self.high_watermark}{stable}); records were lost, or a "
            "transaction is open"
        )


class MalformedRecordError(KafkaError):
    """The key or the value of a record can't be decoded."""

    def __init__(self, topic_partition: TopicPartition, offset: int, reason: str) -> None:
        super().__init__(topic_partition, offset, reason)
        self.topic_partition = topic_partition
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.topic_partition} at offset {self.offset}: {self.reason}. mode=permissive gives such "
            f"records as `{CORRUPT_COLUMN}` and `{ERROR_COLUMN}`, mode=dropmalformed leaves them out, "
            "and in Spark mode=dlq puts those of a stream into another topic"
        )


class LogTruncatedError(KafkaError):
    """Records that were read already are not in the log any more, and others may have their offsets
    (KIP-320).

    An unclean leader election causes it. The records before and after it do not belong to the same log.
    """

    def __init__(self, topic_partition: TopicPartition, position: int, end_offset: int) -> None:
        super().__init__(topic_partition, position, end_offset)
        self.topic_partition = topic_partition
        self.position = position
        self.end_offset = end_offset

    def __str__(self) -> str:
        return (
            f"{self.topic_partition}: the log was cut back to offset {self.end_offset} after it had been "
            f"read up to {self.position} (an unclean leader election); read again from an offset before that"
        )


class TopicRecreatedError(KafkaError):
    """A topic was deleted and created again: its offsets now belong to other records. The ids are those of
    KIP-516.
    """

    def __init__(self, topic: str, expected_topic_id: str, found_topic_id: str) -> None:
        super().__init__(topic, expected_topic_id, found_topic_id)
        self.topic = topic
        self.expected_topic_id = expected_topic_id
        self.found_topic_id = found_topic_id

    def __str__(self) -> str:
        return (
            f"topic {self.topic} was deleted and created again (its id was {self.expected_topic_id} and is "
            f"now {self.found_topic_id}): the offsets asked for are of records that are gone"
        )


class CommitFailedError(KafkaError):
    """Offsets were not committed, because their partitions are no longer assigned to this consumer, or were
    assigned to another in between.

    Another member continues at the offsets that were committed before: it reads the records in question
    again.
    """


class NoCommittedOffsetError(KafkaError):
    """A group has no committed offset in a partition, and ``auto_offset_reset="none"`` sets no other
    start.
    """

    def __init__(self, group_id: str, topic_partition: TopicPartition) -> None:
        super().__init__(group_id, topic_partition)
        self.group_id = group_id
        self.topic_partition = topic_partition

    def __str__(self) -> str:
        return (
            f"group {self.group_id} has committed no offset of {self.topic_partition}, and "
            "auto.offset.reset is none: seek to where it begins (in on_assigned), or set auto_offset_reset"
        )


def is_about_missing_partition(error: BaseException) -> bool:
    """True if a topic or partition was missing, at once or until a deadline."""
    found = error.__cause__ if isinstance(error, DeadlineExceededError) else error
    return isinstance(found, BrokerError) and found.error_code in UNKNOWN_TOPIC


def own_copy(error: KafkaError) -> KafkaError:
    """The same error as another object, to be raised: each thread that raises it adds its own traceback, and
    with that all that its frames refer to.
    """
    again = to_keep(error)
    again.__cause__ = error.__cause__
    return again


def to_keep(error: KafkaError) -> KafkaError:
    """The same error without its traceback and cause, to be kept: those refer to all frames that they went
    through, and so to the client itself, its records and sockets.
    """
    return copy.copy(error)


def joined(kind: type[KafkaError], message: str, failures: Collection[KafkaError]) -> KafkaError:
    """One error for all ``failures``: for those of brokers, which have a code each, the first one."""
    if kind is BrokerError:
        return next(iter(failures))
    error = kind(message)
    error.may_pass = all(one.may_pass for one in failures)
    return error


def with_refused(error: KafkaError, others: Iterable[KafkaError]) -> KafkaError:
    """``error`` with a note (PEP 678) for each of ``others``, which were refused in the same call."""
    for other in others:
        error.add_note(f"also refused: {other}")
    return error


def with_notes(error: KafkaError, other: KafkaError | None) -> KafkaError:
    """``error`` with the notes of ``other``, in place of which it is raised."""
    for note in getattr(other, "__notes__", ()):
        error.add_note(note)
    return error
