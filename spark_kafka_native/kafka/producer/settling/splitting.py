"""A batch that is too large becomes two; and the records of a batch, for a caller that gets them back
undelivered."""

from __future__ import annotations

from ...records.columns import RecordColumns
from ...records.decode import decode_record_set
from ..accumulating.batch import Batch
from ..accumulating.encoder import BatchEncoder


def read_records(batch: Batch) -> RecordColumns:
    """The records of ``batch``, from its own bytes; offsets count from 0."""
    return decode_record_set(memoryview(batch.data), fetch_offset=0).columns


def split_batch(batch: Batch, encoder: BatchEncoder) -> tuple[Batch, Batch]:
    """Two halves in order, of a batch that is known not to be in the log and has at least two records.

    They have no sequence numbers yet: `PartitionSending.take_over` gives them those of ``batch``.
    """
    columns = read_records(batch)
    middle = columns.length // 2
    head, tail = batch.divide_parts(middle)
    halves: list[Batch] = []
    for start, stop, parts in ((0, middle, head), (middle, columns.length, tail)):
        data = encoder.encode(columns.slice(start, stop), None, batch.encoded_at_ms)
        share = batch.reserved * stop // columns.length - batch.reserved * start // columns.length
        half = Batch(
            batch.topic_partition,
            data,
            stop - start,
            share,
            parts,
            batch.created_at,
            batch.encoded_at_ms,
            (*batch.order, len(halves)),
        )
        halves.append(half)
    return halves[0], halves[1]
