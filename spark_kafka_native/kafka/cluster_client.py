"""`Cluster`: reads brokers, topics, leaders and offsets of a cluster, and fetches once. It changes nothing;
`Admin` does.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar

from .cluster.metadata import ClusterMetadata, Partition, Topic
from .cluster.offsets import FoundOffset, LogBounds, list_bounds, list_offsets, offset_or_at
from .cluster.router import Router, check_shared
from .config.client_config import Bootstrap, ConsumerConfig, configs_from
from .consumer.fetch_once import FetchedOnce, fetch_once
from .model import Broker, OffsetAt, TopicPartition
from .network.connection import Connection
from .protocol.message import Request, Response
from .runtime.deadline import Deadline

R = TypeVar("R", bound=Response)
When = int | str | OffsetAt | datetime | timedelta
"""A timestamp in milliseconds; ``"earliest"``, ``"latest"`` or ``"max_timestamp"``; an `OffsetAt`; a time, or
a duration before now.
"""


class Cluster:
    """A view of one cluster. Any thread may use it; a context manager.

    Brokers, topics and leaders are at most ``metadata_max_age_ms`` old, because older metadata are requested
    again; `refresh` requests them at once. Every call takes at most ``timeout`` seconds (None:
    ``default_api_timeout_ms``) with all its retries, and raises `DeadlineExceededError`, `NetworkError`,
    `BrokerError` (with its error code: no such topic, not authorized) and their subclasses.
    """

    def __init__(self, router: Router, config: ConsumerConfig, *, owns_router: bool = True) -> None:
        self._router = router
        self._config = config
        self._owns_router = owns_router
        self._asked_at = float("-inf")

    @classmethod
    def connect(
        cls,
        bootstrap: Bootstrap | None = None,
        *,
        timeout: float | None = None,
        router: Router | None = None,
        **settings: Any,
    ) -> Self:
        """Connect to the cluster. ``bootstrap`` and keywords are as for `Consumer`; a ``router`` that is
        given is shared and stays open.
        """
        given = router.config if bootstrap is None and router is not None else bootstrap
        client, consumer = configs_from(given, settings, ConsumerConfig)
        check_shared(router, client)
        made = cls(router or Router(client), consumer, owns_router=router is None)
        try:
            made._metadata(made._deadline(timeout))
        except BaseException:
            made.close()
            raise
        return made

    def __repr__(self) -> str:
        known = self._router.snapshot
        return f"<Cluster {known.cluster_id}: {len(known.brokers)} brokers>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; calls in progress and later ones raise `ClientClosedError`. A router that
        was given stays open.
        """
        if self._owns_router:
            self._router.end()

    @property
    def router(self) -> Router:
        """Its metadata and connections, for requests of your own; may be shared with other clients."""
        return self._router

    @property
    def cluster_id(self) -> str | None:
        """The id that the cluster got when it was formatted. It never changes, so it is asked for only if no
        metadata was received yet.
        """
        return self._router.snapshot.cluster_id or self._metadata(self._deadline(None)).cluster_id

    def brokers(self, timeout: float | None = None) -> tuple[Broker, ...]:
        """The brokers that are up, by node id."""
        found = self._metadata(self._deadline(timeout)).brokers
        return tuple(found[node_id] for node_id in sorted(found))

    def controller(self, timeout: float | None = None) -> Broker | None:
        """The controller by the metadata: with KRaft any broker, which forwards requests to the
        controller.
        """
        metadata = self._metadata(self._deadline(timeout))
        return None if metadata.controller_id is None else metadata.brokers.get(metadata.controller_id)

    def topics(self, *, internal: bool = False, timeout: float | None = None) -> tuple[str, ...]:
        """The names of all topics that the client may describe; Kafka's internal topics only if
        ``internal``.
        """
        found = self._router.metadata(None, deadline=self._deadline(timeout)).topics.values()
        return tuple(
            sorted(one.name for one in found if not one.error_code and (internal or not one.internal))
        )

    def topic(self, name: str, timeout: float | None = None) -> Topic:
        """The metadata of a topic; waits briefly for one that was just created."""
        limit = self._deadline(timeout)
        return self._router.retry(
            lambda: self._router.metadata((name,), deadline=limit).topic(name),
            what=f"describing topic {name}",
            deadline=limit,
            topics=(name,),
        )

    def partitions(self, topic: str, timeout: float | None = None) -> tuple[Partition, ...]:
        """The partitions of a topic: leader, leader epoch, replicas and in-sync replicas."""
        found = self.topic(topic, timeout).partitions
        return tuple(found[index] for index in sorted(found))

    def leader(
        self, topic: str | TopicPartition, partition: int | None = None, timeout: float | None = None
    ) -> Broker:
        """The leader of a partition; waits for an election in progress."""
        tp, limit = _topic_partition(topic, partition), self._deadline(timeout)
        return self._router.retry(
            # Other threads may have newer metadata by then, which lack the broker.
            lambda: self._router.broker(self._router.leader(tp, deadline=limit).node_id),
            what=f"finding the leader of {tp}",
            deadline=limit,
            topics=(tp.topic,),
        )

    def refresh(self, topics: Collection[str] | None = None, timeout: float | None = None) -> None:
        """Refresh the metadata of ``topics`` or (None) of all topics."""
        self._router.metadata(topics, refresh=True, deadline=self._deadline(timeout))

    def connection(self, node_id: int, timeout: float | None = None) -> Connection:
        """A live connection to a broker of the cluster, shared with the other calls of this object."""
        return self._connection(node_id, self._deadline(timeout))

    def send(self, request: Request[R], node_id: int | None = None, timeout: float | None = None) -> R:
        """Send a request of your own to one broker, or to any, and return its response."""
        limit = self._deadline(timeout)
        if node_id is None:
            return self._router.send_any(request, limit)
        return self._connection(node_id, limit).send(request, deadline=limit)

    def list_offset(
        self, topic: str, partition: int, when: When = OffsetAt.LATEST, timeout: float | None = None
    ) -> FoundOffset:
        """The offset of a place in a partition, with its timestamp if it was found by one; ``offset`` is None
        if no record is as late. With ``isolation_level="read_committed"`` latest is the last stable offset.
        """
        tp = TopicPartition(topic, partition)
        return self._list({tp: _at(when)}, timeout)[tp]

    def offsets(self, topic: str, partition: int, timeout: float | None = None) -> LogBounds:
        """The first offset of a partition and the end of its log."""
        tp = TopicPartition(topic, partition)
        return list_bounds(
            self._router, [tp], isolation_level=self._config.isolation_level, deadline=self._deadline(timeout)
        )[tp]

    def beginning_offsets(
        self, topic_partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return self._ends(topic_partitions, OffsetAt.EARLIEST, timeout)

    def end_offsets(
        self, topic_partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The end of each partition's log: the offset that the next record gets."""
        return self._ends(topic_partitions, OffsetAt.LATEST, timeout)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, When], timeout: float | None = None
    ) -> dict[TopicPartition, FoundOffset]:
        """For each partition the first record at or after a time; ``offset`` is None if there is none."""
        return self._list({tp: _at(when) for tp, when in times.items()}, timeout)

    def fetch(self, topic: str, partition: int, offset: int, timeout: float | None = None) -> FetchedOnce:
        """Fetch once the records from ``offset`` on; see `FetchedOnce` and `fetch_once`."""
        tp = TopicPartition(topic, partition)
        return fetch_once(self._router, tp, offset, self._config, self._deadline(timeout))

    def _connection(self, node_id: int, limit: Deadline) -> Connection:
        self._metadata(limit)
        return self._router.connection(node_id, limit)

    def _metadata(self, limit: Deadline) -> ClusterMetadata:
        """The known metadata of the brokers, requested again if they are old."""
        age_s = time.monotonic() - self._asked_at
        if age_s * 1000 < self._router.config.metadata_max_age_ms:
            return self._router.metadata((), deadline=limit)
        found = self._router.metadata((), refresh=True, deadline=limit)
        self._asked_at = time.monotonic()
        return found

    def _list(
        self, places: Mapping[TopicPartition, OffsetAt], timeout: float | None
    ) -> dict[TopicPartition, FoundOffset]:
        level = self._config.isolation_level
        return list_offsets(self._router, places, isolation_level=level, deadline=self._deadline(timeout))

    def _ends(
        self, topic_partitions: Collection[TopicPartition], at: OffsetAt, timeout: float | None
    ) -> dict[TopicPartition, int]:
        found = self._list(dict.fromkeys(topic_partitions, at), timeout)
        return {tp: one.offset or 0 for tp, one in found.items()}

    def _deadline(self, timeout: float | None) -> Deadline:
        return self._router.deadline(None if timeout is None else timeout * 1000)


def _at(when: When) -> OffsetAt:
    if isinstance(when, int) and not isinstance(when, bool):
        return OffsetAt.timestamp(when)
    at = offset_or_at(when)
    assert isinstance(at, OffsetAt), "only numbers are offsets"
    return at


def _topic_partition(topic: str | TopicPartition, partition: int | None) -> TopicPartition:
    if isinstance(topic, str):
        if partition is None:
            raise ValueError("which partition? leader(topic, partition) or leader(TopicPartition(...))")
        return TopicPartition(topic, partition)
    return TopicPartition(*topic)
