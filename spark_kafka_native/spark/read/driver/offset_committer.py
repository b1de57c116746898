"""`OffsetCommitter`: ``commitOffsets=true``: commits the offsets of completed batches to a consumer group.

For lag tools only: the stream goes on from Spark's checkpoint. So a commit that fails is a warning, and one
that hangs must not hold up the batches for long.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from ....kafka.errors import KafkaError
from .micro_batch import Positions, StreamOffset

_LOG: Final = logging.getLogger("spark_kafka_native")

INTERVAL_S: Final = 1.0
"""Between two commits of a busy stream."""

PAUSE_S: Final = 15.0
"""After one that failed."""

REPEAT_S: Final = 3_600.0
"""Of the same offsets: those that are never committed again expire (``offsets.retention.minutes``), and with
them the lag of a stream that is only quiet."""

TIMEOUT_MS: Final = 3_000


class OffsetCommitter:
    """Commits at most once in `INTERVAL_S`. Owned by the one thread of its process."""

    def __init__(
        self,
        commit: Callable[[Positions], None],
        *,
        group_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._commit = commit
        self._group_id = group_id
        self._clock = clock
        self._told: Positions | None = None
        self._repeat_at = float("-inf")
        self._not_before = float("-inf")
        self._has_failed = False

    def completed(self, offset: StreamOffset, *, is_idle: bool = False) -> None:
        """Batches up to ``offset`` are completed, and Spark has written that down. ``is_idle``: there is no
        next batch for now, so that this may be the last chance. Never raises a `KafkaError`."""
        now = self._clock()
        if offset.is_initial or (offset.positions == self._told and now < self._repeat_at):
            return
        if now < self._not_before and (self._has_failed or not is_idle):
            return
        try:
            # All of them: an offset that is not committed again expires, also of a partition that is quiet.
            self._commit(offset.positions)
        except KafkaError as error:
            self._has_failed = True
            self._not_before = self._clock() + PAUSE_S
            _LOG.warning(
                "The offsets of completed batches could not be committed to group %s; the stream goes on and "
                "tries again with a later batch. %s",
                self._group_id, error,
            )  # fmt: skip
            return
        self._has_failed = False
        self._not_before = now + INTERVAL_S
        self._told = offset.positions
        self._repeat_at = now + REPEAT_S
