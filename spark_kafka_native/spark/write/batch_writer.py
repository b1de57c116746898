"""`KafkaBatchWriter`: ``df.write.format("pykafka")``. Checks on the driver, writes on the workers, sums up
on the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...kafka.errors import ConfigError
from ..options.option_values import OptionValues
from ..same_version import SameVersion
from ..user_messages import HideTracebacks, advise, prefix_log_lines
from .write_options import ExactlyOnce, WriteOptions
from .write_task import AtomicWrite, KafkaCommitMessage, ResumableWrite, RowColumns

if TYPE_CHECKING:
    from ...kafka.cluster.router import Router
    from .driver_credentials import LentToken

_LOG: Final = logging.getLogger("spark_kafka_native")


class KafkaBatchWriter(SameVersion, DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write. Plain data: it goes to the workers; clients are opened in `write` only."""

    def __init__(self, values: OptionValues, schema: StructType, *, overwrite: bool) -> None:
        """Check everything. Raises `ConfigError` with the words of Spark's own connector where it has
        some."""
        if overwrite:
            raise ConfigError(
                "Save mode Overwrite not allowed for Kafka. Allowed save mode is Append: a topic is a log, "
                'and nothing in it can be written over; use .mode("append")'
            )
        self._options = WriteOptions.parse(values)
        columns, warnings = RowColumns.check(
            schema,
            self._options.topic,
            self._options.timestamp_column,
            self._options.topic_hint,
            self._options.formats,
        )
        self._columns = columns.resolve()
        for warning in (*self._options.warnings, *warnings):
            _LOG.warning("%s", warning)
        advise()
        once = self._options.exactly_once
        if once is not None and once.marker_topic is not None and once.write_id is None:
            raise ConfigError(
                "Option 'transactionMarkerTopic' is for streams, and for batch writes with a writeId: others "
                "have no markers"
            )
        tokens = self._options.tokens
        if tokens is None:
            self._lent: LentToken | None = None
            self._job = self._prepare()
            return
        from .driver_credentials import LentToken

        self._lent = LentToken.create(self._options.client, tokens)
        try:
            self._job = self._prepare()
        except BaseException:
            self._lent.expire()
            raise
        self._options = self._options.with_login(self._lent.login)

    @HideTracebacks()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task, on a worker."""
        if self._job is not None:
            from .worker.transactional_task import current_partition, write_atomic, write_resumable

            partition = current_partition()
            if isinstance(self._job, AtomicWrite):
                return write_atomic(self._job, iterator, self._columns, self._options, partition)
            return write_resumable(self._job, iterator, self._columns, self._options, partition)
        from .topics import look_at_fixed_topics
        from .worker.write_rows import write_rows

        look_at_fixed_topics(self._options)
        return write_rows(iterator, self._columns, self._options)

    @HideTracebacks()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have written everything; say so, in one line and, with ``summaryPath``, in a file."""
        prefix_log_lines()
        if isinstance(self._job, AtomicWrite):
            from .driver.atomic_write import commit_atomic

            commit_atomic(self._job, messages, self._for_driver())
        elif self._job is not None:
            from .driver.resumable_write import commit_resumable

            commit_resumable(self._job, messages, self._for_driver())
        from .driver.write_summary import WriteSummary

        summary = WriteSummary.of(messages)
        summary.announce()
        if self._options.summary_path is not None:
            summary.save(self._options.summary_path, **self._named(messages))
        self._expire_token()  # after a failure of the commit Spark calls `abort`, which needs it

    @HideTracebacks()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Without a transaction nothing can be taken back: what failed tasks wrote stays in the topics."""
        prefix_log_lines()
        try:
            self._abort(messages)
        finally:
            self._expire_token()

    def _for_driver(self) -> WriteOptions:
        """The options with the driver's own login, as the token may have ended before the tasks have."""
        return (
            self._options
            if self._lent is None
            else self._options.with_driver(self._lent.credentials.client())
        )

    def _expire_token(self) -> None:
        if self._lent is not None:
            self._lent.expire()

    def _abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if isinstance(self._job, AtomicWrite):
            from .driver.atomic_write import abort_atomic

            abort_atomic(self._job, messages, self._for_driver())
            return
        if self._job is not None:
            from .driver.resumable_write import abort_resumable

            abort_resumable(self._job, messages, self._for_driver())
            return
        written = sum(message is not None for message in messages)
        _LOG.warning("The write failed; the rows of %d completed tasks remain in their topics", written)

    def _named(self, messages: list[WriterCommitMessage | None]) -> dict[str, Any]:
        """What else the summary of a write with a ``writeId`` says."""
        once = self._options.exactly_once
        if once is None or once.write_id is None:
            return {}
        before = sum(message.skipped for message in messages if isinstance(message, KafkaCommitMessage))
        return {"writeId": once.write_id, "committedBefore": before}

    def _prepare(self) -> AtomicWrite | ResumableWrite | None:
        """Prepare topics and transactional ids before the first task runs."""
        topics, once = self._options.fixed_topics, self._options.exactly_once
        if not topics and once is None:
            return None
        from ...kafka.cluster.router import Router
        from .topics import prepare_topic

        router = Router(self._options.client)
        try:
            for topic in topics:
                prepare_topic(router, topic, self._options)
            return None if once is None else self._begin(router, once)
        finally:
            router.close()  # Spark plans in a process that does nothing else afterwards

    def _begin(self, router: Router, once: ExactlyOnce) -> AtomicWrite | ResumableWrite:
        if once.write_id is None:
            from .driver.atomic_write import begin_atomic

            return begin_atomic(router, self._options, once)
        from .driver.resumable_write import begin_resumable

        return begin_resumable(router, self._options, once, once.write_id)
