"""`PrefetchThread`: the thread that fetches ahead of a reader, into a `PrefetchBuffer`.

It alone uses the `FetchRun`, and connections of its own: a fetch that waits for records at the end of a log
delays no other request. Slow work (a broker that does not answer, a leader that is being elected) runs in its
`Background`, while the reader's calls keep their deadlines.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..cluster.brokers import Brokers
from ..cluster.offsets import resolve_offsets, with_bounds
from ..cluster.router import Router
from ..config.reader_config import ReaderConfig
from ..errors import KafkaError, OffsetOutOfRangeError, TopicRecreatedError
from ..model import OffsetAt, TopicPartition
from ..network.connection import Connection
from ..network.transport import READ, wait_for_streams
from ..observe import catalogue as metric
from ..observe.metrics import error_tag
from ..runtime.background import Background
from ..runtime.deadline import Deadline
from .fetch_lookups import FetchLookups
from .fetched_records import FetchedRecords
from .fetcher import FetchRun
from .prefetch_buffer import AppliedReset, BufferedPartition, PrefetchBuffer

_LOG = logging.getLogger("spark_kafka_native.consumer")
IDLE_MS = 1_000
"""How long it waits when nothing is to be fetched; a change wakes it."""
SOON_S = 1.0
"""The interval of looking for a partition that cannot be read yet."""
REFUSALS_IN_DOUBT = 5
"""How often in a row to retry a refusal that contradicts the leader's own bounds, which may be newer."""


class _ResetError(OffsetOutOfRangeError):
    """An offset that is out of range, where the reset policy continues, and the end of what can be read."""

    def __init__(self, error: OffsetOutOfRangeError, go_on_at: int, end: int) -> None:
        super().__init__(*error.args)
        self.go_on_at, self.end = go_on_at, end


class _OwnConnections:
    """Connections of one consumer to the brokers that ``router`` knows."""

    def __init__(self, router: Router, brokers: Brokers) -> None:
        self._router = router
        self._brokers = brokers

    def ready(self, node_id: int) -> Connection | None:
        return self._brokers.ready(self._router.broker(node_id))

    def connection(self, node_id: int, deadline: Deadline) -> Connection:
        return self._brokers.connection(self._router.broker(node_id), deadline)


@dataclass(slots=True, eq=False)
class _Fetched:
    """A partition as the `FetchRun` has it."""

    wanted: BufferedPartition
    moves: int
    tries: int
    active: bool = True
    recreated: bool = False
    """True if the topic was recreated: the partition can be read on only as a new one."""
    doubts: int = 0


class PrefetchThread:
    """Runs until its `PrefetchBuffer` is closed."""

    def __init__(
        self,
        router: Router,
        config: ReaderConfig,
        columns: frozenset[str] | None,
        buffer: PrefetchBuffer,
        watch: Callable[[], bool] | None,
    ) -> None:
        self._router = router
        self._config = config
        self._buffer = buffer
        self._metrics = buffer.metrics
        self.brokers = Brokers(router.config, metrics=buffer.metrics)
        """Connections of its own."""
        self._background = Background("kafka-fetch", buffer.wakeup)
        connections = _OwnConnections(router, self.brokers)
        lookups = FetchLookups(router, connections, self._background, self._with_reset)
        self._run = FetchRun(
            router, config, columns, lookups=lookups, metrics=buffer.metrics, accepted=self._confirm
        )
        self._fetched: dict[TopicPartition, _Fetched] = {}
        self._watch = watch
        self._watch_at = time.monotonic() + router.config.metadata_max_age_ms / 1000
        self.thread = threading.Thread(target=self._work, name="kafka-reader", daemon=True)

    def _work(self) -> None:
        buffer = self._buffer
        try:
            while True:
                buffer.wakeup.clear()  # first: a later change is seen, or ends the next wait
                if buffer.closed:
                    break
                self._run.settle()
                self._follow()
                self._fetch()
                self._watch_metadata()
        except BaseException as error:  # noqa: BLE001 - the reader must get any bug
            _LOG.exception("the thread that fetches ahead failed")
            buffer.fail(error)
        finally:
            self._run.close()
            self.brokers.close()
            buffer.wakeup.close()
            buffer.work_units.close()
            buffer.ended = True
            buffer.wake_readers()

    def _follow(self) -> None:
        """Follow the changes that the reader has requested."""
        for topic_partition, wanted in self._buffer.changes():
            known = self._fetched.get(topic_partition)
            if known is not None and known.wanted is not wanted:
                self._run.remove(topic_partition)
                del self._fetched[topic_partition]
                known = None
            if wanted is not None:
                self._adjust(topic_partition, wanted, known)

    def _adjust(
        self, topic_partition: TopicPartition, wanted: BufferedPartition, known: _Fetched | None
    ) -> None:
        start, epoch, moves, tries, active = self._buffer.wish(wanted)
        if known is None:
            known = self._fetched[topic_partition] = _Fetched(wanted, moves, tries)
            self._run.add(topic_partition, start, topic_id=wanted.topic_id, leader_epoch=epoch)
        elif known.moves != moves and known.recreated:
            self._run.remove(topic_partition)
            # With the former id if a pause has freed memory before the buffer had the error: it comes again.
            self._run.add(topic_partition, start, topic_id=wanted.topic_id, leader_epoch=epoch)
            known.active, known.recreated = True, False
        elif known.moves != moves:
            self._run.seek(topic_partition, start, leader_epoch=epoch)
        elif known.tries != tries:
            self._run.try_again(topic_partition)
        known.moves, known.tries = moves, tries
        if active != known.active:
            (self._run.resume if active else self._run.pause)(topic_partition)
            known.active = active

    def _fetch(self) -> None:
        buffer = self._buffer
        if buffer.full or not any(one.active for one in self._fetched.values()):
            wait_for_streams([(buffer.wakeup.fileno(), READ)], Deadline.after_ms(IDLE_MS))
            return
        try:
            fetched = self._run.next(Deadline.after_ms(IDLE_MS))
        except KafkaError as error:
            self._judge(error)
            return
        if fetched is None:
            for topic_partition, known in self._fetched.items():
                self._learn_topic_id(topic_partition, known)
        else:
            known = self._fetched[fetched.topic_partition]
            known.doubts = 0
            self._learn_topic_id(fetched.topic_partition, known)
            self._count(fetched)
            buffer.put(known.wanted, known.moves, fetched)

    def _learn_topic_id(self, topic_partition: TopicPartition, known: _Fetched) -> None:
        wanted = known.wanted
        if wanted.topic_id is None and known.moves == wanted.moves and not known.recreated:
            wanted.topic_id = self._run.state(topic_partition).topic_id

    def _confirm(self, topic_partition: TopicPartition) -> None:
        known = self._fetched[topic_partition]
        self._buffer.confirm(known.wanted, known.moves)

    def _count(self, fetched: FetchedRecords) -> None:
        topic, records = fetched.topic_partition.topic, fetched.columns.length
        self._metrics.count(metric.CONSUMED_RECORDS, records, topic)
        self._metrics.count(metric.CONSUMED_BYTES, fetched.nbytes, topic)
        self._metrics.measure(metric.CONSUME_BATCH_RECORDS, records)

    def _judge(self, error: KafkaError) -> None:
        """Resolve an error about one partition by the reset policy, or hand it to the reader."""
        # The error may be that of asking for bounds: the partition is the first broken one.
        topic_partition = next(iter(self._run.broken()), None)
        if topic_partition is None:
            raise error
        if isinstance(error, OffsetOutOfRangeError) and self._resolved(error):
            return
        known = self._fetched[topic_partition]
        known.active, known.recreated = False, isinstance(error, TopicRecreatedError)
        self._run.pause(topic_partition)
        self._metrics.count(metric.CONSUMER_ERRORS, 1, error_tag(error))
        self._buffer.broke(known.wanted, known.moves, error)

    def _with_reset(
        self, router: Router, error: OffsetOutOfRangeError, deadline: Deadline
    ) -> OffsetOutOfRangeError:
        """The error with the leader's bounds, and with the offset where the reset policy continues, if it
        does. Runs in the background.
        """
        bounded, tp = with_bounds(router, error, deadline), error.topic_partition
        known, place = self._fetched.get(tp), self._config.auto_offset_reset.place(time.time() * 1000)
        in_doubt = known is not None and known.doubts < REFUSALS_IN_DOUBT and _is_contradicted(bounded)
        if place is None or in_doubt:
            return bounded
        go_on_at, end = (
            resolve_offsets(router, {tp: at}, self._config.isolation_level, deadline)[tp]
            for at in (place, OffsetAt.LATEST)
        )
        return _ResetError(bounded, go_on_at, end)

    def _resolved(self, error: OffsetOutOfRangeError) -> bool:
        """True if the partition continues: the leader's own bounds contradict its refusal, or the reset
        policy names an offset.
        """
        tp, known = error.topic_partition, self._fetched[error.topic_partition]
        if _is_contradicted(error):
            known.doubts += 1
            if known.doubts <= REFUSALS_IN_DOUBT:
                self._run.try_again(tp, self._router.config.retry_backoff_ms)
                return True
        if not isinstance(error, _ResetError):
            return False
        offset = error.go_on_at
        _LOG.warning(
            "%s; going on at %d (auto.offset.reset=%s)", error, offset, self._config.auto_offset_reset
        )
        self._metrics.count(metric.OFFSET_RESETS)
        self._run.seek(tp, offset)
        start = error.log_start_offset or 0
        reset = AppliedReset(error.offset, offset, start, error.end)
        self._buffer.reset(known.wanted, known.moves, reset)
        return True

    def _watch_metadata(self) -> None:
        """Call ``watch``, or refresh the metadata, once per ``metadata.max.age.ms``: `FetchRun` follows."""
        if time.monotonic() < self._watch_at:
            return
        self._watch_at = time.monotonic() + self._router.config.metadata_max_age_ms / 1000
        self._background.start("watch", self._watch or self._refresh, self.watch_soon)

    def _refresh(self) -> bool:
        if topics := {tp.topic for tp in self._buffer.partitions()}:
            self._router.refresh(topics, self._background.deadline(self._router.config.request_timeout_ms))
        return False

    def watch_soon(self, missing: bool | KafkaError) -> None:
        """Call ``watch`` again soon if a partition is ``missing``, or the call has failed."""
        if missing:
            self._watch_at = min(self._watch_at, time.monotonic() + SOON_S)


def _is_contradicted(error: OffsetOutOfRangeError) -> bool:
    """True if the bounds that the leader reports contain the offset that it has refused."""
    low, high = error.log_start_offset, error.high_watermark
    return low is not None and high is not None and low <= error.offset <= high
