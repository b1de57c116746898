"""`find_recreated`: finds topics that were deleted and created again, by their topic ids (KIP-516)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from ..errors import BrokerError, IncompleteResponseError, KafkaError, NetworkError
from ..model import TopicPartition
from ..runtime.deadline import Deadline
from ..runtime.retry import Backoff, retry
from .metadata import ClusterMetadata, metadata_of, topics_request
from .router import Router

RESPONSES_NEEDED: Final = 3
"""The number of consecutive responses that must give another topic id: one broker may lag behind and still
give the former one.
"""


def find_recreated(
    router: Router,
    expected: Mapping[str, UUID],
    *,
    refresh: bool = False,
    at: Collection[TopicPartition] = (),
    deadline: Deadline | None = None,
    backoff: Backoff | None = None,
) -> dict[str, UUID]:
    """The topics that no longer have the ``expected`` id, with their new id.

    A cached id may confirm the expected one (unless ``refresh``), but never refute it. Only leaders may
    refute it, those of the partitions ``at`` (none: of all): a leader of the existing topic knows its id,
    while any other broker may lag behind. The leaders are asked until they agree, and `RESPONSES_NEEDED`
    times before another id is believed: for that, ``deadline`` must leave time for two waits (``backoff``, or
    that of the client). A topic that is missing, or has no id, is not another one. Raises the error that kept
    the brokers from answering, or from agreeing.
    """
    if not expected or (not refresh and not _others(_known_ids(router.metadata(expected)), expected)):
        return {}
    limit = deadline or router.deadline()
    verdicts: list[dict[str, UUID]] = []
    answered: set[int] = set()

    def ask() -> dict[str, UUID]:
        router.refresh(expected, limit)
        told = _ask_leaders(router, expected, at, answered, limit)
        if any(one != told[0] for one in told):
            verdicts.clear()
            raise IncompleteResponseError(f"the brokers disagree about the ids of {', '.join(expected)}")
        verdicts[:] = [one for one in (*verdicts, *told) if one == told[0]]
        if told[0] and len(verdicts) < RESPONSES_NEEDED:
            raise IncompleteResponseError(f"{len(verdicts)} answers give other ids: {', '.join(told[0])}")
        return told[0]

    client = router.config
    return retry(
        ask,
        what=f"asking for the ids of {', '.join(expected)}",
        deadline=limit,
        backoff=backoff or Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms),
    )


def _ask_leaders(
    router: Router,
    expected: Mapping[str, UUID],
    at: Collection[TopicPartition],
    answered: set[int],
    deadline: Deadline,
) -> list[dict[str, UUID]]:
    """For each leader, the topics with another id by its response; a leader that cannot be asked is skipped
    if another answers, but not one of those that have ``answered`` before: it may be the one that disagrees.
    """
    failure: KafkaError | None = None
    told: list[dict[str, UUID]] = []
    for node_id in _leaders(router.snapshot, expected, at):
        try:
            told.append(_others(_ask_broker(router, node_id, expected, deadline), expected))
            answered.add(node_id)
        except (BrokerError, NetworkError) as error:
            # Without time, the same. One that is down leads no longer once another one is elected.
            if deadline.expired or node_id in answered:
                raise
            failure = error
    if not told:
        raise failure or NetworkError("the metadata name no brokers")
    return told


def _leaders(metadata: ClusterMetadata, names: Collection[str], at: Collection[TopicPartition]) -> list[int]:
    """The leaders of the partitions ``at``, or of all; all brokers if there are none."""
    led = {
        partition.leader
        for name in names
        if (topic := metadata.topics.get(name)) is not None
        for index, partition in topic.partitions.items()
        if not at or TopicPartition(name, index) in at
    }
    return sorted(node_id for node_id in metadata.brokers if node_id in led) or sorted(metadata.brokers)


def _others(told: Mapping[str, UUID], expected: Mapping[str, UUID]) -> dict[str, UUID]:
    return {name: told[name] for name, topic_id in expected.items() if told.get(name, topic_id) != topic_id}


def _known_ids(metadata: ClusterMetadata) -> dict[str, UUID]:
    return {name: topic.topic_id for name, topic in metadata.topics.items() if topic.topic_id is not None}


def _ask_broker(router: Router, node_id: int, topics: Collection[str], deadline: Deadline) -> dict[str, UUID]:
    return _known_ids(metadata_of(router.send_to(node_id, topics_request(topics), deadline), node_id))
