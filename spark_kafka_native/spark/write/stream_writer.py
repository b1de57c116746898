"""`KafkaStreamWriter`: ``df.writeStream.format("pykafka")``, at least once, or exactly once.

Spark makes a new one for each micro-batch, and another one, in another process, to commit it: nothing lives
longer but the connections of the workers. Everything that a task reports goes into its commit message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...kafka.errors import ConfigError, KafkaError
from ..options.option_values import OptionValues
from ..same_version import SameVersion
from ..user_messages import (
    HideTracebacks,
    advise,
    as_pickle_error,
    captured_outputs,
    inform,
    note_once,
    prefix_log_lines,
)
from .write_options import LOGIN_MS, WriteOptions
from .write_task import KafkaCommitMessage, RowColumns

if TYPE_CHECKING:
    from ..delegation_tokens import TokenLogin

_LOG: Final = logging.getLogger("spark_kafka_native")
_ADAPTIVE: Final = (
    "deliveryGuarantee=exactly-once: if this query shuffles, give the number of partitions (repartition(n)), "
    "or set spark.sql.adaptive.streaming.stateless.enabled=false. Otherwise Spark chooses it by the number "
    "of cores, and a micro-batch that was half committed can be completed with as many cores only"
)


class KafkaStreamWriter(SameVersion, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """One micro-batch of a streaming write. Plain data: it goes to the workers."""

    def __init__(self, values: OptionValues, schema: StructType) -> None:
        """Check everything but the cluster. Raises `ConfigError`, in the words of Spark's own connector where
        it has some."""
        self._options = WriteOptions.parse(values)
        once = self._options.exactly_once
        if once is not None and once.write_id is not None:
            raise ConfigError(
                "Option 'writeId' is for batch writes (df.write): a stream knows its micro-batches by its "
                "checkpoint. Leave it out here; in foreachBatch it belongs to the write of each batch"
            )
        self._columns, warnings = RowColumns.check(
            schema,
            self._options.topic,
            self._options.timestamp_column,
            self._options.topic_hint,
            self._options.formats,
        )
        self._sent: dict[str, Any] | None = None
        """What tasks get in the place of attributes; looked up once, as PySpark pickles a writer twice."""
        self._warnings = (*self._options.warnings, *warnings)

    @HideTracebacks()
    def sent_state(self) -> dict[str, Any]:
        """As `SameVersion.sent_state`, with the schemas that the tasks write under, and their login in the
        place of the driver's. Only a writer that goes to tasks looks them up: a commit or an abort must not
        fail for a schema registry, a KDC or a token provider."""
        if self._sent is None:
            try:
                with captured_outputs():
                    self._sent = {"_columns": self._columns.resolve(), "_options": self._for_tasks()}
            except KafkaError as error:
                raise as_pickle_error(error) from error
        return super().sent_state() | self._sent | {"_sent": {}}

    def _for_tasks(self) -> WriteOptions:
        tokens = self._options.tokens
        if tokens is None:
            return self._options
        from ..shared_login import shared_login

        return self._options.with_login(shared_login(self._options.client, tokens, ask=False).login)

    @HideTracebacks()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task, on a worker: all of them are in the log when this returns."""
        from .topics import prepare_fixed_topics
        from .worker.write_rows import write_rows

        once = self._options.exactly_once
        if once is not None:
            from .worker.transactional_task import BatchTask, write_once

            task = BatchTask.current()
            prepare_fixed_topics(self._options)
            return self._reported(write_once(iterator, self._columns, self._options, once, task))
        # Not on the driver: its process is a new one for each micro-batch and has no connection.
        prepare_fixed_topics(self._options)
        return self._reported(write_rows(iterator, self._columns, self._options))

    @HideTracebacks()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All tasks of a micro-batch have written everything; say so."""
        prefix_log_lines()
        if self._is_first_commit(messages, batchId):
            for warning in self._warnings:
                _LOG.warning("%s", warning)
            advise()
        once = self._options.exactly_once
        if once is not None:
            from .driver.stream_commit import commit_transactions

            is_first = _is_first_of_run("ended", messages) is not False
            if is_first and any(isinstance(one, KafkaCommitMessage) and one.is_adaptive for one in messages):
                inform(_ADAPTIVE)
            options = self._for_driver(self._login_of(messages))
            commit_transactions(messages, batchId, options, once, is_first=is_first)
        from .driver.write_summary import WriteSummary

        summary = WriteSummary.of(messages)
        summary.announce(f"batch {batchId}: ")
        if self._options.summary_path is not None:
            summary.save(self._options.summary_path, batchId=batchId)

    @HideTracebacks()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Without transactions nothing can be taken back: what the tasks wrote stays, and Spark writes the
        batch again."""
        prefix_log_lines()
        login = self._login_of(messages)
        self._forget_login()
        if self._options.exactly_once is not None:
            from .driver.stream_commit import abort_transactions

            abort_transactions(messages, self._for_driver(login), batchId)
            return
        written = sum(message is not None for message in messages)
        _LOG.warning(
            "batch %d failed; the rows of %d tasks that ended well stay in the topics, and are written again "
            "when the query is restarted",
            batchId, written,
        )  # fmt: skip

    def _reported(self, message: KafkaCommitMessage) -> KafkaCommitMessage:
        """What a task hands the driver, with the run of the query, which Spark gives as the group of its
        jobs."""
        context = TaskContext.get()
        run_id = None if context is None else context.getLocalProperty("spark.jobGroup.id")
        token_id = None if self._options.tokens is None else self._options.client.security.username
        return replace(message, run_id=run_id or "", token_id=token_id or "")

    def _login_of(self, messages: Sequence[WriterCommitMessage | None]) -> TokenLogin | None:
        """That of the tasks which have sent ``messages``, if the session has it still."""
        if self._options.tokens is None:
            return None
        ids = {message.token_id for message in messages if isinstance(message, KafkaCommitMessage)}
        if len(ids) != 1:
            return None
        from ..shared_login import known_login

        return known_login(self._options.client, self._options.tokens, ids.pop())

    def _forget_login(self) -> None:
        if self._options.tokens is not None:
            from ..shared_login import forget_login

            forget_login(self._options.client, self._options.tokens, LOGIN_MS)

    def _for_driver(self, login: TokenLogin | None) -> WriteOptions:
        """The options with the driver's own login, as a micro-batch may outlive the token of its tasks; with
        their ``login`` where the driver can't log in."""
        if login is None:
            return self._options
        return self._options.with_login(login).with_driver(self._options.client)

    def _is_first_commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> bool:
        """True if the query has committed nothing since its last start."""
        noted = _is_first_of_run("told", messages) if self._warnings else None
        return batch_id == 0 if noted is None else noted


def _is_first_of_run(what: str, messages: list[WriterCommitMessage | None]) -> bool | None:
    """True if nothing was committed since the last start of the query; None if unknown."""
    runs = {message.run_id for message in messages if isinstance(message, KafkaCommitMessage)} - {""}
    return note_once(f"{what}-run-{min(runs)}") if runs else None
