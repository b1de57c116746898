"""`Consumer`: reads topics, or some of their partitions, without a group."""

from __future__ import annotations

import logging
import operator
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar, overload

from ..cluster.metadata import Topic
from ..cluster.offsets import (
    OffsetLike,
    Whence,
    offset_or_at,
    resolve_offsets,
    resolve_offsets_of_each,
    try_resolve_offsets,
)
from ..cluster.router import Router, check_shared
from ..config.client_config import Bootstrap, ClientConfig, configs_from
from ..config.reader_config import ReaderConfig
from ..errors import AuthenticationError, ConfigError, ConsumerClosedError, KafkaError
from ..model import OffsetAt, Record, TopicPartition
from ..observe.events import EventStream
from ..observe.metrics import MetricsSnapshot, error_tag
from ..records.decode import ALL_COLUMNS
from ..runtime.deadline import Deadline
from ..runtime.retry import is_retriable
from .fetched_records import FetchedRecords, WorkUnit
from .partition_reader import PartitionReader
from .typed_records import FormatLike, TypedRecords

_LOG = logging.getLogger("spark_kafka_native.consumer")

LOOK_MS = 50
"""How often iteration and reads without a timeout check for the end, with ``stop_at_end``: no record comes
when markers lead to it, or when a place beyond it is confirmed.
"""

T = TypeVar("T")

Start = OffsetLike | Mapping[int, OffsetLike] | Mapping[TopicPartition, OffsetLike]


class Consumer:
    """Reads records one by one, in lists, or as columns, each partition in order.

    ``bootstrap`` says how to reach the cluster, and keywords are the fields of `ReaderConfig`,
    `ConsumerConfig`, `ClientConfig` and `SecurityConfig`, as for `Producer`. ``topic`` is one or several;
    ``partitions`` are those of one topic to read (None: all, and new ones from their beginning, once
    ``metadata.max.age.ms`` has shown them). ``start`` is where to begin: an offset, ``"earliest"``,
    ``"latest"``, a `datetime`, a `timedelta` ago, an `OffsetAt`, or a mapping of partitions to those.
    ``columns`` are the fields of `RecordColumns` to fill, with ``offset`` always (None: all): other fields
    are not decoded. With ``stop_at_end`` iteration ends after the records that the logs contained when the
    consumer was made (read_committed: up to the last stable offset); newer records may come before that.
    Making it raises if the end of a partition cannot be found.

        with Consumer("localhost:9092", "orders", start="earliest") as consumer:
            for record in consumer:
                print(record.offset, record.value)

    Making one asks the cluster for partitions and offsets, and raises `BrokerError` (no such topic, not
    authorized), `DeadlineExceededError`, `NetworkError` and their kin. A partition without a leader, or with
    an unreachable one, is named in the log, and read (and among `partitions`) once its leader can be reached.
    If the leader refuses the login, the next read raises that, and it is tried again only after
    ``metadata.max.age.ms``, or by `seek`. Records are fetched ahead in a thread (``prefetch_max_bytes``). One
    thread reads, and a second one that reads meanwhile gets a `RuntimeError`; others may close, pause, seek
    and ask at the same time.

    Reading raises errors about one partition when it has no records left to hand out; the others can be read
    on. `OffsetOutOfRangeError` (without ``auto_offset_reset``), `LogTruncatedError`, `TopicRecreatedError`
    and `CorruptRecordError` are raised again until `seek` moves that partition or `pause` leaves it alone;
    after other errors the next call tries again.
    """

    def __init__(  # noqa: PLR0913 - settings, by name
        self,
        bootstrap: Bootstrap | None = None,
        topic: str | Collection[str] = (),
        *,
        partitions: Collection[int] | None = None,
        start: Start = OffsetAt.EARLIEST,
        columns: Collection[str] | None = None,
        stop_at_end: bool = False,
        router: Router | None = None,
        **settings: Any,
    ) -> None:
        # Its owner expects commits: without them all is read again next time.
        if isinstance(bootstrap, Mapping) and bootstrap.get("group.id"):
            raise ConfigError(
                "group.id: a Consumer is in no group, and commits nothing. Use GroupConsumer, or leave the "
                "property out"
            )
        given = router.config if bootstrap is None and router is not None else bootstrap
        client, self._config = configs_from(given, settings, ReaderConfig)
        check_shared(router, client)
        self.topics = (topic,) if isinstance(topic, str) else tuple(topic)
        if not self.topics or not all(isinstance(name, str) and name for name in self.topics):
            raise ValueError(f"topic must be the name of a topic, or some, not {topic!r}")
        self._owns_router = router is None
        self._router = router or self._new_router(client)
        if columns is not None and (unknown := set(columns) - ALL_COLUMNS):
            raise ValueError(f"no such columns: {sorted(unknown)}; there are {sorted(ALL_COLUMNS)}")
        self._missing: dict[TopicPartition, _Missing] = {}
        self._lock = threading.RLock()
        """Guards `_missing`, with what the reader reads of it."""
        try:
            found = self._find_partitions(partitions)
            self._ends = self._resolve(dict.fromkeys(found, OffsetAt.LATEST)) if stop_at_end else None
            offsets = self._begin_at(_starts(start, found))
        except BaseException:
            self._close_router()
            raise
        self._known = set(found)
        wanted = None if columns is None else frozenset(columns)
        self._all_partitions = partitions is None
        self._look_failed = ""
        """The kind of the error that the last look for partitions has ended with, if any."""
        watch = _watch(weakref.WeakMethod(self._add_new)) if partitions is None or self._missing else None
        with self._lock:  # a look for partitions may begin before there is a reader
            self._reader = PartitionReader(
                self._router, self._config, wanted, watch, watch_soon=bool(self._missing)
            )
            for topic_partition, offset in offsets.items():
                self._reader.add(topic_partition, offset)

    @property
    def reader(self) -> PartitionReader:
        """The reader that fetches and hands out the records."""
        return self._reader

    def __repr__(self) -> str:
        state = " (closed)" if self._reader.closed else ""
        count = len(self._reader.partitions)
        return f"<Consumer of {', '.join(self.topics)}: {count} partitions at {self._at()}{state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record]:
        """The records one by one. The iterator has no `close`, which Python calls at the end of a generator
        with ``yield from consumer`` (PEP 380): the consumer is not its own.
        """
        return iter(self.__next__, None)

    def __next__(self) -> Record:
        """The next record of any partition; waits for it. Ends once the consumer is closed, or `at_end`."""
        for record in self._reader.rows:
            return record
        found = None
        try:
            while found is None:
                if self.at_end:
                    raise StopIteration
                found = self._reader.next_record(None if self._ends is None else Deadline.after_ms(LOOK_MS))
        except ConsumerClosedError as error:
            if error.__cause__ is not None or not self._reader.closed:  # it failed, or this is a forked child
                raise
            raise StopIteration from None
        return found

    @property
    def stops_at_end(self) -> bool:
        """True if ``stop_at_end`` was set."""
        return self._ends is not None

    @property
    def at_end(self) -> bool:
        """True if ``stop_at_end`` was set and all records before those ends were handed out (a place beyond
        them: once a broker has confirmed it). After a reset by ``auto_offset_reset`` it is the end of then,
        if that is lower. Raises why a partition is refused for good, once nothing else is left to read.
        """
        if self._ends is None:
            return False
        read = self._reader.partitions
        left = [tp for tp, end in self._ends.items() if tp not in read or not self._reader.has_read(tp, end)]
        errors = [one.error for tp in left if (one := self._missing.get(tp)) is not None]
        refusals = [error for error in errors if error is not None and not is_retriable(error)]
        if refusals and len(refusals) == len(left):
            raise refusals[0]
        return not left

    def poll(self, timeout: float | None = None, max_records: int | None = None) -> list[Record]:
        """The next records: waits for the first, for ``timeout`` seconds (None: for ever, or until `at_end`),
        and takes those that are available, up to ``max_records`` (None: ``max_poll_records``). An empty list
        after the timeout.
        """
        if max_records is not None and max_records < 1:
            timeout = 0
        return self._within(timeout, lambda deadline: self._reader.poll(max_records, deadline) or None) or []

    @overload
    def read_columns(self, timeout: float | None = None) -> FetchedRecords | None: ...

    @overload
    def read_columns(
        self,
        timeout: float | None = None,
        *,
        value_format: FormatLike,
        key_format: FormatLike | None = None,
        mode: str = "failfast",
    ) -> TypedRecords | None: ...

    @overload
    def read_columns(
        self, timeout: float | None = None, *, key_format: FormatLike, mode: str = "failfast"
    ) -> TypedRecords | None: ...

    def read_columns(
        self,
        timeout: float | None = None,
        *,
        value_format: FormatLike | None = None,
        key_format: FormatLike | None = None,
        mode: str = "failfast",
    ) -> FetchedRecords | TypedRecords | None:
        """The next records of one partition as columns: ``read_columns().columns.to_arrow()`` is an Arrow
        record batch. None after ``timeout`` seconds (None: never, or once `at_end`).

        With a format (its name, or a `ColumnFormat`) values and keys are decoded, and ``batch`` is the record
        batch. A record that can't be decoded raises `MalformedRecordError`, with ``mode="failfast"``, once
        those before it were handed out, and again until `seek` moves its partition. ``"permissive"`` gives it
        with ``_corrupt_record`` and ``_error``, ``"dropmalformed"`` leaves it out. `ConfigError` for a format
        that does not exist, or can't work with its schema or settings.
        """
        if value_format is None is key_format:
            return self._within(timeout, self._reader.read_columns)
        formats = {"key": key_format, "value": value_format}
        return self._within(timeout, lambda deadline: self._reader.read_typed(formats, mode, deadline))

    def _within(self, timeout: float | None, read: Callable[[Deadline | None], T | None]) -> T | None:
        """What ``read`` returns within ``timeout`` seconds; without a limit, until `at_end`."""
        if timeout is not None or self._ends is None:
            return read(_deadline(timeout))
        while (found := read(Deadline.after_ms(LOOK_MS))) is None:
            if self.at_end:
                break
        return found

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that are read."""
        return tuple(sorted(self._reader.partitions))

    @property
    def paused(self) -> tuple[TopicPartition, ...]:
        """The partitions that are paused, also those that cannot be read yet."""
        missing = [tp for tp, one in list(self._missing.items()) if one.paused]
        # A set: one that begins just now, or was interrupted as it began, is among both.
        return tuple(sorted({*missing, *(tp for tp, paused in self._reader.partitions.items() if paused)}))

    def seek(
        self, place: OffsetLike, partition: int | TopicPartition | None = None, *, whence: Whence = "offset"
    ) -> None:
        """Continue reading elsewhere: one partition, or (None) all of them.

        ``place`` takes the same values as ``start``. With ``whence`` it is a number of offsets that counts
        from the ``"start"`` or the ``"end"`` of the log or from the ``"current"`` position, at most to the
        log's ends: ``seek(-10, whence="end")`` is ten offsets before the end. Raises as making a `Consumer`
        does.
        """
        for look_up in self.seeking(place, partition, whence):
            look_up()

    def seeking(
        self, place: OffsetLike, partition: int | TopicPartition | None, whence: Whence
    ) -> Iterator[Callable[[], None]]:
        """The steps of `seek`: look-ups to call, which wait for brokers. All else happens between them, and
        does not wait; the consumer has moved at the end.
        """
        self._reader.check_process()  # before the lock, which the other process may hold
        at = offset_or_at(place) if whence == "offset" else None
        offsets: dict[TopicPartition, int] = {}
        while True:
            if at is None:
                chosen = self._chosen_or_missing(partition)
                yield lambda chosen=chosen: offsets.update(self._resolve_relative(place, chosen, whence))  # type: ignore[misc]
            else:
                places = dict.fromkeys((tp for tp in self._chosen(partition) if tp not in offsets), at)
                yield lambda places=places: offsets.update(self._resolve(places))  # type: ignore[misc]
            with self._lock:
                if not offsets.keys() >= set(self._chosen(partition)):
                    continue  # another one is read meanwhile
                if at is not None and partition is None:
                    self._missing |= {tp: _Missing(at, one.paused) for tp, one in self._missing.items()}
                    if self._missing:
                        self._reader.watch_soon()  # a refused login puts it off
                for topic_partition, offset in offsets.items():
                    if not self._begin(topic_partition, offset):
                        self._reader.seek(topic_partition, offset)
                return

    def position(self, partition: int | TopicPartition | None = None) -> int:
        """The offset after the record that was handed out last. ``partition`` may be left out if only one is
        read.
        """
        return self._reader.position(self._one(partition))

    def lag(self, partition: int | TopicPartition | None = None) -> dict[TopicPartition, int]:
        """How many offsets lie between the position and the log's end (read_committed: its last stable
        offset), for one partition or (None) all, also those that cannot be read yet; asks the leaders.
        """
        begins = self._positions(self._chosen_or_missing(partition))
        ends = self._resolve(dict.fromkeys(begins, OffsetAt.LATEST))
        return {tp: max(0, end - begins[tp]) for tp, end in ends.items()}

    def pause(self, partition: int | TopicPartition | None = None) -> None:
        """Hand out nothing of one partition, or (None) of all, until `resume`; fetched records are kept."""
        for topic_partition in self._pausing(partition, True):
            self._reader.pause(topic_partition)

    def resume(self, partition: int | TopicPartition | None = None) -> None:
        """Continue with partitions that were paused."""
        for topic_partition in self._pausing(partition, False):
            self._reader.resume(topic_partition)

    def _pausing(self, partition: int | TopicPartition | None, paused: bool) -> list[TopicPartition]:
        """Note it for those of the partitions that cannot be read yet; returns the others."""
        self._reader.check_process()  # before the lock, which the other process may hold
        begun = []
        with self._lock:
            for topic_partition in self._chosen_or_missing(partition):
                if (one := self._missing.get(topic_partition)) is not None:
                    one.paused = paused
                if one is None or topic_partition in self._reader.partitions:  # `_begin` was interrupted
                    begun.append(topic_partition)
        return begun

    def metrics(self) -> MetricsSnapshot:
        """The metrics so far; `MetricsSnapshot.since` returns the difference to an earlier snapshot. A shared
        ``router`` counts ``kafka.client.*`` for all its users."""
        return self._reader.metrics()

    def work_units(self, capacity: int = 1_000) -> EventStream[WorkUnit]:
        """Events about the offset ranges that are fetched, from now on. At most ``capacity`` events wait for
        the reader of the stream; the oldest are dropped for newer ones."""
        return self._reader.work_units.subscribe(capacity)

    def close(self) -> None:
        """Stop reading; iteration in another thread ends, and `poll` raises `ConsumerClosedError` there. May
        be called twice.
        """
        self._reader.close()
        self._close_router()

    def _new_router(self, client: ClientConfig) -> Router:
        """A router of its own."""
        return Router(client)

    def _close_router(self) -> None:
        if self._owns_router:
            self._router.end(ConsumerClosedError("the consumer is closed"))

    def _at(self) -> str:
        places = [f"{tp} {self._reader.shown_position(tp)}" for tp in self.partitions[:3]]
        return ", ".join([*places, "..."] if len(self.partitions) > len(places) else places) or "none"

    def _find_partitions(self, partitions: Collection[int] | None) -> list[TopicPartition]:
        if partitions is not None and len(self.topics) > 1:
            raise ValueError("partitions= is for one topic; make a Consumer for each topic otherwise")
        if partitions is not None and not partitions:
            raise ValueError("partitions= names none: it would read nothing, for ever (None: all of them)")

        def attempt() -> list[TopicPartition]:
            metadata = self._router.metadata(self.topics)
            if partitions is None:
                topics = [metadata.topic(name) for name in self.topics]
                return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
            chosen = [TopicPartition(self.topics[0], partition) for partition in sorted(set(partitions))]
            for topic_partition in chosen:
                metadata.partition(topic_partition)
            return chosen

        what = f"finding the partitions of {', '.join(self.topics)}"
        return self._router.retry(attempt, what=what, topics=self.topics)

    def _begin_at(self, places: Mapping[TopicPartition, int | OffsetAt]) -> dict[TopicPartition, int]:
        """The offsets to begin at; those that are not found now are looked up while the others are read."""
        level, limit = self._config.isolation_level, self._router.deadline()
        offsets, failed = resolve_offsets_of_each(self._router, places, level, limit)
        self._missing = {tp: _Missing(places[tp]) for tp in failed}
        for topic_partition, error in failed.items():
            if not is_retriable(error):
                raise error
            self._missing[topic_partition].failed(topic_partition, error)
        return offsets

    def _resolve(self, places: Mapping[TopicPartition, int | OffsetAt]) -> dict[TopicPartition, int]:
        return resolve_offsets(self._router, places, self._config.isolation_level, self._router.deadline())

    def _resolve_relative(
        self, number: OffsetLike, chosen: Collection[TopicPartition], whence: Whence
    ) -> dict[TopicPartition, int]:
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise TypeError(f"with whence={whence!r} a number of offsets is wanted, not {number!r}")
        distance = operator.index(number)
        if whence not in ("start", "end", "current"):
            raise ValueError(f"whence is offset, start, end or current, not {whence!r}")
        first = self._resolve(dict.fromkeys(chosen, OffsetAt.EARLIEST))
        end = self._resolve(dict.fromkeys(chosen, OffsetAt.LATEST))
        base = self._positions(chosen) if whence == "current" else first if whence == "start" else end
        return {tp: min(max(base[tp] + distance, first[tp]), end[tp]) for tp in chosen}

    def _positions(self, chosen: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The positions; where a partition cannot be read yet, the offset to begin at."""
        places = {tp: one.place for tp in chosen if (one := self._missing.get(tp)) is not None}
        begins = self._resolve(places)
        read = self._reader.partitions  # afterwards: it may have begun meanwhile
        return {
            tp: begins[tp] if tp in begins and tp not in read else self._reader.position(tp) for tp in chosen
        }

    def _chosen(self, partition: int | TopicPartition | None) -> tuple[TopicPartition, ...]:
        if partition is None:
            return self.partitions
        if (one := self._one(partition)) not in self._missing:
            self._reader.position(one)  # `ValueError` now, if it is not read, and not after a time-out
        return (one,)

    def _chosen_or_missing(self, partition: int | TopicPartition | None) -> list[TopicPartition]:
        """As `_chosen`; all of them are also those that cannot be read yet."""
        return sorted({*self._chosen(partition), *(list(self._missing) if partition is None else ())})

    def _one(self, partition: int | TopicPartition | None) -> TopicPartition:
        if isinstance(partition, int) and len(self.topics) == 1:
            return TopicPartition(self.topics[0], partition)
        if partition is None and len(self.partitions) == 1:
            return self.partitions[0]
        if isinstance(partition, tuple):
            return TopicPartition(*partition)
        raise ValueError(f"name the partition as a TopicPartition, not {partition!r}: several are read")

    def _add_new(self) -> bool:
        """Read partitions that were added to the topics meanwhile, from their beginning, and those that were
        missing. Returns True if some still are.
        """
        with self._lock:
            reader = self._reader
        reason, refusals = "", {}
        try:
            refusals = self._look()
        except KafkaError as error:
            if isinstance(error, AuthenticationError):
                refusals = dict.fromkeys(list(self._missing), error)
            if (reason := error_tag(error)) != self._look_failed and not reader.closed:
                _LOG.warning("looking for new partitions failed, and is tried again: %s", error)
        self._look_failed = reason
        if refusals and not reader.closed:
            reader.buffer.refuse(refusals)
        ended_by_refusal = bool(refusals and reason)  # another look would log in again
        return bool(self._missing) and not ended_by_refusal

    def _look(self) -> dict[TopicPartition, AuthenticationError]:
        """Returns the errors of leaders that have refused the login."""
        # One attempt: a thread of the reader waits for it, and there will be another one.
        limit = self._router.deadline(self._router.config.request_timeout_ms)
        known = self._router.refresh(self.topics, limit).topics
        if self._all_partitions:
            self._find_new(known)
        missing = self._missing.copy()  # another thread may change it meanwhile
        places = {tp: one.place for tp, one in missing.items() if one.look_at <= time.monotonic()}
        level = self._config.isolation_level
        offsets, failed = try_resolve_offsets(self._router, places, level, limit)
        for topic_partition, offset in offsets.items():
            self._begin(topic_partition, offset, missing[topic_partition])
        refusals = {tp: error for tp, error in failed.items() if isinstance(error, AuthenticationError)}
        for topic_partition in refusals:
            age_s = self._router.config.metadata_max_age_ms / 1000
            missing[topic_partition].look_at = time.monotonic() + age_s
        for topic_partition, error in failed.items():
            missing[topic_partition].failed(topic_partition, error)
        return refusals

    def _find_new(self, known: Mapping[str, Topic]) -> None:
        topics = [known[name] for name in self.topics if name in known and not known[name].error_code]
        found = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
        with self._lock:
            for topic_partition in found:
                if topic_partition not in self._known:
                    self._missing[topic_partition] = _Missing(OffsetAt.EARLIEST)
                    self._known.add(topic_partition)

    def _begin(self, topic_partition: TopicPartition, offset: int, looked: _Missing | None = None) -> bool:
        """Begin to read a partition that was missing; False if it is not (any more), or `seek` has moved it
        since it was ``looked`` up.
        """
        self._reader.check_process()
        with self._lock:
            one = self._missing.get(topic_partition)
            if one is None or looked not in (None, one):
                return False
            # An interrupt may end this between the calls, and the next one completes it.
            added = topic_partition not in self._reader.partitions
            if added:
                self._reader.add(topic_partition, offset, paused=one.paused)
            del self._missing[topic_partition]
            return added


@dataclass(slots=True, eq=False)
class _Missing:
    """A partition that cannot be read yet, until `Consumer.seek` makes another of it."""

    place: int | OffsetAt
    """Where to begin."""
    paused: bool = False
    error: KafkaError | None = None
    """Why the last look did not find where to begin."""
    look_at: float = 0.0
    """When the next look may ask for it, by the monotonic clock: not at once after a refused login."""

    def failed(self, topic_partition: TopicPartition, error: KafkaError) -> None:
        """Log why it cannot be read, if the reason is new."""
        previous, self.error = self.error, error
        if error_tag(previous) != error_tag(error):
            _LOG.warning(
                "%s is not read yet: %s. It is looked up again; the others are read meanwhile",
                topic_partition, error,
            )  # fmt: skip


def _watch(add_new: weakref.WeakMethod[Callable[[], bool]]) -> Callable[[], bool]:
    """Wrap the call for the fetching thread, which must not keep an unused consumer alive."""

    def watch() -> bool:
        call = add_new()
        return call is not None and call()

    return watch


def _starts(start: Start, found: Collection[TopicPartition]) -> dict[TopicPartition, int | OffsetAt]:
    if not isinstance(start, Mapping):
        return dict.fromkeys(found, offset_or_at(start))
    given: dict[Any, OffsetLike] = dict(start)
    by_index = {} if len({tp.topic for tp in found}) > 1 else {tp.partition: tp for tp in found}
    by_name = {by_index.get(name, name): place for name, place in given.items()}
    if unknown := by_name.keys() - set(found):
        raise ValueError(f"start names partitions that are not read: {', '.join(map(str, unknown))}")
    return {tp: offset_or_at(by_name.get(tp, OffsetAt.EARLIEST)) for tp in found}


def _deadline(timeout: float | None) -> Deadline | None:
    return None if timeout is None else Deadline.after_ms(timeout * 1000)
