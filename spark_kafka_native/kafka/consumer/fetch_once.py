"""`fetch_once`: one fetch of one partition, with everything that the leader reports about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..cluster.router import Leader, Router
from ..config.client_config import ConsumerConfig
from ..error_code import ErrorCode
from ..errors import (
    BrokerError,
    CorruptRecordError,
    IncompleteResponseError,
    KafkaError,
    OffsetOutOfRangeError,
)
from ..model import TopicPartition
from ..protocol.api.fetch import FetchRequest, FetchResponse, PartitionData
from ..records.batch import has_valid_crc, read_batch_headers
from ..records.columns import RecordColumns
from ..records.decode import DecodedRecordSet, decode_record_set
from ..runtime.deadline import Deadline
from .fetch_requests import NAMES_UNTIL, build_fetch, read_fetch
from .fetched_records import aborted_transactions
from .offsets import with_bounds
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
    deadline: Deadline | None = None,
) -> FetchedOnce:
    """Ask the leader once for the records from ``offset`` on, up to ``config.max_partition_fetch_bytes``.

    At the end of the log it waits for ``fetch_min_bytes``, ``fetch_max_wait_ms`` at most, and returns no
    records then. A leader that has moved is asked again, until ``deadline`` (None: the config's time for an
    operation).

    Raises `OffsetOutOfRangeError` with the bounds, `CorruptRecordError`, `BrokerError`,
    `DeadlineExceededError`.
    """
    if offset < 0:
        raise ValueError(f"an offset must not be negative: {offset}")
    limit = deadline or router.deadline()

    def attempt() -> tuple[FetchResponse, PartitionData]:
        return ask_leader(router, topic_partition, offset, config, limit)

    what = f"fetching {topic_partition} at offset {offset}"
    try:
        response, data = router.retry(attempt, what=what, deadline=limit, topics=(topic_partition.topic,))
    except OffsetOutOfRangeError as error:
        raise with_bounds(router, error) from None
    records = memoryview(data.records or b"").cast("B")
    decoded = decode_answer(topic_partition, offset, records, data, config)
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
    """One attempt at a fetch: the answer, and its part about the partition."""
    leader: Leader = router.leader(topic_partition)
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
    raise IncompleteResponseError(f"{where}: the leader's answer lacks it")


def decode_answer(
    topic_partition: TopicPartition,
    offset: int,
    records: memoryview,
    data: PartitionData,
    config: ConsumerConfig,
) -> DecodedRecordSet:
    """Decode an answer to a fetch at ``offset``. Raises `CorruptRecordError` that names the partition."""
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
