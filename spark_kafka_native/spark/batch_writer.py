"""`KafkaBatchWriter`: ``df.write.format("pykafka")``. Checks on the driver, writes on the workers, sums up
on the driver."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..kafka.errors import ConfigError
from .commit import WriteSummary
from .option_values import OptionValues
from .rows import RowColumns
from .write_options import WriteOptions

_LOG: Final = logging.getLogger("spark_kafka_native")


class KafkaBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write. Plain data: it goes to the workers; clients are opened in `write` only."""

    def __init__(self, values: OptionValues, schema: StructType, *, overwrite: bool) -> None:
        """Check everything. Raises `ConfigError` with the words of Spark's own connector where it has
        some."""
        if overwrite:
            raise ConfigError(
                "Save mode Overwrite not allowed for Kafka. Allowed save mode is Append: a topic is a log, "
                'and nothing in it can be written over; use .mode("append")'
            )
        self._options = WriteOptions.read(values)
        self._columns, warnings = RowColumns.check(schema, self._options.topic)
        for warning in (*self._options.warnings, *warnings):
            _LOG.warning("%s", warning)
        if self._options.topic is not None:
            self._check_topic(self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task, on a worker."""
        from .write_task import write_rows

        return write_rows(iterator, self._columns, self._options)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have written everything; say so, in one line and, with ``summaryPath``, in a file."""
        summary = WriteSummary.of(messages)
        if _LOG.hasHandlers():
            _LOG.info("%s", summary)
        else:
            # Spark calls this in a process of its own, where nobody can have configured logging.
            print(f"pykafka: {summary}", file=sys.stderr)
        if self._options.summary_path is not None:
            summary.save(self._options.summary_path)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back: what failed tasks wrote stays in the topics."""
        written = sum(message is not None for message in messages)
        _LOG.warning("the write failed; the rows of %d tasks that ended well stay in the topics", written)

    def _check_topic(self, topic: str) -> None:
        from ..kafka.cluster.router import Router
        from .write_task import prepare_topic

        router = Router(self._options.client)
        try:
            prepare_topic(router, topic, self._options)
        finally:
            router.close()  # Spark plans in a process that does nothing else afterwards

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)
