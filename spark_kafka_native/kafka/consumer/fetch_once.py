"""Fetches of one partition outside of a `FetchRun`: `fetch_once`, with everything that the leader reports,
and `last_committed_value` of a key.

A read_committed reader cannot find that value: it stops at the first open transaction of any producer.
`last_committed_value` reads on to the high watermark, and goes by the markers of the producers that wrote the
key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..cluster.offsets import list_bounds, with_bounds
from ..cluster.router import Leader, Router
from ..config.client_config import ConsumerConfig
from ..error_code import ErrorCode
from ..errors import (
    BrokerError,
    CorruptRecordError,
    DeadlineExceededError,
    IncompleteResponseError,
    KafkaError,
    OffsetOutOfRangeError,
)
from ..model import TopicPartition
from ..protocol.api.fetch import FetchRequest, FetchResponse, PartitionData
from ..records.batch import (
    CONTROL,
    TRANSACTIONAL,
    ControlType,
    has_valid_crc,
    read_batch_headers,
    read_marker,
)
from ..records.columns import RecordColumns
from ..records.decode import DecodedRecordSet, decode_record_set
from ..records.scan import read_body
from ..runtime.deadline import Deadline
from .fetch_requests import NAMES_UNTIL, build_fetch, read_fetch
from .fetched_records import aborted_transactions
from .partition_state import ENDLESS, PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedOnce:
    """The records of one fetch, and the leader's report about the partition."""

    topic_partition: TopicPartition
    from_offset: int
    next_offset: int
    """Where to continue: after everything that was fetched, hidden records and gaps included."""
    columns: RecordColumns
    valid: npt.NDArray[np.bool_]
    """For each record, True if the checksum of its batch is right; all are unless ``check_crcs=False``."""
    high_watermark: int
    last_stable_offset: int
    """-1 if the broker does not report it."""
    log_start_offset: int
    """-1 if the broker does not report it."""
    throttle_time_ms: int
    """For how long the broker throttles the client (KIP-219); the connection respects it."""


def fetch_once(
    router: Router,
    topic_partition: TopicPartition,
    offset: int,
    config: ConsumerConfig,
    deadline: Deadline,
) -> FetchedOnce:
    """Ask the leader once for the records from ``offset`` on, up to ``config.max_partition_fetch_bytes``.

    At the end of the log it waits for ``fetch_min_bytes``, ``fetch_max_wait_ms`` at most, and returns no
    records then. A leader that has moved is asked again, until ``deadline``.

    Raises `OffsetOutOfRangeError` with the bounds, `CorruptRecordError`, `BrokerError`,
    `DeadlineExceededError`.
    """
    if offset < 0:
        raise ValueError(f"an offset must not be negative: {offset}")

    def attempt() -> tuple[FetchResponse, PartitionData]:
        return ask_leader(router, topic_partition, offset, config, deadline)

    what = f"fetching {topic_partition} at offset {offset}"
    try:
        response, data = router.retry(attempt, what=what, deadline=deadline, topics=(topic_partition.topic,))
    except OffsetOutOfRangeError as error:
        raise with_bounds(router, error, deadline) from None
    records = memoryview(data.records or b"").cast("B")
    decoded = decode_response(topic_partition, offset, records, data, config)
    return FetchedOnce(
        topic_partition=topic_partition,
        from_offset=offset,
        next_offset=decoded.next_offset,
        columns=decoded.columns,
        valid=_validity(records, decoded.columns, config),
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
        log_start_offset=data.log_start_offset,
        throttle_time_ms=response.throttle_time_ms,
    )


def ask_leader(
    router: Router, topic_partition: TopicPartition, offset: int, config: ConsumerConfig, deadline: Deadline
) -> tuple[FetchResponse, PartitionData]:
    """One attempt at a fetch: the response, and its part about the partition."""
    leader: Leader = router.leader(topic_partition, deadline)
    connection = router.connection(leader.node_id, deadline)
    version = connection.version_of(FetchRequest, NAMES_UNTIL if leader.topic_id is None else None)
    state = PartitionState(topic_partition, offset, ENDLESS, config.max_partition_fetch_bytes)
    state.broker.led_by(leader, 0.0)
    request = build_fetch([state], config, "", config.fetch_max_bytes, version)
    # The broker may wait for records: that is no delay.
    limit_ms = router.config.request_timeout_ms + config.fetch_max_wait_ms
    response = connection.submit(request, version, deadline).result(min(limit_ms, deadline.remaining_ms))
    where = f"fetching {topic_partition} at offset {offset}"
    if response.error_code:
        raise BrokerError(response.error_code, where)
    names = {topic.topic_id: topic.topic for topic in request.topics}
    for answered, data in read_fetch(response, names):
        if answered == topic_partition:
            if data.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                raise OffsetOutOfRangeError(topic_partition, offset)
            if data.error_code:
                raise BrokerError(data.error_code, where, operation="Read")
            return response, data
    raise IncompleteResponseError(f"{where}: the leader's response lacks it")


def decode_response(
    topic_partition: TopicPartition,
    offset: int,
    records: memoryview,
    data: PartitionData,
    config: ConsumerConfig,
) -> DecodedRecordSet:
    """Decode a response to a fetch at ``offset``. Raises `CorruptRecordError` that names the partition."""
    try:
        decoded = decode_record_set(
            records,
            fetch_offset=offset,
            check_crcs=config.check_crcs,
            max_batch_bytes=config.max_batch_bytes,
            aborted_transactions=aborted_transactions(data, config),
            header_keys=config.header_keys,
        )
    except CorruptRecordError as error:
        raise error.at(topic_partition) from None
    if decoded.next_offset == offset and decoded.incomplete_batch_bytes is not None:
        raise KafkaError(
            f"{topic_partition} at offset {offset}: its batch of {decoded.incomplete_batch_bytes} bytes did "
            "not come whole; raise fetch_max_bytes and max_partition_fetch_bytes"
        )
    return decoded


def _validity(records: memoryview, columns: RecordColumns, config: ConsumerConfig) -> npt.NDArray[np.bool_]:
    """For each record, True if the checksum of its batch is right; all were checked already by default."""
    if config.check_crcs or columns.offset is None or not columns.length:
        return np.ones(columns.length, np.bool_)
    headers = read_batch_headers(records)
    batch_of = np.searchsorted(headers.last_offset, columns.offset)
    return has_valid_crc(records, headers)[batch_of]


_FIRST_WINDOW: Final = 256
_WIDER: Final = 8
"""The last record of a key is often near the end; if it is not, the window grows by this factor."""
Event = tuple[int, int, bytes | ControlType | None]
"""Offset; producer id, -1 for a record that no transaction wrote; the value of a record, or a marker."""


class UndecidedError(KafkaError):
    """The last record of the key is in a transaction that is still open: the caller has to end it first."""


def last_committed_value(
    router: Router,
    topic_partition: TopicPartition,
    key: bytes,
    deadline: Deadline,
    *,
    until: int | None = None,
) -> bytes | None:
    """The value of the last record with ``key`` that is committed, or was written without a transaction; None
    if there is none.

    With ``until`` only records before this offset count, and the leader must have it: for callers that know
    that no transaction with this key is open, since InitProducerId has ended it.
    Raises `UndecidedError` if one is, `BrokerError`, `CorruptRecordError`, `DeadlineExceededError`.
    """
    begin, end = list_bounds(router, [topic_partition], deadline=deadline)[topic_partition]
    end = end if until is None else until
    window = _FIRST_WINDOW
    while True:
        first = max(begin, end - window)
        events = _events(router, topic_partition, key, (first, end), deadline)
        # A fetch brings more than it was asked for.
        found, open_ = _decide(one for one in events if until is None or one[0] < until)
        if open_:
            raise UndecidedError(
                f"{topic_partition} at offset {min(open_)}: {key.decode(errors='replace')} was written by a "
                "transaction that is still open"
            )
        if found is not None or first == begin:
            return found
        window *= _WIDER


def _decide(events: Iterator[Event]) -> tuple[bytes | None, list[int]]:
    """The last value that counts, and the offsets of records in open transactions."""
    last: tuple[int, bytes | None] = (-1, None)
    open_: dict[int, tuple[int, bytes | None]] = {}
    for offset, producer_id, content in events:
        if not isinstance(content, ControlType):
            if producer_id < 0:
                last = offset, content
            else:
                open_[producer_id] = offset, content
        elif producer_id in open_:
            ended = open_.pop(producer_id)
            if content is ControlType.COMMIT and ended[0] > last[0]:  # transactions end in any order
                last = ended
    return last[1], [offset for offset, _ in open_.values()]


def _events(
    router: Router, topic_partition: TopicPartition, key: bytes, span: tuple[int, int], deadline: Deadline
) -> Iterator[Event]:
    """The records with ``key`` between two offsets, in order, with the ends of the transactions that wrote
    them."""
    config, (position, end) = ConsumerConfig(), span
    writers: set[int] = set()
    while position < end:
        if deadline.expired:
            raise DeadlineExceededError(
                f"{topic_partition}: reading offsets {position} to {end} took too long"
            )
        ask = partial(ask_leader, router, topic_partition, position, config, deadline)
        what = f"fetching {topic_partition} at offset {position}"
        _, data = router.retry(ask, what=what, deadline=deadline, topics=(topic_partition.topic,))
        position, events = _read(topic_partition, position, key, data, config, writers)
        yield from events


def _read(
    topic_partition: TopicPartition,
    position: int,
    key: bytes,
    data: PartitionData,
    config: ConsumerConfig,
    writers: set[int],
) -> tuple[int, list[Event]]:
    """One response; ``writers``, the producers that wrote the key, are added to."""
    import pyarrow.compute as pc  # late: importing it takes half the time of importing pyarrow

    records = memoryview(data.records or b"").cast("B")
    decoded = decode_response(topic_partition, position, records, data, config)
    headers = read_batch_headers(records)
    events: list[Event] = []
    columns = decoded.columns
    if columns.key is not None and columns.offset is not None and columns.value is not None:
        mine = np.flatnonzero(pc.fill_null(pc.equal(columns.key, pa.scalar(key)), False))
        batch_of = np.searchsorted(headers.last_offset, columns.offset[mine])
        producer_id = np.where(headers.has(TRANSACTIONAL), headers.producer_id, -1)[batch_of]
        for row, producer in zip(mine.tolist(), producer_id.tolist(), strict=True):
            events.append((int(columns.offset[row]), producer, columns.value[row].as_py()))
            writers.add(producer)
    body = partial(read_body, records, headers, max_batch_bytes=config.max_batch_bytes)
    there = headers.has(CONTROL) & headers.has(TRANSACTIONAL)
    there &= (headers.base_offset >= position) & (headers.last_offset < decoded.next_offset)
    # There may be millions of other markers, and each costs 20 us to decode.
    there &= np.isin(headers.producer_id, list(writers))
    for index in np.flatnonzero(there).tolist():
        event = read_marker(headers, index, body)
        events.append((int(headers.base_offset[index]), int(headers.producer_id[index]), event))
    return decoded.next_offset, sorted(events, key=lambda one: one[0])
