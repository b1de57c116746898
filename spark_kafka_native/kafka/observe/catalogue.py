"""Every metric of the client, declared once: its name, kind, unit and tags.

The names are stable: dashboards are built on them. ``docs/client.md`` shows this table.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """The relation between the values of two snapshots."""

    COUNTER = "counter"
    """It only grows; the difference is the number of events in between."""
    GAUGE = "gauge"
    """A value at one moment."""
    DISTRIBUTION = "distribution"
    """Many values; their count, their sum and their histogram grow."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)  # one object each, compared by identity
class Metric:
    """A metric of this catalogue."""

    name: str
    """Dotted, as OpenTelemetry names metrics."""
    kind: Kind
    unit: str
    """In UCUM notation, which OpenTelemetry asks for: ``s``, ``By`` (bytes), ``{record}`` and the like."""
    description: str
    tags: tuple[str, ...] = ()
    """The names of its tags, in the order of their values."""


def _counter(name: str, unit: str, description: str, *tags: str) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, unit=unit, description=description, tags=tags)


def _gauge(name: str, unit: str, description: str, *tags: str) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, unit=unit, description=description, tags=tags)


def _distribution(name: str, unit: str, description: str, *tags: str) -> Metric:
    return Metric(name=name, kind=Kind.DISTRIBUTION, unit=unit, description=description, tags=tags)


# The network, of every client. ``api`` is a request's name, such as ``Fetch``; ``error`` the name of an error
# code or of an exception's class.
DIALS = _counter(
    "kafka.client.dials",
    "{dial}",
    "Attempts at a connection, with TLS and authentication; `outcome` is `connected` or `failed`",
    "outcome",
)
DIAL_DURATION = _distribution("kafka.client.dial.duration", "s", "How long these took", "outcome")
CONNECTIONS = _gauge("kafka.client.connections", "{connection}", "Open connections")
DISCONNECTS = _counter(
    "kafka.client.disconnects", "{connection}", "Connections that ended without being closed here", "error"
)
REQUESTS = _counter("kafka.client.requests", "{request}", "Requests handed to a connection", "api")
REQUEST_DURATION = _distribution(
    "kafka.client.request.duration",
    "s",
    "From handing over a request until its answer was read; a fetch waits at the broker for records",
    "api",
)
BYTES_SENT = _counter("kafka.client.bytes.sent", "By", "Size of these requests, without TLS", "api")
BYTES_RECEIVED = _counter("kafka.client.bytes.received", "By", "Size of the answers, without TLS", "api")
TIMEOUTS = _counter("kafka.client.timeouts", "{request}", "Requests that were not answered in time", "api")
THROTTLE_DURATION = _distribution(
    "kafka.client.throttle.duration", "s", "How long a broker asked to be left alone, as a quota is used up"
)
RETRIES = _counter(
    "kafka.client.retries",
    "{retry}",
    "Operations that were tried again, by what they failed with",
    "error",
)

# The producer.
PRODUCED_RECORDS = _counter(
    "kafka.producer.records", "{record}", "Delivered; with acks=0 handed to the network", "topic"
)
PRODUCED_BYTES = _counter("kafka.producer.bytes", "By", "Delivered, as record batches on the wire", "topic")
PRODUCED_BATCHES = _counter("kafka.producer.batches", "{batch}", "Delivered", "topic")
PRODUCE_BATCH_RECORDS = _distribution(
    "kafka.producer.batch.records", "{record}", "Records in a delivered batch"
)
PRODUCE_BATCH_SIZE = _distribution("kafka.producer.batch.size", "By", "Size of a delivered batch on the wire")
PRODUCE_REQUESTS = _counter("kafka.producer.requests", "{request}", "Produce requests of this producer")
PRODUCE_DURATION = _distribution(
    "kafka.producer.request.duration", "s", "From sending a produce request until its answer"
)
QUEUE_DURATION = _distribution(
    "kafka.producer.queue.duration", "s", "From a batch's first record until the batch was sent first"
)
PRODUCE_RETRIES = _counter("kafka.producer.retries", "{batch}", "Batches that were sent again")
SPLITS = _counter("kafka.producer.splits", "{batch}", "Batches cut in two, as they were too large")
FAILED_BATCHES = _counter(
    "kafka.producer.batches.failed", "{batch}", "Could not be delivered, by why", "error"
)
FAILED_RECORDS = _counter("kafka.producer.records.failed", "{record}", "Could not be delivered")
SPILLED_RECORDS = _counter("kafka.producer.records.spilled", "{record}", "Went to the spill folder")
SKIPPED_RECORDS = _counter(
    "kafka.producer.records.skipped", "{record}", "Over a limit, and left out as `over_limit` says"
)
DEAD_LETTERED_RECORDS = _counter(
    "kafka.producer.records.dead_lettered", "{record}", "Over a limit, with a dead letter in the log instead"
)
PRODUCER_WAIT = _distribution(
    "kafka.producer.wait.duration",
    "s",
    "How long callers waited: for `room` in the buffer, for a `delivery`, for a `flush`",
    "on",
)
BUFFERED_RECORDS = _gauge("kafka.producer.buffered.records", "{record}", "Accepted, and not ended yet")
BUFFERED_BYTES = _gauge("kafka.producer.buffered.bytes", "By", "Buffer memory that these take")
QUEUED_BATCHES = _gauge("kafka.producer.queue.batches", "{batch}", "Batches that have not ended yet")

# The consumer, with a group or without.
CONSUMED_RECORDS = _counter("kafka.consumer.records", "{record}", "Fetched and decoded", "topic")
CONSUMED_BYTES = _counter(
    "kafka.consumer.bytes", "By", "Size of these in memory, as columns: decompressed", "topic"
)
CONSUME_BATCH_RECORDS = _distribution(
    "kafka.consumer.batch.records", "{record}", "Records in what was decoded at a time, of one partition"
)
FETCH_SIZE = _distribution(
    "kafka.consumer.fetch.size", "By", "Size of the record sets in the answer to a fetch, as on the wire"
)
CONSUMER_ERRORS = _counter(
    "kafka.consumer.errors",
    "{error}",
    "What keeps partitions from being read on, told to the caller",
    "error",
)
OFFSET_RESETS = _counter(
    "kafka.consumer.offset.resets", "{reset}", "Partitions that went on as `auto_offset_reset` says"
)
CONSUMER_WAIT = _distribution(
    "kafka.consumer.wait.duration", "s", "How long the caller waited until there were records"
)
PREFETCHED_BYTES = _gauge("kafka.consumer.queue.bytes", "By", "Fetched and not handed out, in memory")
PREFETCHED_BATCHES = _gauge(
    "kafka.consumer.queue.batches", "{batch}", "Pieces of partitions that these records are in"
)
PARTITIONS = _gauge(
    "kafka.consumer.partitions", "{partition}", "Partitions; `state` is `reading` or `paused`", "state"
)
LAG = _gauge(
    "kafka.consumer.lag",
    "{record}",
    "Offsets between the position and the end of the log (of what is committed, with `read_committed`), as "
    "the last records told it; absent until some came",
    "topic",
    "partition",
)

# The group.
REBALANCES = _counter("kafka.group.rebalances", "{rebalance}", "Assignments that the member was given")
PARTITION_CHANGES = _counter(
    "kafka.group.partition.changes",
    "{partition}",
    "Partitions that came and went; `change` is `assigned`, `revoked` or `lost`",
    "change",
)
COMMITS = _counter(
    "kafka.group.commits",
    "{commit}",
    "Commits that ended; `outcome` is `committed` or the name of what they failed with",
    "outcome",
)
COMMIT_DURATION = _distribution(
    "kafka.group.commit.duration", "s", "How long a commit took, with its retries", "outcome"
)
ASSIGNED_PARTITIONS = _gauge("kafka.group.partitions", "{partition}", "Partitions of this member")

ALL_METRICS: tuple[Metric, ...] = tuple(one for one in list(globals().values()) if isinstance(one, Metric))
"""In the order of this file."""
