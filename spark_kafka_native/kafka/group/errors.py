"""What a consumer of a group raises of its own."""

from __future__ import annotations

from ..errors import KafkaError
from ..model import TopicPartition


class CommitFailedError(KafkaError):
    """Offsets were not committed, as their partitions are not this consumer's any more, or not yet again.

    Whoever has them now goes on from what was committed before: the records in question are read again.
    """


class NoCommittedOffsetError(KafkaError):
    """A group has committed nothing of a partition, and ``auto_offset_reset="none"`` leaves it at that."""

    def __init__(self, group_id: str, topic_partition: TopicPartition) -> None:
        super().__init__(group_id, topic_partition)
        self.group_id = group_id
        self.topic_partition = topic_partition

    def __str__(self) -> str:
        return (
            f"group {self.group_id} has committed no offset of {self.topic_partition}, and "
            "auto.offset.reset is none: seek to where it begins (in on_assigned), or set auto_offset_reset"
        )
