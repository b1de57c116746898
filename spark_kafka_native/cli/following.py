"""`Following`: records on and on, also of partitions that topics get meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ..kafka.cluster.router import Router
from ..kafka.consumer.fetched_records import FetchedRecords
from ..kafka.consumer.fetcher import FetchRun
from ..kafka.consumer.offsets import list_offsets
from ..kafka.errors import DeadlineExceededError, KafkaError
from ..kafka.model import IsolationLevel, OffsetAt, TopicPartition
from ..kafka.runtime.deadline import Deadline
from ..kafka.runtime.retry import is_retriable
from .places import LogPlaces, Place

_LOOK_MS = 10_000
"""A person waits for what was just written; one request in this time is little to a broker."""


_LATE_MS = 1_000
"""The records of the other partitions wait so long for one that does not answer."""


class Following:
    """What ``run``, which reads ``known``, fetches. Those that are ``late`` are read from their place once
    they answer; partitions that topics get, if ``growing``, from their beginning.
    """

    def __init__(
        self,
        router: Router,
        run: FetchRun,
        known: Collection[TopicPartition],
        level: IsolationLevel,
        *,
        late: Mapping[TopicPartition, Place],
        growing: bool,
    ) -> None:
        self._router = router
        self._run = run
        self._known = set(known)
        self._topics = {tp.topic for tp in known}
        self._level = level
        self._late = dict(late)
        self._growing = growing

    def fetched(self) -> Iterator[FetchedRecords]:
        """The records as they come, without an end."""
        every_ms = min(_LOOK_MS, self._router.config.metadata_max_age_ms)
        due = Deadline.after_ms(every_ms)
        while True:
            found = self._run.next(due)
            if found is not None:
                yield found
            if due.expired:
                self._look_for_late()
                if self._growing:
                    self._look()
                due = Deadline.after_ms(every_ms)

    def _look_for_late(self) -> None:
        """One attempt, as `_look`."""
        for place in set(self._late.values()):
            late = [tp for tp in self._late if self._late[tp] == place]
            limit = self._router.deadline(_LATE_MS)
            places = LogPlaces(self._router, late, isolation_level=self._level, deadline=limit)
            try:
                self._router.refresh(self._topics, limit)
                offsets = places.resolve(place)
            except KafkaError as error:
                if not (is_retriable(error) or isinstance(error, DeadlineExceededError)):
                    raise
                continue
            for topic_partition, offset in offsets.items():
                self._run.add(topic_partition, offset)
                del self._late[topic_partition]

    def _look(self) -> None:
        """One attempt. What fails for now is for the fetches to tell, and there is another attempt."""
        limit = self._router.deadline(self._router.config.request_timeout_ms)
        try:
            topics = self._router.refresh(self._topics, limit).topics
            there = [
                TopicPartition(name, partition)
                for name in sorted(self._topics & topics.keys())
                if not topics[name].error_code
                for partition in topics[name].partitions
            ]
            new = dict.fromkeys((tp for tp in there if tp not in self._known), OffsetAt.EARLIEST)
            first = list_offsets(self._router, new, isolation_level=self._level, deadline=limit)
        except KafkaError as error:
            if not (is_retriable(error) or isinstance(error, DeadlineExceededError)):
                raise
            return
        for topic_partition, found in first.items():
            self._run.add(topic_partition, found.offset or 0)
            self._known.add(topic_partition)
