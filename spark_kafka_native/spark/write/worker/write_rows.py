"""`write_rows`: a write task on a worker. Arrow batches of the task's rows in, a commit message out.

The producer is the task's own, so that a failure of one task does not affect others; the connections are the
process's, so that the next task starts warm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

import pyarrow as pa

from ....kafka.cluster.metadata import Topic, topics_named
from ....kafka.cluster.router import Router, router_for
from ....kafka.errors import ConfigError, KafkaError
from ....kafka.producer.accumulating.records_in import check_topic
from ....kafka.producer.delivery import ColumnsDelivery
from ....kafka.producer.errors import RecordError
from ....kafka.producer.producer import Producer
from ...worker_tuning import settle_worker
from ..topics import look_at_topics, prepare_topic
from ..write_options import WriteOptions
from ..write_task import KafkaCommitMessage, RowColumns


class WriteFailedError(KafkaError):
    """A task's rows could not be written. Says which, and what the broker said; ``__cause__`` is the
    client's error."""


def write_rows(
    batches: Iterator[pa.RecordBatch], columns: RowColumns, options: WriteOptions
) -> KafkaCommitMessage:
    """Write all rows of a task; everything is in the log when this returns.

    Raises `WriteFailedError` naming the first row that failed, counted from 0 within the task.
    """
    settle_worker()
    router = router_for(options.client)
    producer = Producer(options.client, options.producer, router=router)
    try:
        task = WriteTask(producer, router, columns, options)
        for batch in batches:
            task.write(batch)
        task.finish()
        return KafkaCommitMessage.of(producer.stats())
    finally:
        # After a failure nothing more is delivered: Spark runs the task again, from its first row.
        producer.close(timeout=0)


class WriteTask:
    """Counts the rows of one task, and keeps the deliveries that are under way."""

    def __init__(
        self, producer: Producer, router: Router, columns: RowColumns, options: WriteOptions
    ) -> None:
        self.producer = producer
        self.router = router
        self.columns = columns
        self._options = options
        self._rows = 0
        self._under_way: deque[tuple[int, ColumnsDelivery]] = deque()
        self.topic_ids: dict[str, str] = {}
        """`KafkaCommitMessage.topic_ids`."""
        self._ready_topics: set[str] = set() if options.topic is None else {options.topic}

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take one Arrow batch in; fails for what failed before, too. Returns its rows as records have them,
        encoded: a second time costs as much, and need not give the same bytes."""
        if not batch.num_rows:
            return batch
        try:
            rows = self.columns.select(batch)
            if self._options.topic is None:
                self._prepare_topics(rows)
            delivery = self.producer.send_columns(rows, self._options.topic)
        except RecordError as error:
            raise self._failure(error, error.row) from error
        except KafkaError as error:
            self._check_under_way()
            raise self._failure(error, None) from error
        self._under_way.append((self._rows, delivery))
        self._rows += batch.num_rows
        self._check_under_way()
        return rows

    def finish(self) -> None:
        """Wait for everything that is under way; fails where the producer leaves some of it open."""
        self.producer.flush()
        self._check_under_way()
        if self._under_way:
            # Rows that get committed have to be in the log: without a confirmation, fail.
            raise WriteFailedError(
                f"{_task_name()}: rows {self._under_way[0][0]} to {self._rows - 1} have not all been "
                "confirmed, although the producer has nothing in flight any more: some may not be in the log"
            )

    def _prepare_topics(self, rows: pa.RecordBatch) -> None:
        topics = set(rows.column("topic").unique().to_pylist()) - self._ready_topics
        once = self._options.exactly_once
        if once is not None and once.marker_topic in topics:
            raise ConfigError(
                f"a row says topic {once.marker_topic}, which is the transactionMarkerTopic: it must not be "
                "a topic that rows go to, as their keys would be taken for those of commit markers"
            )
        for topic in sorted(topics):
            try:
                check_topic(topic)
            except RecordError as error:  # a broker would be asked for it again and again
                raise error.at(rows.column("topic").to_pylist().index(topic)) from None
        if topics:
            look_at_topics(self.router, topics, self._options)
        for topic in sorted(topics):
            prepare_topic(self.router, topic, self._options)
            self._ready_topics.add(topic)
        if topics and once is not None:
            self.note_topics(topics)

    def note_topics(self, topics: Collection[str]) -> None:
        """Look up the ids of topics that are about to be written to: the metadata of a worker may be of
        former ones. A topic that a broker has not heard of is asked for again: the commit compares ids, and
        without one it would not notice that the topic was created anew."""
        deadline = self.router.deadline(self._options.producer.max_block_ms)
        create = self._options.producer.allow_auto_create_topics  # as the producer asks

        def look() -> list[Topic]:
            known = self.router.refresh(topics, deadline, create=create)
            return [known.topic(name) for name in sorted(topics)]

        what = f"asking for the ids of {topics_named(topics)}"
        found = self.router.retry(look, what=what, deadline=deadline)
        # Brokers before Kafka 2.8 have no ids.
        self.topic_ids |= {one.name: one.topic_id.hex for one in found if one.topic_id is not None}

    def _check_under_way(self) -> None:
        while self._under_way and self._under_way[0][1].done():
            first_row, delivery = self._under_way.popleft()
            failed = delivery.first_failure()
            if failed is not None:
                row, error = failed
                # The broker may have named a row of a later Arrow batch, which was refused along with these.
                for start, one in ((first_row, delivery), *self._under_way):
                    if (named := one.refused_row(error)) is not None:
                        first_row, row = start, named
                        break
                self._rows = first_row
                raise self._failure(error, row) from error

    def _failure(self, error: KafkaError, row: int | None) -> WriteFailedError:
        if row is None:
            return WriteFailedError(f"{_task_name()}: {error}")
        reason = error.reason if isinstance(error, RecordError) else str(error)
        topic = (error.topic if isinstance(error, RecordError) else None) or self._options.topic
        where = f"row {self._rows + row}" + (f" for topic {topic}" if topic else "")
        return WriteFailedError(f"{_task_name()}, {where}: {reason}")


def _task_name() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return "write" if context is None else f"partition {context.partitionId()} of the DataFrame"
