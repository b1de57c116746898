"""`lag`: how far a stream is behind its topics, and how fast it goes; `ProgressLog`: a line for each batch;
`kafka_progress`: a progress with the topics and metrics that Spark's own connector puts there.

They read what Spark publishes (``query.recentProgress``) and ask no broker, so that they work wherever the
query can be seen: on the driver, in a notebook, through Spark Connect.
"""

from __future__ import annotations

import html
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from ..kafka.model import TopicPartition
from .read.driver.micro_batch import Positions

_LOG: Final = logging.getLogger("spark_kafka_native")
_SHOWN: Final = 20
"""Partitions in a notebook's table: those that are furthest behind."""
_UPDATE_MODE: Final = (
    "Spark's API for Python sinks has no update mode. Write with foreachBatch: "
    "stream.writeStream.outputMode('update').foreachBatch(lambda batch, _: "
    "batch.write.format('pykafka').options(...).mode('append').save()).start()"
)
_PARTITION: Final = re.compile(r"[0-9]{1,10}")
_OFFSETS: Final = ("startOffset", "endOffset", "latestOffset")
_BYTES: Final = re.compile(r"#bytes ([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPartitionLag:
    """One partition."""

    topic_partition: TopicPartition
    position: int
    """The next offset to read, as of the last batch."""
    latest: int
    """The end of the log when that batch was planned."""
    seconds: float | None
    """How long ago the log ended at ``position``: 0 where nothing is left. None if that was before what Spark
    remembers of the query."""

    @property
    def records(self) -> int:
        """Offsets still to be read: records, but for what compaction and transactions leave out."""
        return max(self.latest - self.position, 0)


PartitionLag = StreamPartitionLag
"""Its former name, for one version: `spark_kafka_native.kafka.PartitionLag` is another class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """A stream, all its sources from Kafka together. Shows itself as a table in notebooks."""

    partitions: tuple[StreamPartitionLag, ...]
    """In order of topic and partition."""
    records_per_s: float
    """Read, over the batches that Spark remembers; counts the time in batches only."""
    arriving_per_s: float | None
    """Written to the topics, by their ends; None until there are two batches to compare."""
    bytes_per_s: float | None
    """Read: keys, values and headers, estimated from samples; None where there is none."""

    @property
    def records(self) -> int:
        """All partitions together."""
        return sum(one.records for one in self.partitions)

    @property
    def seconds(self) -> float | None:
        """Of the partition that is furthest behind in time; None if that is not known."""
        known = [one.seconds for one in self.partitions if one.seconds is not None]
        return max(known) if known and len(known) == len(self.partitions) else None

    @property
    def seconds_to_catch_up(self) -> float | None:
        """At these rates; None if the stream is not faster than what arrives, or nothing is known of it."""
        if not self.partitions:
            return None
        if not self.records:
            return 0.0
        gain = self.records_per_s - (self.arriving_per_s or 0)
        return self.records / gain if gain > 0 else None

    def __str__(self) -> str:
        if not self.partitions:
            return "no batch from Kafka yet"
        parts = [f"{self.records:,} records behind", _describe_seconds(self.seconds)]
        parts.append(f"{self.records_per_s:,.0f} records/s")
        if self.bytes_per_s is not None:
            parts.append(f"{self.bytes_per_s / 1e6:,.1f} MB/s")
        if self.records:
            wait = self.seconds_to_catch_up
            parts.append("not catching up" if wait is None else f"caught up in {wait:,.0f} s")
        return ", ".join(part for part in parts if part)

    def _repr_html_(self) -> str:
        furthest = sorted(self.partitions, key=lambda one: -one.records)[:_SHOWN]
        rows = "".join(_write_row(one) for one in furthest)
        more = len(self.partitions) - len(furthest)
        rest = f"<p>and {more} partitions with less</p>" if more else ""
        return (
            f"<p><b>{html.escape(str(self))}</b></p><table><tr><th>partition</th><th>position</th>"
            f"<th>latest</th><th>records behind</th><th>seconds behind</th></tr>{rows}</table>{rest}"
        )


def _write_row(one: StreamPartitionLag) -> str:
    seconds = "?" if one.seconds is None else f"{one.seconds:,.1f}"
    cells = (
        html.escape(str(one.topic_partition)),
        f"{one.position:,}",
        f"{one.latest:,}",
        f"{one.records:,}",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in (*cells, seconds)) + "</tr>"


class ProgressLog(StreamingQueryListener):  # type: ignore[misc]
    """Logs a line for each batch of each stream from Kafka: ``spark.streams.addListener(ProgressLog())``."""

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Log one line, if the stream reads Kafka."""
        line = describe_progress(as_dict(event.progress))
        if line is not None:
            _LOG.info("%s", line)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing to tell."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Log what Spark can't say: what takes the place of update mode, which its API for sinks lacks."""
        if "pykafka does not support Update mode" in (event.exception or ""):
            _LOG.error("%s", _UPDATE_MODE)


def lag(query: Any) -> Lag:
    """Where ``query`` (a ``StreamingQuery``) stands. Before its first batch: no partitions.

    Times come from the batches that Spark remembers (``spark.sql.streaming.numRecentProgressUpdates``, 100).
    """
    return lag_of([as_dict(progress) for progress in query.recentProgress])


def lag_of(history: Sequence[Mapping[str, Any]]) -> Lag:
    """`lag` of progresses as dictionaries, in order: what a listener has collected."""
    seen = [one for one in map(read_progress, history) if one.latest]
    if not seen:
        return Lag(partitions=(), records_per_s=0.0, arriving_per_s=None, bytes_per_s=None)
    last = seen[-1]
    partitions = tuple(
        StreamPartitionLag(
            topic_partition=tp,
            position=last.position.get(tp, 0),
            latest=latest,
            seconds=_seconds_behind(seen, tp, last.position.get(tp, 0)),
        )
        for tp, latest in sorted(last.latest.items())
    )
    busy_s = sum(one.seconds for one in seen if one.rows)
    rate = sum(one.rows for one in seen) / busy_s if busy_s else 0.0
    elapsed_s = last.at - seen[0].at
    arrived = _count_arrived(seen)
    size = next((one.bytes_per_record for one in reversed(seen) if one.bytes_per_record is not None), None)
    return Lag(
        partitions=partitions,
        records_per_s=rate,
        arriving_per_s=arrived / elapsed_s if elapsed_s > 0 else None,
        bytes_per_s=None if size is None else rate * size,
    )


def describe_progress(progress: Mapping[str, Any]) -> str | None:
    """One line about a progress as Spark's JSON has it; None if no source of it is Kafka's."""
    read = read_progress(progress)
    if not read.latest:
        return None
    behind = sum(max(end - read.position.get(tp, 0), 0) for tp, end in read.latest.items())
    name = progress.get("name") or str(progress.get("id", "?"))[:8]
    return (
        f"{name}, batch {progress.get('batchId')}: {read.rows:,} records in {read.seconds * 1000:,.0f} ms "
        f"({read.rows / read.seconds if read.seconds else 0:,.0f}/s), "
        f"{behind:,} behind in {len(read.latest)} partitions"
    )


def kafka_progress(progress: Any) -> dict[str, Any]:
    """``progress`` (of a query or a listener's event) as Spark's JSON has it, but for each source from Kafka
    with its topics as ``description``, with the ``metrics`` of Spark's connector, texts as there, and with
    offsets of topics only: this source keeps more in them, under keys that begin with ``#``.

    Spark asks a Python source for neither; monitoring that goes by them takes this instead.
    """
    found = as_dict(progress)
    found["sources"] = [_with_metrics(source) for source in found.get("sources") or ()]
    return found


def _with_metrics(source: Mapping[str, Any]) -> dict[str, Any]:
    position, latest = _parse(source.get("endOffset"))[0], _parse(source.get("latestOffset"))[0]
    if not position:
        return dict(source)
    topics = sorted({tp.topic for tp in position})
    offsets = {name: _of_topics(source[name]) for name in _OFFSETS if name in source}
    named = {**source, **offsets, "description": f"pykafka[{', '.join(topics)}]"}
    behind = [max(end - position.get(tp, 0), 0) for tp, end in latest.items()]
    if behind:
        named["metrics"] = {
            "minOffsetsBehindLatest": str(min(behind)),
            "maxOffsetsBehindLatest": str(max(behind)),
            "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        }
    return named


def _as_object(offset: Any) -> dict[str, Any] | None:
    """An offset, as a text or an object. None for one of another source, which may write anything."""
    try:
        parsed = json.loads(offset) if isinstance(offset, str) and offset.startswith("{") else offset
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _of_topics(offset: Any) -> Any:
    """A text stays a text."""
    parsed = _as_object(offset)
    if parsed is None:
        return offset
    topics = {name: partitions for name, partitions in parsed.items() if not name.startswith("#")}
    return json.dumps(topics) if isinstance(offset, str) else topics


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadProgress:
    """What a progress says of the sources that are Kafka's."""

    at: float
    """Seconds since the epoch, when the trigger began."""
    seconds: float
    rows: int
    position: Positions
    latest: Positions
    bytes_per_record: float | None


def as_dict(progress: Any) -> dict[str, Any]:
    """A progress of a query or of a listener's event, as Spark's JSON has it."""
    # A progress is a dict with offsets as texts; its JSON has them as objects. Both are understood.
    return dict(json.loads(progress.json)) if hasattr(progress, "json") else dict(progress)


def read_progress(progress: Mapping[str, Any]) -> ReadProgress:
    """Of a progress as Spark's JSON has it; without positions if no source is Kafka's."""
    ours = [source for source in progress.get("sources") or () if _parse(source.get("endOffset"))[0]]
    position: dict[TopicPartition, int] = {}
    latest: dict[TopicPartition, int] = {}
    sizes: list[float] = []
    for source in ours:
        ends, end_sizes = _parse(source.get("latestOffset"))
        sizes += end_sizes
        # Two sources may read the same partition: the one behind counts, and the later look at the log.
        for tp, offset in ends.items():
            latest[tp] = max(offset, latest.get(tp, offset))
        for tp, offset in _parse(source.get("endOffset"))[0].items():
            position[tp] = min(offset, position.get(tp, offset))
    moment = datetime.fromisoformat(str(progress.get("timestamp", "1970-01-01T00:00:00Z")))
    return ReadProgress(
        at=moment.astimezone(UTC).timestamp(),
        seconds=(progress.get("durationMs") or {}).get("triggerExecution", 0) / 1000,
        rows=sum(int(source.get("numInputRows") or 0) for source in ours),
        position=position,
        latest=latest,
        bytes_per_record=sum(sizes) / len(sizes) if sizes else None,
    )


def _parse(offset: Any) -> tuple[dict[TopicPartition, int], list[float]]:
    """Positions, and sizes of records from the key ``#bytes``; empty for the offsets of other sources."""
    found: dict[TopicPartition, int] = {}
    sizes: list[float] = []
    for topic, partitions in (_as_object(offset) or {}).items():
        if size := _BYTES.fullmatch(topic):
            sizes.append(float(size[1]))
        elif isinstance(partitions, dict) and not topic.startswith("#"):
            found |= {
                TopicPartition(topic, int(index)): at
                for index, at in partitions.items()
                if _PARTITION.fullmatch(index) and isinstance(at, int)
            }
    return found, sizes


def _count_arrived(seen: Sequence[ReadProgress]) -> int:
    """By how much the logs have grown since they were first seen. One that is there from now on is no arrival
    of all that it holds, and one that has become shorter (its topic was recreated) takes nothing from others.
    """
    first: dict[TopicPartition, int] = {}
    for one in seen:
        for tp, latest in one.latest.items():
            first.setdefault(tp, latest)
    return sum(max(latest - first[tp], 0) for tp, latest in seen[-1].latest.items())


def _seconds_behind(
    seen: Iterable[ReadProgress], topic_partition: TopicPartition, position: int
) -> float | None:
    """Since the log ended at ``position``: between the two batches that saw it before and after."""
    history = [(one.at, one.latest[topic_partition]) for one in seen if topic_partition in one.latest]
    now, latest = history[-1]
    if position >= latest:
        return 0.0
    for (before, low), (after, high) in reversed(list(pairwise(history))):
        if low <= position < high:
            # The clock may have been set back meanwhile.
            return max(now - (before + (after - before) * (position - low) / (high - low)), 0.0)
    return None


def _describe_seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.1f} s behind"
