"""Every error condition of the source, under the name and in the words of Spark's own Kafka connector.

People search for these names and alert on them, so they are part of the interface. Python can't hand Spark an
error class or a sqlState of its own: the name opens the message in brackets, as Spark prints it, and survives
as text.
"""

from __future__ import annotations

from typing import Final

from ..kafka.errors import KafkaError

_DATA_LOSS: Final = (
    "Some data may have been lost because they are not available in Kafka any more; either the data was aged "
    "out by Kafka or the topic may have been deleted before all the data in the topic was processed. If you "
    "don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false. "
    "Reason: "
)

CONDITIONS: Final[dict[str, str]] = {
    "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET": (
        "The specified start offset and end offset should have the same topic-partitions. Topic-partitions "
        "for start offset: {tpsForStartOffset}, topic-partitions for end offset: {tpsForEndOffset}."
    ),
    "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET": (
        "The specified start {what} {startOffset} is greater than the end {what} {endOffset} for topic "
        "{topic} partition {partition}."
    ),
    "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET": (
        "The resolved start offset {startOffset} is greater than the resolved end offset {endOffset} for "
        "topic {topic} partition {partition}. Please investigate in this order: 1. Check whether start "
        "offset is set beyond the end offset or the latest available offset after resolution. Possible "
        "inputs are: (a) Start offset is set to a timestamp, and the end offset is set to an index of "
        "offset. (b) Start offset is set to an index of offset, and the end offset is set to a timestamp. "
        "(c) Start offset is set, and the end offset is set to latest. 2. Check whether the Kafka "
        "topic-partition is deleted and re-created."
    ),
    "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED": (
        "Partitions specified for Kafka start offsets don't match what are assigned. Maybe topic partitions "
        "are created or deleted while the query is running. Use -1 for latest, -2 for earliest. Specified: "
        "{specifiedPartitions} Assigned: {assignedPartitions}"
    ),
    "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED": (
        "Partitions specified for Kafka timestamp based {position} offsets don't match what are assigned. "
        "Maybe topic partitions are created or deleted while the query is running, or you didn't specify all "
        "the partitions. Specified: {specifiedPartitions} Assigned: {assignedPartitions}"
    ),
    "KAFKA_MALFORMED_RECORD_TIMESTAMP": (
        "Record at {topicPartition} offset {offset} has timestamp value {timestampMs} that overflows when "
        "converting to Spark's microsecond-precision TimestampType. Kafka record timestamps must be in "
        "milliseconds since epoch per the Kafka protocol. The provided value suggests the producer may be "
        "writing timestamps in microseconds or nanoseconds instead. Ensure the Kafka producer sets the "
        "ProducerRecord timestamp in milliseconds. To read the record, leave the column `timestamp` out of "
        "the schema."
    ),
    "KAFKA_NULL_TOPIC_IN_DATA": (
        "The Kafka message data sent to the producer contains a null topic. Use the `topic` option for "
        "setting a default topic."
    ),
    "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED": (
        "Kafka data source in Trigger.AvailableNow should provide the same topic partitions in pre-fetched "
        "offset to end offset for each microbatch. The error could be transient - restart your query, and "
        "report if you still see the same issue. topic-partitions for pre-fetched offset: "
        "{tpsForPrefetched}, topic-partitions for end offset: {tpsForEndOffset}."
    ),
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED": (
        "For Kafka data source with Trigger.AvailableNow, end offset should have lower or equal offset per "
        "each topic partition than pre-fetched offset. The error could be transient - restart your query, "
        "and report if you still see the same issue. pre-fetched offset: {prefetchedOffset}, end offset: "
        "{endOffset}."
    ),
    "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW": (
        "Some of partitions in Kafka topic(s) have been lost during running query with Trigger.AvailableNow. "
        "The error could be transient - restart your query, and report if you still see the same issue. "
        "topic-partitions for latest offset: {tpsForLatestOffset}, topic-partitions for end offset: "
        "{tpsForEndOffset}"
    ),
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW": (
        "Some of partitions in Kafka topic(s) report available offset which is less than end offset during "
        "running query with Trigger.AvailableNow. The error could be transient - restart your query, and "
        "report if you still see the same issue. latest offset: {latestOffset}, end offset: {endOffset}"
    ),
    "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO": (
        "Added partition {topicPartition} starts from {startOffset} instead of 0."
    ),
    "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE": (
        "Could not read records in offset [{startOffset}, {endOffset}) for topic partition {topicPartition} "
        "with consumer group {groupId}."
    ),
    "KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS": (
        "Cannot find initial offsets for partitions {partitions}. They may have been deleted."
    ),
    "KAFKA_DATA_LOSS.PARTITIONS_DELETED": "Partitions {partitions} have been deleted.",
    "KAFKA_DATA_LOSS.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT": (
        "Partitions {partitions} have been deleted. Kafka option 'kafka.group.id' has been set on this "
        "query, it is not recommended to set this option. This option is unsafe to use since multiple "
        "concurrent queries or sources using the same group id will interfere with each other as they are "
        "part of the same consumer group. Restarted queries may also suffer interference from the previous "
        "run having the same group id. The user should have only one query per group id, and/or set the "
        "option 'kafka.session.timeout.ms' to be very small so that the Kafka consumers from the previous "
        "query are marked dead by the Kafka group coordinator before the restarted query starts running."
    ),
    "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED": (
        "Partition {topicPartition} offset was changed from {prevOffset} to {newOffset}. This could be "
        "either 1) a user error that the start offset is set beyond available offset when starting query, or "
        "2) the kafka topic-partition is deleted and re-created."
    ),
    "KAFKA_DATA_LOSS.START_OFFSET_RESET": (
        "Starting offset for {topicPartition} was {offset} but consumer reset to {fetchedOffset}."
    ),
}
"""Condition name -> its text with the parameters' names in braces (the names are Spark's)."""

_SQL_STATES: Final = {"KAFKA_DATA_LOSS": "22000", "KAFKA_MALFORMED_RECORD_TIMESTAMP": "22008"}


class KafkaConditionError(KafkaError):
    """A condition by its name, with the parameters that fill its text, and a note of our own."""

    def __init__(self, condition: str, parameters: dict[str, object], note: str = "") -> None:
        super().__init__(condition, parameters, note)
        self.condition = condition
        self.parameters = parameters
        self.note = note

    @property
    def is_data_loss(self) -> bool:
        """True if ``failOnDataLoss=false`` turns this error into a warning."""
        return self.condition.startswith("KAFKA_DATA_LOSS.")

    def __str__(self) -> str:
        text = CONDITIONS[self.condition].format_map(self.parameters)
        lead = _DATA_LOSS if self.is_data_loss else ""
        state = _SQL_STATES.get(self.condition.split(".")[0])
        parts = [f"[{self.condition}] {lead}{text}", self.note, f"SQLSTATE: {state}" if state else ""]
        return " ".join(part for part in parts if part)
