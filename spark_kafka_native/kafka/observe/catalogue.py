"""Every metric of the client, declared once: its name, kind, unit and tags.

The names are stable: dashboards are built on them. ``docs/metrics.md`` shows this table.
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
    "Connection attempts, including TLS and authentication; `outcome` is `connected` or `failed`",
    "outcome",
)
DIAL_DURATION = _distribution(
    "kafka.client.dial.duration", "s", "Duration of a connection attempt", "outcome"
)
CONNECTIONS = _gauge("kafka.client.connections", "{connection}", "Open connections")
DISCONNECTS = _counter(
    "kafka.client.disconnects", "{connection}", "Connections that were not closed by this client", "error"
)
REQUESTS = _counter("kafka.client.requests", "{request}", "Requests sent", "api")
REQUEST_DURATION = _distribution(
    "kafka.client.request.duration",
    "s",
    "From sending a request until its response was read; includes a fetch's wait for records at the broker",
    "api",
)
BYTES_SENT = _counter("kafka.client.bytes.sent", "By", "Size of the requests, without TLS", "api")
BYTES_RECEIVED = _counter("kafka.client.bytes.received", "By", "Size of the responses, without TLS", "api")
TIMEOUTS = _counter("kafka.client.timeouts", "{request}", "Requests without a response in time", "api")
THROTTLE_DURATION = _distribution(
    "kafka.client.throttle.duration", "s", "Throttle times in responses: a quota is exceeded"
)
RETRIES = _counter(
    "kafka.client.retries",
    "{retry}",
    "Retried operations, by their error",
    "error",
)

# The producer.
PRODUCED_RECORDS = _counter(
    "kafka.producer.records", "{record}", "Delivered records; with acks=0, sent records", "topic"
)
PRODUCED_BYTES = _counter(
    "kafka.producer.bytes", "By", "Size of the delivered record batches on the wire", "topic"
)
PRODUCED_BATCHES = _counter("kafka.producer.batches", "{batch}", "Delivered record batches", "topic")
PRODUCE_BATCH_RECORDS = _distribution(
    "kafka.producer.batch.records", "{record}", "Records in a delivered batch"
)
PRODUCE_BATCH_SIZE = _distribution("kafka.producer.batch.size", "By", "Size of a delivered batch on the wire")
PRODUCE_REQUESTS = _counter("kafka.producer.requests", "{request}", "Produce requests of this producer")
PRODUCE_DURATION = _distribution(
    "kafka.producer.request.duration", "s", "From sending a produce request until its response"
)
QUEUE_DURATION = _distribution(
    "kafka.producer.queue.duration", "s", "From a batch's first record until the batch was first sent"
)
PRODUCE_RETRIES = _counter("kafka.producer.retries", "{batch}", "Retried batches")
SPLITS = _counter("kafka.producer.splits", "{batch}", "Batches that were too large and were split")
FAILED_BATCHES = _counter(
    "kafka.producer.batches.failed", "{batch}", "Undelivered batches, by their error", "error"
)
FAILED_RECORDS = _counter("kafka.producer.records.failed", "{record}", "Undelivered records")
SPILLED_RECORDS = _counter(
    "kafka.producer.records.spilled", "{record}", "Records written to the spill folder"
)
SKIPPED_RECORDS = _counter(
    "kafka.producer.records.skipped", "{record}", "Records over a limit that were skipped (`over_limit`)"
)
DEAD_LETTERED_RECORDS = _counter(
    "kafka.producer.records.dead_lettered",
    "{record}",
    "Records over a limit that were replaced by a dead letter",
)
PRODUCER_WAIT = _distribution(
    "kafka.producer.wait.duration",
    "s",
    "Wait of a caller: for `room` in the buffer, for a `delivery`, for a `flush`",
    "on",
)
BUFFERED_RECORDS = _gauge(
    "kafka.producer.buffered.records", "{record}", "Records accepted and not yet delivered or failed"
)
BUFFERED_BYTES = _gauge("kafka.producer.buffered.bytes", "By", "Buffer memory of these records")
QUEUED_BATCHES = _gauge("kafka.producer.queue.batches", "{batch}", "Batches not yet delivered or failed")

# The consumer, with a group or without.
CONSUMED_RECORDS = _counter("kafka.consumer.records", "{record}", "Fetched and decoded records", "topic")
CONSUMED_BYTES = _counter(
    "kafka.consumer.bytes", "By", "Size of these records in memory, as decompressed columns", "topic"
)
CONSUME_BATCH_RECORDS = _distribution(
    "kafka.consumer.batch.records", "{record}", "Records of one partition that were decoded together"
)
FETCH_SIZE = _distribution(
    "kafka.consumer.fetch.size", "By", "Size of the record sets in a fetch response, on the wire"
)
CONSUMER_ERRORS = _counter(
    "kafka.consumer.errors",
    "{error}",
    "Errors that stop partitions and that the caller received",
    "error",
)
OFFSET_RESETS = _counter(
    "kafka.consumer.offset.resets", "{reset}", "Positions that were reset (`auto_offset_reset`)"
)
CONSUMER_WAIT = _distribution("kafka.consumer.wait.duration", "s", "Wait of the caller for records")
PREFETCHED_BYTES = _gauge(
    "kafka.consumer.queue.bytes", "By", "Memory of records that are fetched and not yet consumed"
)
PREFETCHED_BATCHES = _gauge("kafka.consumer.queue.batches", "{batch}", "Batches of these records")
PARTITIONS = _gauge(
    "kafka.consumer.partitions", "{partition}", "Partitions; `state` is `reading` or `paused`", "state"
)
LAG = _gauge(
    "kafka.consumer.lag",
    "{record}",
    "Offsets between the position and the end of the log (with `read_committed`, its last stable offset), "
    "as of the last fetched records; absent before the first ones, and once closed",
    "topic",
    "partition",
)

# The group.
REBALANCES = _counter("kafka.group.rebalances", "{rebalance}", "Assignments that the member received")
PARTITION_CHANGES = _counter(
    "kafka.group.partition.changes",
    "{partition}",
    "Changes of the assignment; `change` is `assigned`, `revoked` or `lost`",
    "change",
)
COMMITS = _counter(
    "kafka.group.commits",
    "{commit}",
    "Completed commits; `outcome` is `committed` or the name of the error",
    "outcome",
)
COMMIT_DURATION = _distribution(
    "kafka.group.commit.duration", "s", "Duration of a commit, including retries", "outcome"
)
ASSIGNED_PARTITIONS = _gauge("kafka.group.partitions", "{partition}", "Partitions assigned to this member")

# A streaming query of Spark (`StreamMetrics`). ``query`` is its name, or its id if it has none.
STREAM_RUNNING = _gauge("kafka.stream.running", "{query}", "1 while the query runs", "query")
STREAM_BATCHES = _counter("kafka.stream.batches", "{batch}", "Micro-batches with a progress", "query")
STREAM_RECORDS = _counter("kafka.stream.records", "{record}", "Records read from Kafka", "query")
STREAM_WRITTEN = _counter(
    "kafka.stream.written.records", "{record}", "Rows written, where the sink counts them", "query"
)
STREAM_BATCH_DURATION = _distribution(
    "kafka.stream.batch.duration", "s", "Duration of a micro-batch, planning and commit included", "query"
)
STREAM_FAILURES = _counter("kafka.stream.failures", "{failure}", "Ends of the query by an error", "query")
STREAM_HEARD = _gauge(
    "kafka.stream.last_progress.timestamp",
    "s",
    "Time of the last micro-batch or, of an idle query, of the last look for records; since the epoch",
    "query",
)
STREAM_LAG = _gauge(
    "kafka.stream.lag",
    "{record}",
    "Offsets between the position and the end of the log, as of the last micro-batch",
    "query",
    "topic",
    "partition",
)

# A cluster, watched by `pykafka exporter`.
CLUSTER_GROUP_LAG = _gauge(
    "kafka.consumergroup.lag",
    "{record}",
    "Offsets between the committed offset and the end of the log",
    "consumergroup",
    "topic",
    "partition",
)
CLUSTER_GROUP_OFFSET = _gauge(
    "kafka.consumergroup.current_offset",
    "{record}",
    "Committed offset",
    "consumergroup",
    "topic",
    "partition",
)
CLUSTER_GROUP_MEMBERS = _gauge(
    "kafka.consumergroup.members", "{member}", "Members of the group", "consumergroup"
)
CLUSTER_END_OFFSET = _gauge(
    "kafka.topic.partition.current_offset", "{record}", "End of the log", "topic", "partition"
)
CLUSTER_PARTITIONS = _gauge("kafka.topic.partitions", "{partition}", "Partitions whose end is known", "topic")
CLUSTER_BROKERS = _gauge("kafka.brokers", "{broker}", "Brokers of the cluster")
EXPORTER_UP = _gauge("kafka.exporter.up", "{cluster}", "1 if the last look at the cluster succeeded")
EXPORTER_PROBLEMS = _gauge(
    "kafka.exporter.problems", "{problem}", "Groups and partitions that the last look could not see"
)
EXPORTER_LOOKED = _gauge(
    "kafka.exporter.last_success.timestamp", "s", "Time of the last look that succeeded, since the epoch"
)

ALL_METRICS: tuple[Metric, ...] = tuple(one for one in list(globals().values()) if isinstance(one, Metric))
"""In the order of this file."""
