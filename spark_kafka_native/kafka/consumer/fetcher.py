"""`Fetcher`: records of explicit offset ranges as columns, several partitions at once, the next
fetch always in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from ..cluster.router import Router
from ..config import ConsumerConfig
from ..errors import CorruptRecordError, OffsetOutOfRangeError
from ..model import AbortedTransaction, IsolationLevel, OffsetAt, TopicPartition
from ..protocol.api.fetch import PartitionData
from ..records.columns import RecordColumns
from ..records.decode import DecodedRecordSet, decode_record_set
from .fetch_run import FetchRun, Flight
from .offsets import list_offsets
from .partition_state import PartitionState

DECODED_BYTES = 4 * 1024 * 1024
"""Decompressed records in one `FetchedRecords` (a larger batch comes alone): what fits in a cache is copied
fast, and a reader's memory does not depend on how well a topic compresses.
"""

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""For each partition the first offset to fetch, and the one before which to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """Records of one partition, in offset order: all that there are in ``[from_offset, next_offset)``.

    There may be fewer than offsets, or none (compaction, control batches, aborted transactions).
    """

    topic_partition: TopicPartition
    columns: RecordColumns
    from_offset: int
    next_offset: int
    """Where the next `FetchedRecords` of this partition starts; at most the range's until_offset."""
    log_start_offset: int
    """-1 where the broker does not tell."""
    high_watermark: int
    last_stable_offset: int


class Fetcher:
    """Fetches from the leaders (or followers in ``client_rack``). Use from one thread at a time."""

    def __init__(self, router: Router, config: ConsumerConfig) -> None:
        self._router = router
        self._config = config

    def fetch(
        self,
        ranges: Ranges,
        columns: frozenset[str] | None = None,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> Iterator[FetchedRecords]:
        """Yield every record of ``ranges`` once, each partition in order; ends when all are at their
        until_offset.

        ``columns`` names the fields of `RecordColumns` to fill (None: all). ``topic_ids`` are the ids that
        the offsets belong to; without them, those of the first answer. Leaders that move and brokers that
        restart are followed without loss or duplicate. What was yielded stays valid after an error, and the
        caller may go on from there:

        - `OffsetOutOfRangeError`: retention took the offset, or it never was; with what the leader has.
        - `EndOfLogError`: the log ends before the range does (after ``end.of.log.wait.ms``), or an open
        transaction holds it back (after ``poll.timeout.ms``).
        - `TopicRecreatedError`: the topic is another one than the offsets are of.
        - `CorruptRecordError`: twice in a row, with partition and offset.
        - `BrokerError` (not authorized, unknown topic, ...), `DeadlineExceededError` (no progress),
        `ProtocolError`.
        """
        run = FetchRun(self._router, self._config, self._states(ranges, topic_ids or {}))
        try:
            while run.unfinished:
                run.submit()
                for flight in run.wait():
                    yield from self._answer(run, flight, columns)
        except OffsetOutOfRangeError as error:
            raise self._with_bounds(error) from None
        finally:
            run.abandon()

    def _states(self, ranges: Ranges, topic_ids: Mapping[str, UUID]) -> list[PartitionState]:
        return [
            PartitionState(
                topic_partition=tp,
                position=from_offset,
                ask_from=from_offset,
                until_offset=until_offset,
                max_bytes=self._config.max_partition_fetch_bytes,
                topic_id=topic_ids.get(tp.topic),
            )
            for tp, (from_offset, until_offset) in ranges.items()
        ]

    def _answer(
        self, run: FetchRun, flight: Flight, columns: frozenset[str] | None
    ) -> Iterator[FetchedRecords]:
        found = run.read(flight)
        run.submit()  # the next request is on its way before these records are decoded
        for state, data in found:
            with run.elsewhere():
                yield from self._decode(run, state, data, columns)
        # Columns own their memory: nothing points into the response any more.
        flight.pending.release()

    def _decode(
        self, run: FetchRun, state: PartitionState, data: PartitionData, columns: frozenset[str] | None
    ) -> Iterator[FetchedRecords]:
        """The records of one partition in a response: mostly one `FetchedRecords`, more where they
        unpack to a lot.
        """
        records = data.records or memoryview(b"")
        aborted = self._aborted(data)
        expected = min(state.ask_from, state.until_offset)
        check_crcs = self._config.check_crcs
        while records:
            try:
                decoded = self._decode_records(state, records, columns, aborted, check_crcs)
            except CorruptRecordError as error:
                if state.refetched:
                    raise error.at(state.topic_partition) from None
                # Once more, from the leader: the bytes may have been damaged on the way.
                state.refetched, state.replica = True, None
                break
            from_offset = state.position
            state.advance(min(decoded.next_offset, state.until_offset), run.now())
            yield _fetched(state, data, from_offset, decoded.columns)
            # What is left at the end is mostly a part of a batch, and not worth a look.
            if decoded.consumed_bytes == 0 or state.position >= expected:
                break
            records, aborted = records[decoded.consumed_bytes :], decoded.aborted_transactions
            check_crcs = False  # the first call checked all batches
        if state.position < expected:
            state.rewind()  # what was asked for meanwhile does not fit any more

    def _decode_records(
        self,
        state: PartitionState,
        records: memoryview,
        columns: frozenset[str] | None,
        aborted: Sequence[AbortedTransaction] | None,
        check_crcs: bool,
    ) -> DecodedRecordSet:
        return decode_record_set(
            records,
            fetch_offset=state.position,
            until_offset=state.until_offset,
            columns=columns,
            check_crcs=check_crcs,
            max_batch_bytes=self._config.max_batch_bytes,
            aborted_transactions=aborted,
            max_bytes=DECODED_BYTES,
        )

    def _aborted(self, data: PartitionData) -> Sequence[AbortedTransaction] | None:
        if self._config.isolation_level is not IsolationLevel.READ_COMMITTED:
            return None
        return [
            AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
            for one in data.aborted_transactions or ()
        ]

    def _with_bounds(self, error: OffsetOutOfRangeError) -> OffsetOutOfRangeError:
        """The error with what the leader has now, which its refusal does not tell."""
        tp = error.topic_partition
        first, end = (
            list_offsets(self._router, {tp: at})[tp].offset for at in (OffsetAt.EARLIEST, OffsetAt.LATEST)
        )
        return OffsetOutOfRangeError(tp, error.offset, first, end)


def _fetched(
    state: PartitionState, data: PartitionData, from_offset: int, columns: RecordColumns
) -> FetchedRecords:
    return FetchedRecords(
        topic_partition=state.topic_partition,
        columns=columns,
        from_offset=from_offset,
        next_offset=state.position,
        log_start_offset=data.log_start_offset,
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
    )
