"""`Markers` and `Intents`: where commit markers and intents are kept. As offsets of consumer groups without
members (`GroupMarkers`, `GroupIntents`), or as records of a compacted topic, where they never expire
(`MarkerTopic`, `TopicIntents`): the key of a marker is the transactional id, that of an intent the job's
name.

A driver takes the transactional id of the query's drivers before it reads the last intent, and writes its own
in a transaction of that id. So it replaces the one that it has read, or fails: another driver has written one
in between.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from ...kafka.cluster.router import Router
from ...kafka.config.client_config import ClientConfig, TransactionConfig
from ...kafka.error_code import ErrorCode
from ...kafka.errors import (
    BrokerError,
    ConfigError,
    DeadlineExceededError,
    KafkaError,
    is_about_missing_partition,
)
from ...kafka.group.committed_offsets import all_committed_offsets, committed_offsets
from ...kafka.model import GroupMembership, OffsetToCommit, TopicPartition
from ...kafka.producer.errors import DeliveryError, TransactionAbortableError
from ...kafka.producer.sending.transaction_requests import (
    OpenTransaction,
    add_offsets,
    commit_offsets_in,
    end_transaction,
    find_version,
    init_producer_id,
)
from ...kafka.runtime.deadline import Deadline
from .commit_markers import UNREADABLE, BatchIntent, CommitMarker, ReplayError, drivers_name
from .topics import gone_topics
from .write_options import WriteOptions

if TYPE_CHECKING:
    from ...kafka.producer.transactional_producer import TransactionalProducer


M = TypeVar("M")

_LOG: Final = logging.getLogger("spark_kafka_native")

_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})

_RENEWAL_MS: Final = 5_000
"""For one renewal on the driver: other tasks wait for it."""

_PLACES_MS: Final = 10_000
"""To find the places of one: enough for `gone_topics` to be sure."""


class Intents(Protocol):
    """The intents of a query, taken by this driver: an earlier driver can't replace them any more."""

    def last(self, where: Collection[TopicPartition]) -> BatchIntent | None:
        """The last one."""

    def replace(
        self, before: BatchIntent | None, intent: BatchIntent, where: Collection[TopicPartition]
    ) -> None:
        """This one is there for good when this returns. Raises `TransactionFatalError` where another driver
        has taken the intents, `TransactionAbortableError` where ``before`` was not the last one: a broker
        that was deposed has said so."""

    def renew(self, last: BatchIntent) -> None:
        """Write the last one once more where it is kept, before it expires."""

    def close(self) -> None:
        """Not needed any more."""


class _ReplacedError(TransactionAbortableError):
    """The answer about the last intent, or marker, was too old."""


def replaced(what: str, before: object, now: object) -> TransactionAbortableError:
    """The error where that has changed."""
    return _ReplacedError(
        f"the last {what} was said to be {before}, and it is {now}: a broker answered that was deposed"
    )


def is_by_another(error: BaseException) -> bool:
    """True if another run is at work: it took the transactional id, or replaced the intent. Any other
    refusal, such as that of an ACL, names its own cause."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, _ReplacedError):
            return True
        if isinstance(seen, BrokerError) and seen.error_code in _FENCED:
            return True
        seen = seen.__cause__
    return False


def find_offsets(
    router: Router, group_id: str, where: Collection[TopicPartition], deadline: Deadline | None
) -> dict[TopicPartition, OffsetToCommit]:
    """All committed offsets of the group.

    One that is being committed is waited for at ``where`` and wherever the group has one already: asked for
    everything, a coordinator leaves out pending offsets of partitions without a committed one.
    """
    found = all_committed_offsets(router, group_id, deadline)
    unseen = [one for one in where if one not in found]
    if unseen and any(
        at is not None for at in committed_offsets(router, group_id, unseen, deadline).values()
    ):
        found = all_committed_offsets(router, group_id, deadline)
    return found


def places_of_last(router: Router, group_id: str, deadline: Deadline | None = None) -> list[TopicPartition]:
    """Where a group keeps the markers or intents of its last micro-batch. A coordinator may still have some
    of topics that do not exist any more, and would not take others in there. A topic with another error may
    be back when the markers expire: the coordinator decides."""
    limit = deadline or router.deadline()
    found = decided_offsets(router, group_id, limit)
    last = max((one.offset for one in found.values()), default=None)
    places = [where for where, one in found.items() if one.offset == last]
    gone = gone_topics(router, {where.topic for where in places}, limit)
    return [where for where in places if where.topic not in gone]


def decided_offsets(
    router: Router, group_id: str, deadline: Deadline | None = None
) -> dict[TopicPartition, OffsetToCommit]:
    """All committed offsets of the group, without waiting for those that are being committed."""
    return all_committed_offsets(router, group_id, deadline, stable=False)


class GroupIntents:
    """`Intents` that are offsets of a group."""

    def __init__(self, router: Router, job: str, timeout_ms: int, deadline: Deadline) -> None:
        self._router = router
        self._job = job
        self._deadline = deadline
        name = drivers_name(job)
        # A fresh epoch for each intent, as the first protocol needs it; the second doesn't mind.
        self._transaction = _take_over(router, name, timeout_ms, deadline)

    def last(self, where: Collection[TopicPartition]) -> BatchIntent | None:
        """As `Intents.last`."""
        return BatchIntent.newest(find_offsets(self._router, self._job, where, self._deadline), self._job)

    def replace(
        self, before: BatchIntent | None, intent: BatchIntent, where: Collection[TopicPartition]
    ) -> None:
        """As `Intents.replace`."""
        places = {*where}
        if before is not None and before.batch_id == intent.batch_id:
            # Committed rows of it may be in topics that only an earlier run has written to.
            places.update(places_of_last(self._router, self._job, self._deadline))
        self._put(before, intent, places, self._deadline)

    def renew(self, last: BatchIntent) -> None:
        """As `Intents.renew`."""
        limit = self._deadline.within_ms(_PLACES_MS)
        if where := places_of_last(self._router, self._job, limit):
            self._put(last, last, where, self._deadline.within_ms(_RENEWAL_MS))

    def _put(
        self,
        before: BatchIntent | None,
        intent: BatchIntent,
        places: Collection[TopicPartition],
        deadline: Deadline,
    ) -> None:
        router, job, offsets = self._router, self._job, dict.fromkeys(places, intent.offset())
        now = _commit_after(before, BatchIntent.newest, router, self._transaction, job, offsets, deadline)
        if now != before:
            raise replaced("intent", before, now)
        # Coordinators up to Kafka 3.x apply it a moment later. Nothing is committed that it speaks of before
        # others can see it.
        committed_offsets(router, job, places, deadline)

    def close(self) -> None:
        """There is nothing to close."""


def _take_over(router: Router, name: str, timeout_ms: int, deadline: Deadline) -> OpenTransaction:
    """A transaction of ``name``, not begun yet; an open one is aborted."""
    version = find_version(router, name, 2, deadline)
    identity = init_producer_id(router, name, timeout_ms, None, deadline)
    return OpenTransaction(
        transactional_id=name,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        version=version,
    )


def _commit_after(  # noqa: PLR0913 - all that one commit takes
    last: M | None,
    newest: Callable[[Mapping[TopicPartition, OffsetToCommit], str], M | None],
    router: Router,
    transaction: OpenTransaction,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetToCommit],
    deadline: Deadline,
) -> M | None:
    """Commit ``offsets`` in a transaction that has nothing else, if ``last`` is the `newest` of the group;
    returns that, as the coordinator says that has accepted them: it knows those committed before."""
    if transaction.version == 1:
        add_offsets(router, transaction, group_id, deadline)
    commit_offsets_in(router, transaction, GroupMembership(group_id=group_id), offsets, deadline)
    now = newest(decided_offsets(router, group_id, deadline), group_id)
    end_transaction(router, transaction, commit=now == last, deadline=deadline)
    return now


class FoundMarker(NamedTuple):
    """A task's last marker."""

    marker: CommitMarker | None
    is_renewed: bool
    """False if it may expire before an intent that is written now: such an intent is not to be renewed."""


class Markers(Protocol):
    """What a task commits together with its rows, and what the driver is about to commit."""

    needs_place: bool
    """True if `last` waits for pending markers only at the partitions it is given."""

    def check(self) -> None:
        """Raises `ConfigError` where markers can't be kept there."""

    def last(
        self, name: str, where: Collection[TopicPartition], deadline: Deadline | None = None
    ) -> CommitMarker | None:
        """The last marker of a task that was committed, once nothing of it is open any more; see
        `find_offsets`."""

    def add(
        self,
        producer: TransactionalProducer,
        name: str,
        marker: CommitMarker,
        where: Collection[TopicPartition],
    ) -> CommitMarker | None:
        """Put it into the open transaction. ``where`` has a partition of each topic that keeps it: Kafka
        deletes the offsets of a group together with their topic.

        Returns the last one that was committed, as the broker says that has taken this one in: `last` may
        have been answered by one that was deposed and did not know it yet."""

    def places(self, name: str) -> list[TopicPartition]:
        """Where the last marker is kept, to be committed there once more before it expires; none if it does
        not."""

    def take_over(
        self, name: str, where: Collection[TopicPartition], timeout_ms: int, deadline: Deadline
    ) -> FoundMarker:
        """On the driver: end for good what a task has left open; its last marker, as `last`. One that may
        expire is committed once more, if that can be done shortly."""

    def take_intents(self, job: str, timeout_ms: int, deadline: Deadline) -> Intents:
        """The intents of a query; an earlier driver can't replace them any more."""


def find_markers(router: Router, options: WriteOptions) -> Markers:
    """Where this write has its markers."""
    once = options.exactly_once
    if once is None or once.marker_topic is None:
        return GroupMarkers(router)
    return MarkerTopic(router, once.marker_topic, options)


class GroupMarkers:
    """`Markers` that are offsets of consumer groups without members."""

    needs_place = True

    def __init__(self, router: Router) -> None:
        self._router = router

    def check(self) -> None:
        """Any cluster has groups."""

    def last(
        self, name: str, where: Collection[TopicPartition], deadline: Deadline | None = None
    ) -> CommitMarker | None:
        """As `Markers.last`."""
        return CommitMarker.newest(find_offsets(self._router, name, where, deadline), name)

    def add(
        self,
        producer: TransactionalProducer,
        name: str,
        marker: CommitMarker,
        where: Collection[TopicPartition],
    ) -> CommitMarker | None:
        """As `Markers.add`."""
        producer.send_offsets(dict.fromkeys(where, marker.offset()), name)
        return CommitMarker.newest(decided_offsets(self._router, name), name)

    def places(self, name: str) -> list[TopicPartition]:
        """As `Markers.places`."""
        return places_of_last(self._router, name)

    def take_over(
        self, name: str, where: Collection[TopicPartition], timeout_ms: int, deadline: Deadline
    ) -> FoundMarker:
        """As `Markers.take_over`."""
        transaction = _take_over(self._router, name, timeout_ms, deadline)
        marker = self.last(name, where, deadline)
        if marker is None:
            return FoundMarker(None, True)
        try:
            now = self._renew(marker, transaction, deadline)
        except KafkaError as error:  # the marker is there
            _LOG.info("the marker of %s could not be renewed: %s", name, error)
            return FoundMarker(marker, False)
        if now != marker:
            raise replaced(f"marker of {name}", marker, now)
        return FoundMarker(marker, True)

    def _renew(
        self, marker: CommitMarker, transaction: OpenTransaction, deadline: Deadline
    ) -> CommitMarker | None:
        """The last one, as the broker says that has taken this one in."""
        router, name = self._router, transaction.transactional_id
        limit = deadline.within_ms(_PLACES_MS)
        again = dict.fromkeys(places_of_last(router, name, limit), marker.offset())
        if not again:
            return marker  # all of its rows have gone with their topics
        limit = deadline.within_ms(_RENEWAL_MS)
        return _commit_after(marker, CommitMarker.newest, router, transaction, name, again, limit)

    def take_intents(self, job: str, timeout_ms: int, deadline: Deadline) -> Intents:
        """As `Markers.take_intents`."""
        return GroupIntents(self._router, job, timeout_ms, deadline)


_ABORT_S: Final = 5.0
"""How long a failed task tries to abort: an open transaction holds up read_committed readers."""


def close_producer(producer: TransactionalProducer) -> None:
    """Abort an open transaction and close; a failure is logged only."""
    try:
        producer.close(timeout=_ABORT_S)
    except KafkaError as error:
        _LOG.warning("%r could not be closed: %s", producer, error)


def check_cleanup_policy(topic: str, policy: str | None) -> None:
    """Raises `ConfigError` if a marker topic with this ``cleanup.policy`` would lose markers."""
    found = (policy or "unknown").replace(" ", "")
    if found != "compact":
        raise ConfigError(
            f"transactionMarkerTopic: topic {topic} has cleanup.policy={found}, so that markers would be "
            "deleted that are still needed: set cleanup.policy=compact, without delete"
        )


_PARTITION: Final = 0
"""Of a marker topic. Not by the key: it would be another one as soon as the topic has more partitions."""

_checked: set[tuple[ClientConfig, str, UUID | None]] = set()
"""Of this process: marker topics, and their ids where brokers have them."""


class MarkerTopic:
    """`Markers` in partition 0 of a compacted topic."""

    needs_place = False

    def __init__(self, router: Router, topic: str, options: WriteOptions) -> None:
        self._router = router
        self._options = options
        self._place = TopicPartition(topic, _PARTITION)
        once = options.exactly_once
        self._scan_ms = None if once is None else once.transaction_timeout_ms

    def check(self) -> None:
        """Raises `ConfigError` where the topic does not exist, or does not keep its records; asked once in a
        process, and again if it was created anew. A broker may hear of a topic later than others."""
        topic = self._place.topic
        deadline = self._router.deadline(self._options.producer.max_block_ms)
        found = self._router.metadata((topic,), refresh=True, deadline=deadline).topics.get(topic)
        place = None
        if found is not None and not found.error_code:
            place = self._router.config, topic, found.topic_id
        if place in _checked:
            return
        from ...kafka.cluster.describe_configs import describe_topic_configs

        create = "create it with cleanup.policy=compact; one partition is enough"
        try:
            policy = self._router.retry(
                lambda: describe_topic_configs(self._router, [topic], deadline, names=["cleanup.policy"]),
                what=f"asking for the configs of topic {topic}",
                deadline=deadline,
                topics=(topic,),
            )
        except (BrokerError, DeadlineExceededError) as error:
            if not is_about_missing_partition(error):
                raise
            raise ConfigError(f"transactionMarkerTopic: topic {topic} does not exist: {create}") from error
        check_cleanup_policy(topic, policy[topic].get("cleanup.policy"))
        if place is not None:  # else it could be any topic of that name
            _checked.add(place)

    def last(
        self,
        name: str,
        where: Collection[TopicPartition],  # noqa: ARG002 - all have one place
        deadline: Deadline | None = None,
    ) -> CommitMarker | None:
        """As `Markers.last`."""
        # A key without a marker is looked for in the whole topic.
        return self._last(name, _read_marker, deadline or self._router.deadline(self._scan_ms))

    def add(
        self,
        producer: TransactionalProducer,
        name: str,
        marker: CommitMarker,
        where: Collection[TopicPartition],  # noqa: ARG002
    ) -> CommitMarker | None:
        """As `Markers.add`."""
        value = {"batch": marker.batch_id} | marker.to_json()
        deadline = self._router.deadline(self._scan_ms)
        offset = self._write(producer, name, value, deadline)
        return self._last(name, _read_marker, deadline, offset)

    def places(self, name: str) -> list[TopicPartition]:  # noqa: ARG002
        """As `Markers.places`."""
        return []

    def take_over(
        self, name: str, where: Collection[TopicPartition], timeout_ms: int, deadline: Deadline
    ) -> FoundMarker:
        """As `Markers.take_over`."""
        init_producer_id(self._router, name, timeout_ms, None, deadline)
        return FoundMarker(self.last(name, where, deadline), True)

    def take_intents(self, job: str, timeout_ms: int, deadline: Deadline) -> Intents:
        """As `Markers.take_intents`."""
        return TopicIntents(self, job, timeout_ms, deadline)

    def last_intent(self, job: str, deadline: Deadline, until: int | None = None) -> BatchIntent | None:
        """As `Intents.last`; with ``until``, the last one before this offset."""
        return self._last(
            job, lambda value: BatchIntent.from_json(int(value["batch"]), value), deadline, until
        )

    def write_intent(
        self, producer: TransactionalProducer, job: str, intent: BatchIntent, deadline: Deadline
    ) -> int:
        """In a transaction that stays open. Returns its offset."""
        value = {"batch": intent.batch_id} | intent.to_json()
        producer.begin(timeout=deadline)
        return self._write(producer, job, value, deadline)

    def producer(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        """One that writes there."""
        from ...kafka.producer.transactional_producer import TransactionalProducer

        settings = TransactionConfig(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        return TransactionalProducer(
            self._router.config, settings, self._options.producer, router=self._router
        )

    def _write(
        self, producer: TransactionalProducer, key: str, value: dict[str, Any], deadline: Deadline
    ) -> int:
        """A record; its offset, once it is in the log."""
        sent = producer.send(self._place.topic, json.dumps(value), key=key, partition=_PARTITION)
        producer.flush(timeout=deadline)
        try:
            offset = sent.result(0).offset
        except DeliveryError as error:
            raise TransactionAbortableError(f"abort the transaction and begin another: {error}") from error
        except TimeoutError as error:
            raise DeadlineExceededError(f"{self._place}: the record of {key} is not confirmed") from error
        if offset is None:
            raise KafkaError(f"{self._place}: the leader did not say which offset the record of {key} has")
        return offset

    def _last(
        self,
        key: str,
        of: Callable[[dict[str, Any]], M],
        deadline: Deadline,
        until: int | None = None,
    ) -> M | None:
        # Late: the driver commits each micro-batch in a process of its own, which imports what it needs.
        from ...kafka.consumer.fetch_once import last_committed_value

        found = last_committed_value(self._router, self._place, key.encode(), deadline, until=until)
        if found is None:
            return None
        try:
            return of(json.loads(found))
        except UNREADABLE as error:
            raise ReplayError(
                f"topic {self._place.topic} has a record with the key {key} that is no commit marker "
                f"({found[:100]!r}): somebody else writes there; choose another transactionMarkerTopic"
            ) from error


def _read_marker(value: dict[str, Any]) -> CommitMarker:
    return CommitMarker.from_json(int(value["batch"]), value)


class TopicIntents:
    """`Intents` that are records of a marker topic."""

    def __init__(self, markers: MarkerTopic, job: str, timeout_ms: int, deadline: Deadline) -> None:
        self._markers = markers
        self._job = job
        self._deadline = deadline
        self._producer = markers.producer(drivers_name(job), timeout_ms)
        try:
            self._producer.initialize(timeout=deadline)
        except BaseException:
            self.close()
            raise

    def last(self, where: Collection[TopicPartition]) -> BatchIntent | None:  # noqa: ARG002 - all have one place
        """As `Intents.last`."""
        return self._markers.last_intent(self._job, self._deadline)

    def replace(
        self,
        before: BatchIntent | None,
        intent: BatchIntent,
        where: Collection[TopicPartition],  # noqa: ARG002
    ) -> None:
        """As `Intents.replace`."""
        offset = self._markers.write_intent(self._producer, self._job, intent, self._deadline)
        if (now := self._markers.last_intent(self._job, self._deadline, offset)) != before:
            raise replaced("intent", before, now)  # `close` aborts
        self._producer.commit(timeout=self._deadline)

    def renew(self, last: BatchIntent) -> None:
        """It does not expire."""

    def close(self) -> None:
        """End the producer."""
        close_producer(self._producer)
