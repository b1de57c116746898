"""`KafkaStreamReader`: ``spark.readStream.format("pykafka")``, as Spark's engine drives it.

Spark makes two of it that share nothing. One lives in the query's process on the driver and is asked for
offsets and tasks; the other is pickled to the workers and only reads. See docs/internals/spark-reading.md.

`OffsetCommitter` (``commitOffsets=true``) commits the offsets of completed batches to a consumer group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from ...kafka.cluster.router import Router, router_for
from ...kafka.errors import ConfigError, KafkaError, is_about_missing_partition
from ..same_version import SameVersion
from ..user_messages import HideTracebacks, advise, ignore_sigterm, stop_on_sigterm
from .offset_range import KafkaInputPartition
from .read_options import ReadTask, StreamOptions

if TYPE_CHECKING:
    from ..delegation_tokens import TokenKeeper
    from .driver.micro_batch import Positions, StreamOffset
    from .driver.stream_planner import Json, StreamPlanner

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # PySpark 4.1: no admission control
    ReadAllAvailable = ReadLimit = ReadMaxRows = None
    SupportsTriggerAvailableNow = object

_LOG: Final = logging.getLogger("spark_kafka_native")


class KafkaStreamReader(SameVersion, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A streaming read. Opens nothing before it is asked for offsets, or, on a worker, for records."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._task = ReadTask.of(options.read, schema, ends_are_known=True)
        self._last_end: Json | None = None
        self._is_taken_for_new = False
        """True if an end was asked for without a start, before any batch: it is that of a first batch."""
        self._latest: Json | None = None
        """The last answer of `latestOffset`, with the topics that there are now."""

    @cached_property
    def _planner(self) -> StreamPlanner:
        for warning in self._options.read.warnings:
            _LOG.warning("%s", warning)
        if ReadAllAvailable is None and self._options.limits.any:
            _LOG.warning(
                "maxOffsetsPerTrigger, minOffsetsPerTrigger and maxBytesPerTrigger are ignored: before "
                "PySpark 4.2, Python sources can't limit a micro-batch. Each one reads all there is"
            )
        advise()
        router = router_for(self._options.read.client)
        if self._task.schema.letters is not None:
            check_letter_topic(router, self._task.schema.letters.topic)
        from .driver.stream_logs import StreamLogs
        from .driver.stream_planner import StreamPlanner

        return StreamPlanner(StreamLogs(router, self._options.read), self._options)

    @cached_property
    def _tokens(self) -> TokenKeeper | None:
        read = self._options.read
        if read.tokens is None:
            return None
        from ..delegation_tokens import TokenKeeper

        stop_on_sigterm(self.stop)
        return TokenKeeper(read.client, read.tokens)

    @cached_property
    def _offset_committer(self) -> OffsetCommitter | None:
        read = self._options.read
        if not self._options.commit_offsets:
            return None
        # Late, as few streams need it: each query has a process of its own, which imports all anew.
        from ...kafka.group.committed_offsets import commit_offsets

        router = router_for(read.client)

        def commit(positions: Positions) -> None:
            commit_offsets(router, read.group_id, positions, router.deadline(TIMEOUT_MS))

        return OffsetCommitter(commit, group_id=read.group_id)

    @HideTracebacks()
    def initialOffset(self) -> Json:  # noqa: N802
        """Where a new stream starts. Asked for more than once, and again after a crash of the first batch."""
        return self._planner.initial()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Anything but "all" makes Spark ask with it, and then the options say how much: Spark has no limit
        that could carry all of them."""
        limits = self._options.limits
        return ReadMaxRows(limits.max_offsets or 2**63 - 1) if limits.any else ReadAllAvailable()

    @HideTracebacks()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The ends of the logs at the query's first question are where it ends."""
        self._planner.freeze()

    @HideTracebacks()
    def latestOffset(self, start: Json | None = None, limit: Any = None) -> Json:  # noqa: N802
        """Where the next batch ends; ``start`` if there is nothing to read. PySpark 4.1 gives no arguments:
        the last planned end is the start then, and the batch has no limit."""
        if start is None:
            self._is_taken_for_new = self._last_end is None
            end = self._latest = self._planner.latest(
                self._last_end or self._planner.initial(), limited=False
            )
            self._check_circle(end)
            return end
        end = self._latest = self._planner.latest(start, limited=not isinstance(limit, ReadAllAvailable))
        # Before Spark logs the batch: a restart would plan it again, whichever pattern it has.
        self._check_circle(end)
        # Spark asks for what follows the last batch that it has committed, also when all is quiet.
        self._commit_to_group(start, end, is_idle=end is start)
        return end

    @HideTracebacks()
    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """The ends of the logs, for ``StreamingQueryProgress``."""
        return self._planner.report()

    @HideTracebacks()
    def partitions(self, start: Json, end: Json) -> list[KafkaInputPartition]:
        """The tasks of a batch. PySpark 4.1 asks for those between the last logged offset and itself before
        anything else at a restart, so that `latestOffset` has a start."""
        if self._is_taken_for_new and start != self._planner.initial():
            raise ConfigError(
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled: with it, Spark asks for the end of "
                "a batch before it says where the stream is, so that records would be skipped. Set it to "
                "false: the stream goes on where it was, and Trigger.AvailableNow is one batch"
            )
        self._is_taken_for_new, self._last_end = False, end
        tasks = self._planner.plan(start, end)
        self._check_circle({one.topic for task in tasks for one in task})
        login = None if self._tokens is None else self._tokens.login().login
        return [KafkaInputPartition(ranges=task, login=login) for task in tasks]

    def read(self, partition: KafkaInputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task, on a worker."""
        from .worker.read_partition import read_partition

        with HideTracebacks():
            yield from read_partition(partition, self._task)

    @HideTracebacks()
    def commit(self, end: Json) -> None:
        """A batch is completed. Spark says so when it logs the next one: a batch later than it asks for that
        one's end, and of the last one never."""
        self._commit_to_group(end, self._latest)

    def stop(self) -> None:
        """Spark ends the process, and with it every connection."""
        # `cached_property` keeps its value there: of a query that has made no token, none is asked for.
        tokens = self.__dict__.get("_tokens")
        if tokens is not None:
            ignore_sigterm()  # it mostly arrives meanwhile
            tokens.expire()

    def _check_circle(self, topics: Collection[str]) -> None:
        letters = self._task.schema.letters
        if letters is not None and letters.topic in topics:
            raise ConfigError(
                f"dlq.topic={letters.topic} is among the topics that are read: each dead letter would be "
                "read as a bad record, and make another one. Choose another topic, or a subscribePattern "
                "without it"
            )

    def _commit_to_group(self, completed: Json, end: Json | None = None, *, is_idle: bool = False) -> None:
        if self._offset_committer is not None:
            from .driver.micro_batch import StreamOffset

            now = StreamOffset.from_json(completed if end is None else end).topic_ids
            self._offset_committer.completed(StreamOffset.from_json(completed), now, is_idle=is_idle)

    def sent_state(self) -> dict[str, Any]:
        """The task: the options were for planning."""
        return {"_task": self._task}


def check_letter_topic(router: Router, topic: str) -> None:
    """Raises `ConfigError` if the topic for dead letters does not exist, and the client's errors. Asked again
    for some seconds: a broker may hear of a topic later than others."""
    deadline = router.deadline()
    try:
        router.retry(
            lambda: router.metadata((topic,), deadline=deadline).topic(topic),
            what=f"asking for topic {topic}",
            deadline=deadline,
            topics=(topic,),
        )
    except KafkaError as error:
        if not is_about_missing_partition(error):
            raise
        raise ConfigError(f"dlq.topic: topic {topic} does not exist: create it first") from error


class RefusedStreamReader(KafkaStreamReader):
    """Options or columns that can't be: says so as soon as it is asked for anything.

    PySpark's own code fails where ``streamReader()`` does, and its error would be the one that is shown.
    """

    def __init__(self, error: KafkaError) -> None:
        self._error = error
        self._last_end = self._latest = None
        self._is_taken_for_new = False

    @property
    def _planner(self) -> StreamPlanner:
        raise self._error

    @property
    def _offset_committer(self) -> OffsetCommitter | None:
        raise self._error

    @HideTracebacks()
    def read(self, partition: KafkaInputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """In a task: the registry, for example, was away only when the driver planned the read."""
        raise self._error

    @HideTracebacks()
    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Asked before anything else."""
        raise self._error

    def sent_state(self) -> dict[str, Any]:
        """The error, to be raised there."""
        return dict(self.__dict__)


INTERVAL_S: Final = 1.0
"""Between two commits of a busy stream."""

PAUSE_S: Final = 15.0
"""After one that failed."""

REPEAT_S: Final = 3_600.0
"""Of the same offsets: those that are never committed again expire (``offsets.retention.minutes``), and with
them the lag of a stream that is only quiet."""

TIMEOUT_MS: Final = 3_000


class OffsetCommitter:
    """Commits at most once in `INTERVAL_S`. Owned by the one thread of its process.

    For lag tools only: the stream goes on from Spark's checkpoint. So a commit that fails is a warning, and
    one that hangs must not hold up the batches for long.
    """

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
        self._told: tuple[Positions, Mapping[str, str]] | None = None
        """The positions of the last commit, and the ids of their topics."""
        self._repeat_at = float("-inf")
        self._not_before = float("-inf")
        self._has_failed = False

    def completed(self, offset: StreamOffset, topic_ids: Mapping[str, str], *, is_idle: bool = False) -> None:
        """Batches up to ``offset`` are completed, and Spark has written that down. ``topic_ids`` are those of
        now: positions in a former topic are not committed in the one that has its name. ``is_idle``: there is
        no next batch for now, so that this may be the last chance. Never raises a `KafkaError`."""
        now = self._clock()
        positions = {
            tp: position
            for tp, position in offset.positions.items()
            if not offset.is_other_topic(tp.topic, topic_ids.get(tp.topic))
        }
        told = (positions, {tp.topic: offset.topic_ids.get(tp.topic, "") for tp in positions})
        if offset.is_initial or not positions or (told == self._told and now < self._repeat_at):
            return
        if now < self._not_before and (self._has_failed or not is_idle):
            return
        try:
            # All of them: an offset that is not committed again expires, also of a partition that is quiet.
            self._commit(positions)
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
        self._told = told
        self._repeat_at = now + REPEAT_S
