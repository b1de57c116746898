"""`StreamPlanner`: where a stream starts, how far each batch goes, and what its tasks read.

Lives in the query's own process on the driver, as long as the query does. Everything that a restart needs is
in the offsets it returns: what it remembers itself may be lost at any time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from ....kafka.errors import ConfigError, KafkaError
from ...error_conditions import KafkaConditionError
from ..offset_range import OffsetRange
from ..read_options import MicroBatchLimits, StreamOptions
from .admission_control import Backlog, SizeEstimate, holds_back, plan_end
from .micro_batch import (
    LogEnds,
    MicroBatch,
    Positions,
    StreamOffset,
    check_available_now,
    end_of_batch,
    offset_changed,
    partitions_deleted,
)
from .range_calculator import PlannedRange, describe_small_tasks, form_tasks
from .stream_logs import StreamLogs

_LOG: Final = logging.getLogger("spark_kafka_native")

Json = dict[str, Any]

SAMPLE_INTERVAL_S: Final = 60.0
"""Between two looks at the size of records where no limit needs them: a fetch of some milliseconds."""


class StreamPlanner:
    """The driver's side of one streaming read. Owned by the one thread of its process."""

    def __init__(
        self, logs: StreamLogs, options: StreamOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logs = logs
        self._options = options
        self._clock = clock
        self._initial: Json | None = None
        self._refusal: KafkaError | None = None
        self._admitted_at: float | None = None
        self._is_available_now = False
        self._target: LogEnds | None = None
        self._ends: LogEnds | None = None
        self._start: tuple[Json, StreamOffset] | None = None
        self._quiet_at: tuple[StreamOffset, LogEnds] | None = None
        """Where the last `latest` found nothing to read, and nothing lost."""
        self._held: Positions = {}
        """Positions beyond the end of their log: the stream waits there."""
        self._missing: Positions = {}
        """Positions of partitions that were missing, also when asked for again."""
        self._has_hinted = False
        self._sampled_at: float | None = None
        self._bytes: float | None = None

    def initial(self) -> Json:
        """Where the stream starts; the same whenever this process is asked.

        Options that don't fit the partitions there are (any more) are an error of `latest` only: a first
        batch that was written down before a crash says itself where it starts.
        """
        if self._initial is None:
            try:
                self._initial = self._logs.find_start().to_json()
            except (ConfigError, KafkaConditionError) as error:
                self._refusal = error
                return StreamOffset(positions={}, start={}).to_json()
        return self._initial

    def freeze(self) -> None:
        """Trigger.AvailableNow: the ends of the logs at the first `latest` are the target."""
        self._is_available_now = True

    def latest(self, start_json: Json, *, limited: bool) -> Json:
        """Where the batch that begins at ``start_json`` ends; ``start_json`` itself if there is none.

        Raises `KafkaConditionError` for losses (unless failOnDataLoss is off) before Spark has written
        anything down, so that a restart with other options can go on.
        """
        if self._refusal is not None:
            raise self._refusal
        start = self._parse(start_json)
        self._ends = ends = self._find_ends(start)
        if self._quiet_at == (start, ends):
            self._renew_delay()
            return start_json
        self._missing = {tp: at for tp, at in start.positions.items() if tp not in ends.latest}
        if not ends.latest:
            # Not an offset without partitions: when they come back, each of them would be new.
            self._report_all_gone(start)
            return start_json
        if self._options.read.fail_on_data_loss:
            batch = MicroBatch.between(start, end_of_batch(start, ends, ends.latest))
            self._report(batch.losses(has_group_id=self._options.read.has_group_id))
        backlog = Backlog.of(start, ends)
        self._report_held(backlog.held, ends)
        now = self._clock()
        if limited and self._is_held_back(backlog, now):
            return start_json
        if backlog.is_empty:
            self._quiet_at, self._admitted_at = (start, ends), now
            return start_json
        end = self._find_end(backlog, self._options.limits if limited else MicroBatchLimits())
        if end is None:
            return start_json
        self._admitted_at = now
        return end.to_json()

    def _find_end(self, backlog: Backlog, limits: MicroBatchLimits) -> StreamOffset | None:
        """Where the batch ends; None if nothing can be read after all. What `plan_end` needs to know is asked
        once, and only if there is something to read: a quiet stream asks for the ends of the logs alone."""
        fail = self._options.read.fail_on_data_loss
        wanted = backlog.unknown_beginnings(limits, fail_on_data_loss=fail)
        beginnings = self._logs.find_beginnings(wanted)
        if fail:
            self._report(backlog.batch.losses_of_added(beginnings))
        elif unknown := {tp for tp in backlog.batch.added if tp not in beginnings}:
            backlog = backlog.without(unknown)
            if self._target is not None:
                self._target = self._target.without(unknown)
            if backlog.is_empty or not backlog.ends.latest:
                return None
        sizes = SizeEstimate()
        if limits.max_bytes is not None:
            begin, latest = backlog.begin(beginnings), backlog.ends.latest
            sizes = self._sample(begin, {tp: latest[tp] for tp in latest if tp in begin}, backlog.ends)
        end = plan_end(backlog, limits, beginnings, sizes, fail_on_data_loss=fail)
        self._sample_now_and_then(backlog, end)
        return end

    def report(self) -> Json | None:
        """The ends of the logs, for Spark's progress; None before the first `latest`. With them, as a key's
        name, the bytes of a record as last sampled: so they get to where the query is watched."""
        if self._ends is None or not self._ends.latest:
            return None
        ends = StreamOffset(positions=self._ends.latest).to_json()
        return ends if self._bytes is None else ends | {f"#bytes {self._bytes:.1f}": {}}

    def plan(self, start_json: Json, end_json: Json) -> list[tuple[OffsetRange, ...]]:
        """The ranges of each task between two offsets: the same whenever, and in whichever process."""
        if start_json == end_json:
            return []
        start, end = StreamOffset.from_json(start_json), StreamOffset.from_json(end_json)
        self._check_first_batch(start_json, end)
        self._refusal = None
        batch = MicroBatch.between(start, end)
        self._report(batch.losses(has_group_id=self._options.read.has_group_id))
        self._check_target(end)
        known = {tp: end.added[tp] for tp in batch.added if tp in end.added}
        earliest = known | self._logs.find_beginnings([tp for tp in batch.added if tp not in known])
        self._report(batch.losses_of_added(earliest))
        # The end of the batch counts them as read: its tasks look for the records once more.
        earliest = dict.fromkeys(batch.added, 0) | earliest
        ranges = batch.ranges(earliest)
        # Not by leader: leaders move, and a sink that writes exactly once needs the same rows in each task.
        tasks = form_tasks(ranges, self._options.read.task_limits, {})
        self._hint(tasks)
        return [tuple(piece.shipped for piece in task) for task in tasks]

    def _parse(self, start_json: Json) -> StreamOffset:
        """The offset that ``start_json`` is: for as long as all is quiet, the same one."""
        if self._start is None or self._start[0] != start_json:
            self._start = start_json, StreamOffset.from_json(start_json)
        return self._start[1]

    def _find_ends(self, start: StreamOffset) -> LogEnds:
        if not self._is_available_now:
            return self._logs.find_ends(start, {**self._held, **self._missing})
        if self._target is None:
            self._target = self._logs.find_ends(start)
        return self._target

    def _report_held(self, held: Positions, ends: LogEnds) -> None:
        """Report each position that waits for its log, once."""
        new = [tp for tp, position in held.items() if self._held.get(tp) != position]
        self._report(
            offset_changed(
                tp, held[tp], ends.latest[tp],
                f"The stream goes on at offset {held[tp]} when the log has come that far, and never reads "
                "what is written before it.",
            )
            for tp in sorted(new)
        )  # fmt: skip
        self._held = held

    def _is_held_back(self, backlog: Backlog, now: float) -> bool:
        if self._is_available_now:
            return False  # The target does not grow: the rest is read, however small it is.
        waited_ms = self._waited_ms(now)
        return holds_back(self._options.limits, backlog.batch.begin, backlog.ends.latest, waited_ms)

    def _waited_ms(self, now: float) -> float | None:
        return None if self._admitted_at is None else (now - self._admitted_at) * 1000

    def _renew_delay(self) -> None:
        """The delay of a batch begins anew when it is over, also while all is quiet, as in Spark's connector:
        the first record after that waits for others, too."""
        now = self._clock()
        waited_ms = self._waited_ms(now)
        if waited_ms is not None and waited_ms >= self._options.limits.max_delay_ms:
            self._admitted_at = now

    def _sample(self, begin: Positions, latest: Positions, ends: LogEnds) -> SizeEstimate:
        self._sampled_at = self._clock()
        sizes = self._logs.sample_sizes(begin, latest, ends.topic_ids)
        if known := sizes.bytes_per_offset:
            self._bytes = sum(known.values()) / len(known)
        return sizes

    def _sample_now_and_then(self, backlog: Backlog, end: StreamOffset) -> None:
        """So that the progress can tell bytes."""
        if self._sampled_at is None or self._clock() - self._sampled_at >= SAMPLE_INTERVAL_S:
            begin = backlog.batch.begin
            self._sample(begin, {tp: at for tp, at in end.positions.items() if tp in begin}, backlog.ends)

    def _check_first_batch(self, start_json: Json, end: StreamOffset) -> None:
        if end.start is None and (start_json == self._initial or self._refusal is not None):
            raise ConfigError(
                "The first batch of this checkpoint was planned by Spark's own connector and not completed, "
                'and only that connector knows where it starts. Let format("kafka") complete it, then go on '
                'with format("pykafka")'
            )

    def _check_target(self, end: StreamOffset) -> None:
        if self._target is not None:
            latest = self._logs.find_ends(end, self._held).latest
            read = {tp: at for tp, at in end.positions.items() if self._held.get(tp) != at}
            held = {tp: self._target.latest[tp] for tp in end.positions.keys() - read.keys()}
            check_available_now({**read, **held}, self._target.latest, latest)

    def _hint(self, tasks: Sequence[Sequence[PlannedRange]]) -> None:
        if not self._has_hinted and (hint := describe_small_tasks(tasks)) is not None:
            self._has_hinted = True
            _LOG.warning("%s", hint)

    def _report_all_gone(self, start: StreamOffset) -> None:
        if start.positions and self._options.read.fail_on_data_loss:
            raise partitions_deleted(start.positions, has_group_id=self._options.read.has_group_id)

    def _report(self, losses: Iterable[KafkaConditionError]) -> None:
        """Raise the first, or warn of all, as ``failOnDataLoss`` says."""
        for loss in losses:
            if self._options.read.fail_on_data_loss:
                raise loss
            _LOG.warning("The stream goes on, as failOnDataLoss is false. %s", loss)
