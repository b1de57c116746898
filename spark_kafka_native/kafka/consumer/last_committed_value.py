"""`last_committed_value`: the last committed value of a key in a partition.

A read_committed reader cannot find it: it stops at the first open transaction of any producer. This one reads
on to the high watermark, and goes by the markers of the producers that wrote the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..cluster.router import Router
from ..config.client_config import ConsumerConfig
from ..errors import DeadlineExceededError, KafkaError
from ..model import TopicPartition
from ..protocol.api.fetch import PartitionData
from ..records.batch import CONTROL, TRANSACTIONAL, read_batch_headers
from ..records.control import ControlType, read_marker
from ..records.scan import read_body
from ..runtime.deadline import Deadline
from .fetch_once import ask_leader, decode_answer
from .offsets import list_bounds

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
    last: bytes | None = None
    open_: dict[int, tuple[int, bytes | None]] = {}
    for offset, producer_id, content in events:
        if not isinstance(content, ControlType):
            if producer_id < 0:
                last = content
            else:
                open_[producer_id] = offset, content
        elif producer_id in open_:
            _, value = open_.pop(producer_id)
            last = value if content is ControlType.COMMIT else last
    return last, [offset for offset, _ in open_.values()]


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
        _, answer = router.retry(ask, what=what, deadline=deadline, topics=(topic_partition.topic,))
        position, events = _read(topic_partition, position, key, answer, config, writers)
        yield from events


def _read(
    topic_partition: TopicPartition,
    position: int,
    key: bytes,
    answer: PartitionData,
    config: ConsumerConfig,
    writers: set[int],
) -> tuple[int, list[Event]]:
    """One answer; ``writers``, the producers that wrote the key, are added to."""
    records = memoryview(answer.records or b"").cast("B")
    decoded = decode_answer(topic_partition, position, records, answer, config)
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
