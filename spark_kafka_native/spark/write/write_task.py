"""What the driver and the tasks of a write hand each other, as plain data that Spark pickles: `RowColumns`,
`AtomicWrite` and `ResumableWrite` go to the workers, `KafkaCommitMessage` comes back.

`RowColumns.check` has the checks of a DataFrame's columns, in the order and words of Spark's own connector.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ...formats import EncodeError, FormatError, with_header_ids
from ...formats.bad_records import encode_column
from ...formats.plain_types import as_plain
from ...kafka.errors import ConfigError
from ...kafka.model import TopicPartition
from ...kafka.producer.errors import RecordError
from ...kafka.producer.sending.transaction_requests import OpenTransaction
from ...kafka.producer.stats import ProducerStats
from ..error_conditions import KafkaConditionError
from ..payload_formats import KAFKA_COLUMNS, PayloadFormat, to_arrow_schema

PartitionRow = tuple[str, int, int, int, int, int]
"""topic, partition, records, bytes, first offset, last offset; -1 for an offset that is not known."""


@dataclass(frozen=True)
class KafkaCommitMessage(WriterCommitMessage):  # type: ignore[misc]
    """What one task has written. Plain numbers and strings: it is pickled on the way to the driver."""

    records: int
    bytes: int
    batches: int
    retries: int
    partitions: tuple[PartitionRow, ...]
    transaction: OpenTransaction | None = None
    """What the driver is to commit; None where the rows are in the log already."""
    job: str = ""
    """Of an exactly-once write: what its transactional ids begin with."""
    skipped: int = 0
    """Rows of a replay that were committed before."""
    rows_hash: int = 0
    """Of an exactly-once write: `RowDigest.hash` of the task's rows, whether written or skipped."""
    over_limit_skipped: int = 0
    """Rows that ``kafka.over.limit`` left out."""
    over_limit_dead_lettered: int = 0
    """Rows that it sent to the dead-letter topic; ``records`` counts these."""
    run_id: str = ""
    """Of a stream: the query's from one start to the next."""
    token_id: str = ""
    """Of a stream: the delegation token that the task has logged in with."""

    task: int = -1
    """Of an exactly-once write: which partition of the micro-batch it was."""

    began_s: float | None = None
    """When its transaction began, by the worker's clock (seconds since the epoch)."""

    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Of an exactly-once write: those of its topics when it began to write to them, in hexadecimal."""

    is_adaptive: bool = False
    """Of an exactly-once write: whether Spark may choose the number of tasks anew when it runs again."""

    @classmethod
    def skipped_rows(cls, job: str, rows: int, rows_hash: int = 0) -> KafkaCommitMessage:
        """The message of a replayed task that has committed its rows before."""
        return cls(0, 0, 0, 0, (), None, job, rows, rows_hash)

    @classmethod
    def of(
        cls,
        stats: ProducerStats,
        transaction: OpenTransaction | None = None,
        job: str = "",
        rows_hash: int = 0,
    ) -> KafkaCommitMessage:
        """From the statistics of the task's producer."""
        rows = tuple(
            (
                where.topic,
                where.partition,
                told.records,
                told.bytes,
                -1 if told.first_offset is None else told.first_offset,
                -1 if told.last_offset is None else told.last_offset,
            )
            for where, told in stats.partitions.items()
        )
        return cls(
            stats.records,
            stats.bytes,
            stats.batches,
            stats.retries,
            rows,
            transaction,
            job,
            rows_hash=rows_hash,
            over_limit_skipped=stats.skipped_records,
            over_limit_dead_lettered=stats.dead_lettered_records,
        )


def reports_of(messages: Iterable[object]) -> list[KafkaCommitMessage]:
    """The messages of tasks that have ended well. Spark has None for each of the others."""
    return [message for message in messages if isinstance(message, KafkaCommitMessage)]


def transactions_of(messages: Iterable[object]) -> list[OpenTransaction]:
    """The transactions that tasks have left open for the driver to end."""
    return [one.transaction for one in reports_of(messages) if one.transaction is not None]


def written_topics(
    reports: Iterable[KafkaCommitMessage], marker_topic: str | None = None
) -> dict[str, set[str]]:
    """The topics that tasks have written rows to, and ``marker_topic`` if they have a transaction: each with
    its ids (`KafkaCommitMessage.topic_ids`), none where brokers have none."""
    found: dict[str, set[str]] = {}
    for report in reports:
        topics = {row[0] for row in report.partitions}
        if marker_topic is not None and report.transaction is not None:
            topics.add(marker_topic)
        for topic in topics:
            known = report.topic_ids.get(topic)
            found.setdefault(topic, set()).update([] if known is None else [known])
    return found


MARKED_TOPICS: Final = 100
"""The most topics that keep a marker or an intent. With one, its deletion would take the marker along, and
the rows of the other topics would be written again; ten thousand are more than a coordinator takes in."""


def places_in(topics: Iterable[str]) -> list[TopicPartition]:
    """Where a marker or an intent of rows in ``topics`` is kept: a partition of each of the first ones."""
    return [TopicPartition(topic, 0) for topic in sorted(topics)[:MARKED_TOPICS]]


def places_of(reports: Iterable[KafkaCommitMessage], topic: str | None) -> list[TopicPartition]:
    """`places_in` the topics that were written to, else in ``topic``; none if neither is known."""
    return places_in(written_topics(reports) or ({topic} if topic is not None else ()))


def task_numbers(names: Iterable[str], lead: str) -> list[int]:
    """The numbers of the tasks among transactional ids: what follows ``lead`` is a number as we write it.
    Others begin like that, too: ``jobs-write/a/1-write/b`` is a write with another prefix."""
    found = (name.removeprefix(lead) for name in names if name.startswith(lead))
    return sorted(int(number) for number in found if _NUMBER.fullmatch(number))


_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")


def hash_of_tasks(messages: Iterable[KafkaCommitMessage]) -> int:
    """Of which rows are in which task, whether written or skipped: equal for equal rows in equal tasks."""
    each = (struct.pack("<QQ", one.records + one.skipped, one.rows_hash) for one in messages)
    return int.from_bytes(hashlib.blake2b(b"".join(each), digest_size=8).digest(), "little")


@dataclass(frozen=True, kw_only=True)
class AtomicWrite:
    """A batch write in one transaction: the driver begins and commits it, one task writes it."""

    transactional_id: str
    transaction_timeout_ms: int


@dataclass(frozen=True, kw_only=True)
class ResumableWrite:
    """One run of a batch write with a ``writeId``: what an earlier run has committed is not written again."""

    write_id: str
    transactional_id: str
    """Of the driver; those of the tasks are `task_name`."""
    void: int | None
    """The revision of an intent of which nothing is committed, and nothing will be."""


def task_name(transactional_id: str, partition: int) -> str:
    """The transactional id of a task of a `ResumableWrite`, and the group of its marker."""
    return f"{transactional_id}/{partition}"


_PAYLOAD_AND_PLACE: Final = ("key", "value", "headers", "partition")
_NESTED = (ArrayType, MapType, StructType)
_HEADERS_TEXT = "array<struct<key:string,value:binary>>"
_TIMESTAMP_LEFT_OUT = (
    "column 'timestamp' is not written, as with Spark's own connector: records get the time at which they "
    "are written; timestampColumn=timestamp writes it"
)


@dataclass(frozen=True, kw_only=True)
class EncodedPayload:
    """The key or the value, encoded out of columns. Plain data."""

    format: PayloadFormat
    columns: tuple[str, ...]
    """One column, or with ``value.layout=columns`` each of the fields."""
    kind: Any
    """Their Arrow type, that of a struct with ``value.layout=columns``."""

    @classmethod
    def of(cls, payload: PayloadFormat, schema: StructType, timestamp: str | None) -> EncodedPayload:
        """The columns of ``schema`` that ``payload`` is made of. Raises `ConfigError` if there is none."""
        if payload.schema is not None:
            raise ConfigError(
                f"{payload.payload}.schema: a write takes the types of its columns, so leave it out; only a "
                "schema in the format's own language, as Avro's JSON, says how they are written"
            )
        fields = [field for field in schema.fields if _belongs(field.name, payload, timestamp)]
        if payload.is_flat and "value" in schema.names:
            raise ConfigError(
                "value.layout=columns makes the value of all columns that are not Kafka's, and there is a "
                "column `value` too: drop it, or leave value.layout out to write that column alone"
            )
        kafkas = {name.lower(): name for name in KAFKA_COLUMNS}
        if odd := [one.name for one in fields if payload.is_flat and one.name.lower() in kafkas]:
            raise ConfigError(
                f"value.layout=columns: is the column `{odd[0]}` Kafka's, or a part of the value? Spell it "
                f"`{kafkas[odd[0].lower()]}`, or give it another name"
            )
        if not fields:
            begins = f" whose names begin with '{payload.prefix}'" if payload.prefix else ""
            raise ConfigError(f"value.layout=columns: there are no columns{begins} but Kafka's")
        columns = tuple(field.name for field in fields)
        if len(set(columns)) != len(columns):
            raise ConfigError(f"The {payload.payload} has a column twice: {', '.join(columns)}")
        types = [field.type for field in to_arrow_schema(StructType(fields))]
        return cls(format=payload, columns=columns, kind=_kind_of(payload, columns, types))

    def resolve(self) -> EncodedPayload:
        """With the schema under which the rows are written, looked up now. Raises `ConfigError`, also for
        types that the format can't hold."""
        resolved = self.format.resolve_write(self.kind)
        resolved.encoder(self.kind)
        return replace(self, format=resolved)

    def encode(self, batch: pa.RecordBatch, headers: pa.Array | None) -> tuple[pa.Array, pa.Array | None]:
        """The payloads of ``batch``'s rows, and their ``headers`` with what the format puts there. Raises
        `RecordError` with the row that the format can't write, `ConfigError` for a type that it can't."""
        what = f"'{self.format.name}' of the {self.format.payload}"
        try:
            # Large offsets come with spark.sql.execution.arrow.useLargeVarTypes.
            arrays = [as_plain(batch.column(name)) for name in self.columns]
            kind = _kind_of(self.format, self.columns, [array.type for array in arrays])
            rows = pa.StructArray.from_arrays(arrays, fields=list(kind)) if self.format.is_flat else arrays[0]
            encoder = self.format.encoder(kind)
            payloads = encode_column(encoder, rows, what)
            return payloads, with_header_ids(encoder, self.format.payload, payloads, headers)
        except EncodeError as error:
            reason = f"the {self.format.payload} can't be encoded: {error.reason}"
            raise RecordError(reason, None, error.row) from error
        except FormatError as error:
            raise ConfigError(str(error)) from error


def _kind_of(payload: PayloadFormat, columns: Sequence[str], types: list[Any]) -> Any:
    if not payload.is_flat:
        return types[0]
    names = [name.removeprefix(payload.prefix) for name in columns]
    return pa.struct(list(zip(names, types, strict=True)))


def _belongs(name: str, payload: PayloadFormat, timestamp: str | None) -> bool:
    if not payload.is_flat:
        return name == payload.payload
    return name not in (*KAFKA_COLUMNS, timestamp) and name.startswith(payload.prefix)


@dataclass(frozen=True, kw_only=True)
class RowColumns:
    """Which of a DataFrame's columns a record is made of. Plain data."""

    names: tuple[str, ...]
    """Of the columns that are used, as `Producer.send_columns` knows them."""
    topic: str | None
    """Where all rows go; None: the column ``topic`` says it."""
    timestamp: str | None = None
    """The column with the records' timestamps; None: a record gets the time at which it is written."""
    encoded: tuple[EncodedPayload, ...] = ()
    """Keys and values that are not columns of bytes or text yet."""

    @classmethod
    def check(
        cls,
        schema: StructType,
        topic: str | None,
        timestamp: str | None = None,
        topic_hint: str = "",
        formats: tuple[PayloadFormat, ...] = (),
    ) -> tuple[RowColumns, tuple[str, ...]]:
        """The columns of ``schema``, and what to warn of; ``timestamp`` is the option ``timestampColumn``,
        and ``topic_hint`` a text to add to the error for a missing topic.

        Names match exactly, other columns are ignored. Raises `ConfigError` in the words of Spark's
        connector.
        """
        by_name = {field.name: field.dataType for field in schema.fields}
        _check_once(schema, {*_PAYLOAD_AND_PLACE, timestamp, *(["topic"] if topic is None else [])})
        _check_topic(by_name.get("topic"), topic, topic_hint)
        present = [one for one in formats if one.is_flat or one.payload in by_name]
        formatted = {one.payload for one in present}
        for name in ("key", "value"):
            if name not in formatted:
                _check_content(name, by_name.get(name))
        _check_headers_and_partition(by_name.get("headers"), by_name.get("partition"))
        names = [name for name in _PAYLOAD_AND_PLACE if name in (*by_name, *formatted)]
        names += ["topic"] if topic is None else []
        if timestamp is not None:
            _check_timestamp(timestamp, by_name, formatted)
            names.append(timestamp)
        left_out = timestamp is None and "timestamp" in by_name
        warnings = [_TIMESTAMP_LEFT_OUT] if left_out else []
        if "key" not in by_name and any(one.payload == "key" for one in formats):
            warnings.append(_without_key(schema))
        encoded = tuple(EncodedPayload.of(one, schema, timestamp) for one in present)
        return cls(names=tuple(names), topic=topic, timestamp=timestamp, encoded=encoded), tuple(warnings)

    def resolve(self) -> RowColumns:
        """With the schemas of keys and values, looked up now: for the driver. Raises `ConfigError`."""
        return replace(self, encoded=tuple(one.resolve() for one in self.encoded))

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of ``batch`` that make records. Raises `KafkaConditionError` for a null topic, and as
        `EncodedPayload.encode`."""
        if self.topic is None and (nulls := batch.column("topic").null_count):
            raise KafkaConditionError("KAFKA_NULL_TOPIC_IN_DATA", {}, f"({nulls} of {batch.num_rows} rows)")
        columns = {name: batch.column(name) for name in self.names if name in batch.schema.names}
        headers = columns.get("headers")
        for one in self.encoded:
            columns[one.format.payload], headers = one.encode(batch, headers)
        names = list(self.names)
        if headers is not None:
            columns["headers"] = headers
            names += [] if "headers" in names else ["headers"]
        shown = ["timestamp" if name == self.timestamp else name for name in names]
        return pa.RecordBatch.from_arrays([columns[name] for name in names], names=shown)


def _without_key(schema: StructType) -> str:
    """The warning; raises `ConfigError` where a column was most likely meant to be the key."""
    near = next((name for name in schema.names if name.lower() == "key"), None)
    if near is not None:
        raise ConfigError(
            f"key.format is given, and the DataFrame has no column `key`, but `{near}`: rename it, as the "
            "records would have no key"
        )
    return "key.format is given, and the DataFrame has no column `key`: the records have no key"


def _check_once(schema: StructType, used: Collection[str | None]) -> None:
    """Spark's own connector takes the first column of a name, and says nothing of the others."""
    for name in schema.names:
        if name in used and (count := schema.names.count(name)) > 1:
            raise ConfigError(
                f"Reference `{name}` is ambiguous: the DataFrame has {count} columns of that name, and a "
                'record has one; rename or drop the others, as with .drop(right["value"]) after a join'
            )


def _check_headers_and_partition(headers: DataType | None, partition: DataType | None) -> None:
    if headers is not None and not _is_headers(headers):
        raise ConfigError(f"headers must be a(n) {_HEADERS_TEXT}")
    if partition is not None and not isinstance(partition, IntegerType):
        raise ConfigError("partition must be a(n) int")


def _check_topic(column: DataType | None, option: str | None, hint: str) -> None:
    if option is not None:
        return  # The column is ignored then, as in Spark's connector.
    if column is None:
        raise ConfigError(
            "topic option required when no 'topic' attribute is present. "
            f"Use the topic option for setting a topic.{hint}"
        )
    if not isinstance(column, StringType):
        raise ConfigError("topic must be a(n) string")


def _check_content(name: str, column: DataType | None) -> None:
    if column is None:
        if name == "value":
            raise ConfigError(
                "Required attribute 'value' not found; to write all columns as JSON: "
                '.select(to_json(struct("*")).alias("value"))'
            )
        return
    if not isinstance(column, StringType | BinaryType):
        found = f'col("{name}")'
        converted = f"to_json({found})" if isinstance(column, _NESTED) else f'{found}.cast("string")'
        raise ConfigError(
            f"{name} attribute unsupported type {column.simpleString()}. {name} must be a(n) string or "
            f'binary; convert it first: .withColumn("{name}", {converted})'
        )


def _check_timestamp(name: str, by_name: dict[str, DataType], formatted: Collection[str]) -> None:
    if name not in by_name:
        raise ConfigError(f"timestampColumn: there is no column '{name}' among {', '.join(by_name)}")
    if not isinstance(by_name[name], TimestampType):
        raise ConfigError(
            f"timestampColumn: column '{name}' is {by_name[name].simpleString()}, and must be a timestamp; "
            f'convert it first: .withColumn("{name}", col("{name}").cast("timestamp"))'
        )
    if name in formatted:
        raise ConfigError(
            f"timestampColumn: column '{name}' is the {name} that {name}.format encodes; copy it: "
            f'.withColumn("timestamp", col("{name}")), with timestampColumn=timestamp'
        )


def _is_headers(column: DataType) -> bool:
    """True if it is an array of (key string, value binary), nullability aside."""
    if not isinstance(column, ArrayType) or not isinstance(column.elementType, StructType):
        return False
    fields: list[StructField] = column.elementType.fields
    shape = [(field.name, type(field.dataType)) for field in fields]
    return shape == [("key", StringType), ("value", BinaryType)]
