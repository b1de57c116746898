"""`split_commit`: committed offsets in parts that a group's coordinator can append. Without I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from ..model import OffsetToCommit, TopicPartition

P = TypeVar("P", bound=int | OffsetToCommit)

MAX_COMMIT_BYTES: Final = 512 * 1024
"""Of the records that one request becomes. A coordinator appends them as one batch, which must not exceed
``max.message.bytes`` of ``__consumer_offsets`` (1 MiB by default): it would refuse all of them."""
_RECORD_BYTES: Final = 80
"""Of a record there, beside the names of group and topic and the metadata: some 75."""


def split_commit(group_id: str, positions: Mapping[TopicPartition, P]) -> Iterator[dict[TopicPartition, P]]:
    """``positions`` in parts that a coordinator can append (`MAX_COMMIT_BYTES`), in order."""
    part: dict[TopicPartition, P] = {}
    used = 0
    for tp, position in positions.items():
        metadata = "" if isinstance(position, int) else position.metadata
        size = _RECORD_BYTES + sum(len(text.encode()) for text in (group_id, tp.topic, metadata))
        if part and used + size > MAX_COMMIT_BYTES:
            yield part
            part, used = {}, 0
        part[tp] = position
        used += size
    if part:
        yield part
