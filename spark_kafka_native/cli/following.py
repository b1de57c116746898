"""`Following`: records on and on, also of partitions that topics get meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ..kafka.cluster.router import Router
from ..kafka.consumer.fetch_run import FetchRun
from ..kafka.consumer.fetched_records import FetchedRecords
from ..kafka.consumer.offsets import list_offsets
from ..kafka.errors import DeadlineExceededError, KafkaError
from ..kafka.model import IsolationLevel, OffsetAt, TopicPartition
from ..kafka.network.deadline import Deadline
from ..kafka.network.retry import is_retriable

_LOOK_MS = 10_000
"""A person waits for what was just written; one request in this time is little to a broker."""


class Following:
    """What ``run``, which reads ``known``, fetches; new partitions are read from their beginning."""

    def __init__(
        self, router: Router, run: FetchRun, known: Collection[TopicPartition], level: IsolationLevel
    ) -> None:
        self._router = router
        self._run = run
        self._known = set(known)
        self._topics = {tp.topic for tp in known}
        self._level = level

    def fetched(self) -> Iterator[FetchedRecords]:
        """The records as they come, without an end."""
        every_ms = min(_LOOK_MS, self._router.config.metadata_max_age_ms)
        due = Deadline.after_ms(every_ms)
        while True:
            found = self._run.next(due)
            if found is not None:
                yield found
            if due.expired:
                self._look()
                due = Deadline.after_ms(every_ms)

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
