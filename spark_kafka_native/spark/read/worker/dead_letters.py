"""`DeadLetters`: the original bytes of bad records into a topic, each once for a streaming query
(``mode=dlq``).

The letters of a topic-partition go in a transaction together with a marker, a committed offset: all bad
records of this range before it have their letters. Spark may read the range again, in another attempt or
after a restart. That attempt first takes the transactional id, which ends the transactions of earlier ones
for good, then reads the marker, and leaves out what lies before it. A marker counts for one range, one topic
id and one way of decoding only: if any of them is another one, records may be bad that were not before, and a
letter too many is better than none. Nor does it count for records of a schema that is not known yet: they may
have been good when it was written. See docs/decisions/0019-dead-letters-have-markers.md.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any, Final

import numpy as np

from ....kafka.cluster.router import Router
from ....kafka.config.client_config import ClientConfig, ProducerConfig, TransactionConfig
from ....kafka.errors import ConfigError, KafkaError
from ....kafka.model import OffsetToCommit, TopicPartition
from ....kafka.producer.errors import TransactionAbortableError, TransactionFatalError
from ....kafka.producer.transactional_producer import TransactionalProducer
from ....kafka.records.columns import RecordColumns, build_index
from ....version import __version__
from ...write.marker_store import close_producer, decided_offsets, find_offsets
from ..offset_range import OffsetRange
from ..schema import RowSchema
from .bad_record_handler import UndecodedRecord

_LOG: Final = logging.getLogger("spark_kafka_native")

PREFIX: Final = "__reader.errors."
"""What the headers begin with that say where a letter comes from."""

MAX_REASON_CHARACTERS: Final = 1_000

MAX_TAKEOVERS: Final = 10
"""How often another attempt of the task may take the transactional id before this one gives up."""

FIRST_PAUSE_S: Final = 0.1
MOST_PAUSE_S: Final = 5.0
"""The limits of a random wait before the id is taken back: doubled each time, so that of two tasks that read
the same records at the same time (a DataFrame that is used twice) one finishes."""


class DeadLetterError(KafkaError):
    """Bad records could not be written to the dead-letter topic, and so their micro-batch fails. Nothing is
    lost: it is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """Of one task. Raises `DeadLetterError` only: other errors would be taken for those of the topics that
    are read."""

    router: Router
    client: ClientConfig
    topic: str
    name: str
    """What transactional ids and groups begin with: the query and its way of decoding."""
    query_id: str
    ranges: dict[TopicPartition, OffsetRange]
    """What the task reads."""

    @classmethod
    def of(
        cls, router: Router, client: ClientConfig, schema: RowSchema, ranges: Sequence[OffsetRange]
    ) -> DeadLetters:
        """For the task that this worker runs."""
        assert schema.letters is not None
        query_id = _query_id()
        return cls(
            router=router,
            client=client,
            topic=schema.letters.topic,
            name=f"{schema.letters.prefix}-{query_id}-dlq-{_digest(schema)}",
            query_id=query_id,
            ranges={one.topic_partition: one for one in ranges},
        )

    def send(
        self, topic_partition: TopicPartition, bad: list[UndecodedRecord], records: RecordColumns
    ) -> None:
        """As `Letters.send`."""
        for attempt in range(1, MAX_TAKEOVERS + 1):
            try:
                self._send(topic_partition, bad, records)
                return
            except TransactionFatalError as error:
                # Another attempt of this task has begun, or the outcome of a commit is not known: the marker
                # says which letters are there.
                if attempt == MAX_TAKEOVERS:
                    raise self._failure(topic_partition, bad, error) from error
                _LOG.info("dead letters of %s: %s; looking for what is written", topic_partition, error)
                sleep(random.uniform(0, min(FIRST_PAUSE_S * 2**attempt, MOST_PAUSE_S)))
            except KafkaError as error:
                raise self._failure(topic_partition, bad, error) from error

    def _failure(self, tp: TopicPartition, bad: list[UndecodedRecord], error: KafkaError) -> DeadLetterError:
        return DeadLetterError(
            f"dlq.topic={self.topic}: {len(bad):,} bad records of {tp} (offsets {bad[0].offset} to "
            f"{bad[-1].offset}) could not be written there. The micro-batch fails and will be read again; "
            f"nothing is lost. {error}"
        )

    def _send(self, tp: TopicPartition, bad: list[UndecodedRecord], records: RecordColumns) -> None:
        name = f"{self.name}-{tp}"
        producer = TransactionalProducer(
            self.client, TransactionConfig(transactional_id=name), ProducerConfig(), router=self.router
        )
        try:
            producer.begin()
            before = find_offsets(self.router, name, [tp], None).get(tp)
            position = self._position(tp, before)
            due = [one for one in bad if one.is_passing or one.offset >= position]
            if not due:
                return
            for one, record in zip(due, _select(records, due).records(), strict=True):
                headers = [*record.headers, *self._origin(tp, one, record.timestamp_ms)]
                producer.send(self.topic, record.value, key=record.key, headers=headers)
            # Never back: pieces that come later may have letters already.
            end = max(position, due[-1].offset + 1)
            marker = OffsetToCommit(offset=end, metadata=self._range_text(tp))
            producer.send_offsets({tp: marker}, name)
            # The coordinator that has taken this one in knows those committed before; a broker that was
            # deposed may have answered the first question.
            if decided_offsets(self.router, name).get(tp) != before:
                raise TransactionAbortableError(f"{name}: letters were committed while others were written")
            producer.commit()
        finally:
            close_producer(producer)

    def _position(self, tp: TopicPartition, marker: OffsetToCommit | None) -> int:
        """Bad records before it have their letters."""
        known = marker is not None and marker.metadata == self._range_text(tp)
        return marker.offset if known and marker is not None else 0

    def _range_text(self, tp: TopicPartition) -> str:
        """Of the range that a marker counts for."""
        one = self.ranges[tp]
        return json.dumps({"range": f"[{one.start}, {one.end})", "topic_id": one.topic_id})

    def _origin(self, tp: TopicPartition, one: UndecodedRecord, timestamp_ms: int) -> list[tuple[str, bytes]]:
        texts = {
            "topic": tp.topic,
            "partition": str(tp.partition),
            "offset": str(one.offset),
            "timestamp": str(timestamp_ms),
            "stage": ",".join(one.stages),
            "message": one.reason[:MAX_REASON_CHARACTERS],
            "query.id": self.query_id,
        }
        return [(f"{PREFIX}{name}", text.encode(errors="replace")) for name, text in texts.items()]


def _select(records: RecordColumns, bad: Sequence[UndecodedRecord]) -> RecordColumns:
    """Those rows of ``records``."""
    rows = np.array([one.row for one in bad], np.int64)
    index, timestamps = build_index(rows), records.timestamp_ms
    columns: dict[str, Any] = {name: getattr(records, name) for name in ("key", "value", "headers")}
    taken = {name: None if column is None else column.take(index) for name, column in columns.items()}
    return RecordColumns(
        length=len(rows), timestamp_ms=None if timestamps is None else timestamps[rows], **taken
    )


def _query_id() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise ConfigError(
            "mode=dlq: Spark does not say which streaming query this task belongs to. In foreachBatch on "
            "Spark Connect it never does: write by writeStream, or use mode=permissive. Where foreachBatch "
            "has threads of its own, give pyspark.inheritable_thread_target(function) to a thread"
        )
    return str(query_id)


def _digest(schema: RowSchema) -> str:
    """Of how records are decoded: with another schema, setting, registry or version other records are bad.
    And of the topic for letters: two sources of a query may have two. Other settings of registries are left
    out: they may be secret."""
    rules: list[Any] = [
        (
            one.format.payload, one.format.name, str(one.kind),
            [(name, text) for name, text in one.format.settings if _is_rule(name)],
        )
        for one in schema.decoded
    ]  # fmt: skip
    rules += [None if schema.letters is None else schema.letters.topic, __version__]
    return hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:12]


def _is_rule(setting: str) -> bool:
    return setting == "registry.url" or not setting.startswith("registry.")
