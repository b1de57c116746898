"""What an answer brings of many partitions in small record sets, decoded together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..config.client_config import ConsumerConfig
from ..records.small_sets import DecodedSmallSet, SmallSet, decode_small_sets
from .flight import Taken

SMALL_BYTES = 32 * 1024
"""Of a record set: to decode a larger one costs more than what is saved by not doing it alone."""
GROUP_BYTES = 1024 * 1024
"""Of the record sets of a group, and of what they decompress to: the memory that its records share."""


def in_groups(found: Iterable[Taken]) -> Iterator[list[Taken]]:
    """All of ``found`` in its order: small neighbours together, everything else alone."""
    group: list[Taken] = []
    group_bytes = 0
    for taken in found:
        size = _size_if_small(taken)
        if group and (size is None or group_bytes + size > GROUP_BYTES):
            yield group
            group, group_bytes = [], 0
        if size is None:
            yield [taken]
        else:
            group.append(taken)
            group_bytes += size
    if group:
        yield group


def decode_group(
    group: Sequence[Taken], config: ConsumerConfig, columns: frozenset[str] | None
) -> Sequence[DecodedSmallSet | None]:
    """The records of each of ``group`` from its position on; None for what is to be decoded alone."""
    decoded = None
    if len(group) > 1:
        decoded = decode_small_sets(
            [
                SmallSet(data.records or memoryview(b""), state.position, state.until_offset)
                for state, data, _ in group
            ],
            columns=columns,
            header_keys=config.header_keys,
            check_crcs=config.check_crcs,
            max_bytes=min(GROUP_BYTES, config.max_batch_bytes),
        )
    return [None] * len(group) if decoded is None else decoded


def _size_if_small(taken: Taken) -> int | None:
    records = taken.data.records
    if not records or len(records) > SMALL_BYTES or taken.data.aborted_transactions:
        return None
    return len(records)
