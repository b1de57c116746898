"""`TransactionAdmin`: describe transactions, and abort hanging ones (KIP-664)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..cluster import offsets
from ..cluster.coordinators import send_to_coordinator
from ..cluster.fan_out import ask_each_partition, ask_every_broker
from ..cluster.router import CoordinatorKey
from ..error_code import ErrorCode
from ..errors import BrokerError, IncompleteResponseError, KafkaError, NetworkError, PartialAnswerError
from ..model import TopicPartition
from ..protocol.api.transaction_admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    TopicRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from ..runtime.deadline import Deadline, Timeout
from .family import AdminFamily, ItemResult, before_sending, names_of, noting_lost, refuse, with_lost

HANGING_AFTER_MS = 15 * 60_000
"""The default maximum of a transaction's timeout (``transaction.max.timeout.ms`` of brokers): the coordinator
of a transaction that is open for longer has forgotten it.
"""
_NOT_OVER = frozenset(("Ongoing", "PrepareCommit", "PrepareAbort"))


MOVING_S = 2.0
"""How long a coordinator that moves may seem to know no transactions, before it says that it loads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id in a list."""

    transactional_id: str
    producer_id: int
    state: str
    """The name of the state: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """The last transaction of a transactional id, from its coordinator."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    """Milliseconds since the epoch; None if no transaction is open."""
    topic_partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """A producer id in the state of a partition."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int | None
    """The start of its open transaction; None if no transaction is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingTransaction:
    """A transaction that is open in a partition, and that no coordinator will end."""

    topic_partition: TopicPartition
    producer: ActiveProducer


class TransactionAdmin(AdminFamily):
    """Transactions."""

    def list_transactions(
        self,
        timeout: Timeout = None,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
    ) -> list[TransactionListing]:
        """All transactional ids (in these states, of these producers). Raises `BrokerError`."""
        limit = self._limit(timeout)
        request = ListTransactionsRequest(
            state_filters=names_of(states, "states"), producer_id_filters=list(producer_ids)
        )

        def read(node_id: int, response: ListTransactionsResponse) -> list[TransactionListing]:
            refuse(
                ItemResult(f"broker {node_id}", response.error_code), "listing transactions of", "Describe"
            )
            if response.unknown_state_filters:
                raise ValueError(f"there is no state {', '.join(response.unknown_state_filters)}")
            return [
                TransactionListing(
                    transactional_id=one.transactional_id,
                    producer_id=one.producer_id,
                    state=one.transaction_state,
                )
                for one in response.transaction_states
            ]

        # By id, as in `list_groups`.
        listed, _ = ask_every_broker(self._router, request, read, what="listing transactions", deadline=limit)
        return [one for _, one in sorted({one.transactional_id: one for one in listed}.items())]

    def describe_transactions(
        self, transactional_ids: Collection[str], timeout: Timeout = None
    ) -> dict[str, TransactionDescription]:
        """The description of each id from its coordinator. Raises `BrokerError`
        (TRANSACTIONAL_ID_NOT_FOUND).
        """
        limit = self._limit(timeout)
        return {
            name: send_to_coordinator(
                self._router,
                CoordinatorKey.transaction(name),
                DescribeTransactionsRequest(transactional_ids=[name]),
                lambda response, name=name: _read_transaction(response, name),  # type: ignore[misc]
                limit,
            )
            for name in names_of(transactional_ids, "transactional ids")
        }

    def describe_producers(
        self, topic_partitions: Collection[TopicPartition], timeout: Timeout = None
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """The producers in the state of each partition, from its leader.

        Raises `PartialAnswerError` with those of the other partitions if one does not answer (without a
        leader, for example) within seconds, `BrokerError` and the like if none does.
        """
        limit = self._limit(timeout)
        wanted = [TopicPartition(*tp) for tp in topic_partitions]

        def ask(
            missing: list[TopicPartition], found: dict[TopicPartition, list[ActiveProducer]]
        ) -> dict[TopicPartition, KafkaError]:
            return self._ask_for_producers(missing, found, limit)

        found, failed = ask_each_partition(
            self._router,
            wanted,
            ask,
            what="describing producers",
            deadline=limit,
            give_up_after_ms=offsets.MISSING_MS,
        )
        if failed:
            raise PartialAnswerError(found, failed)
        return found

    def _ask_for_producers(
        self,
        wanted: list[TopicPartition],
        found: dict[TopicPartition, list[ActiveProducer]],
        limit: Deadline,
    ) -> dict[TopicPartition, KafkaError]:
        """One round: put the responses into ``found``; returns the errors of the other partitions."""
        failed = self._ask_leaders(
            wanted, _describe_producers, lambda response: _read_producers(response, found), limit
        )
        lacks = "the leader's response lacks it"
        return {
            tp: failed.get(tp) or IncompleteResponseError(f"producers of {tp}: {lacks}")
            for tp in wanted
            if tp not in found
        }

    def hanging_transactions(
        self,
        topics: Collection[str],
        timeout: Timeout = None,
        *,
        open_for_ms: int = HANGING_AFTER_MS,
    ) -> list[HangingTransaction]:
        """Transactions in ``topics`` that are open for longer, and that no coordinator knows: readers of
        committed records wait for them without end.

        Needs Describe on all transactional ids: brokers leave others out of their lists, so that a live
        transaction looks like one that no coordinator knows. Aborting it would lose a part of its records.

        Raises `PartialAnswerError` with those that were found if a partition does not answer, `BrokerError`.
        """
        limit = self._limit(timeout)
        all_of_them = self._all_partitions(names_of(topics, "topics"), limit)
        before_ms = int(time.time() * 1000) - open_for_ms
        open_ones, failed = self._open_transactions(all_of_them, limit)
        hanging = [one for one in open_ones if one.producer.last_timestamp_ms <= before_ms]
        # Twice: the brokers answer one after the other, and a coordinator that moves to one that was asked
        # already is not found, nor is one that has not begun to load its transactions.
        hanging = self._unknown_to_coordinators(hanging, limit) if hanging else []
        if hanging:
            time.sleep(min(MOVING_S, limit.remaining_ms / 1000 / 2))  # the other half is for the answers
            hanging = self._unknown_to_coordinators(hanging, limit)
        if hanging:  # unless they have ended, or gone on, since their leaders were asked
            still_open, failed_now = self._open_transactions({one.topic_partition for one in hanging}, limit)
            hanging = [one for one in hanging if one in still_open]
            failed |= failed_now
        if failed:
            raise PartialAnswerError(hanging, failed)
        return hanging

    def _open_transactions(
        self, topic_partitions: Collection[TopicPartition], limit: Deadline
    ) -> tuple[list[HangingTransaction], dict[TopicPartition, KafkaError]]:
        """The open transactions of these partitions, and the errors of those that do not answer."""
        failed: dict[TopicPartition, KafkaError] = {}
        try:
            described = self.describe_producers(topic_partitions, limit)
        except PartialAnswerError as error:
            described, failed = error.found, error.failed
        open_ones = [
            HangingTransaction(topic_partition=tp, producer=producer)
            for tp, producers in described.items()
            for producer in producers
            if producer.transaction_start_offset is not None
        ]
        return open_ones, failed

    def _unknown_to_coordinators(
        self, open_ones: list[HangingTransaction], limit: Deadline
    ) -> list[HangingTransaction]:
        known = self.list_transactions(limit, producer_ids={one.producer.producer_id for one in open_ones})
        ids = {one.producer_id: one.transactional_id for one in known}
        told: dict[str, TransactionDescription] = {}
        for name in ids.values():
            try:
                told |= self.describe_transactions([name], limit)
            except BrokerError as error:
                if (
                    error.error_code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
                ):  # expired since it was listed
                    raise
        return [one for one in open_ones if not _is_known(one, ids, told)]

    def abort_hanging(
        self, topic_partition: TopicPartition, start_offset: int, timeout: Timeout = None
    ) -> bool:
        """Abort the transaction that begins at ``start_offset`` in a partition (`hanging_transactions`).

        Returns True if the leader said that it is aborted; False if that response was lost and the
        transaction is no longer open: it was aborted then, or its producer has ended it.

        Only for hanging transactions: one that its producer continues would lose a part of its records.
        Raises `ValueError` if no such transaction is open, `BrokerError` if the leader refuses.
        """
        limit = self._limit(timeout)
        tp = TopicPartition(*topic_partition)

        is_asked, lost = False, list[NetworkError]()

        def attempt() -> bool:
            nonlocal is_asked
            producers = self.describe_producers([tp], limit)[tp]
            found = [one for one in producers if one.transaction_start_offset == start_offset]
            if not found:
                if is_asked:
                    return False
                raise ValueError(f"no transaction is open in {tp} that begins at offset {start_offset}")
            node_id = self._router.leader(tp, limit).node_id
            is_asked = True
            with noting_lost(lost):
                with before_sending():
                    self._router.connection(node_id, limit)
                response = self._router.send_to(node_id, _abort(tp, found[0]), limit)
            codes = [
                one.error_code
                for marker in response.markers
                for topic in marker.topics
                for one in topic.partitions
                if (topic.name, one.partition_index) == tp
            ]
            where, doing = f"{tp} from offset {start_offset}", "aborting the transaction in"
            if not codes:
                raise IncompleteResponseError(f"{doing} {where}: the response lacks it")
            refuse(ItemResult(where, codes[0]), doing, "ClusterAction")
            return True

        try:
            return self._router.retry(attempt, what=f"aborting in {tp}", deadline=limit, topics=[tp.topic])
        except KafkaError as error:
            raise with_lost(error, lost) from error.__cause__

    def _all_partitions(self, topics: list[str], limit: Deadline) -> list[TopicPartition]:
        metadata = self._router.metadata(topics, refresh=True, deadline=limit)
        return [TopicPartition(name, index) for name in topics for index in metadata.topic(name).partitions]


def _is_known(
    hanging: HangingTransaction, ids: dict[int, str], told: dict[str, TransactionDescription]
) -> bool:
    """True if a coordinator has this same transaction open: then it will end it."""
    transaction = told.get(ids.get(hanging.producer.producer_id, ""))
    return (
        transaction is not None
        and transaction.state in _NOT_OVER
        and hanging.topic_partition in transaction.topic_partitions
    )


def _read_transaction(response: DescribeTransactionsResponse, name: str) -> TransactionDescription:
    for one in response.transaction_states:
        if one.transactional_id == name:
            refuse(ItemResult(name, one.error_code), "describing the transaction of", "Describe")
            return TransactionDescription(
                transactional_id=name,
                state=one.transaction_state,
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                timeout_ms=one.transaction_timeout_ms,
                started_ms=one.transaction_start_time_ms if one.transaction_start_time_ms >= 0 else None,
                topic_partitions=tuple(
                    TopicPartition(topic.topic, partition)
                    for topic in one.topics
                    for partition in topic.partitions
                ),
            )
    raise IncompleteResponseError(f"describing the transaction of {name}: the response lacks it")


def _describe_producers(topic_partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in topic_partitions:
        topics[tp.topic].append(tp.partition)
    return DescribeProducersRequest(
        topics=[TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
    )


def _read_producers(
    response: DescribeProducersResponse, found: dict[TopicPartition, list[ActiveProducer]]
) -> dict[TopicPartition, KafkaError]:
    """Put the results in the response into ``found``; returns the errors."""
    failed: dict[TopicPartition, KafkaError] = {}
    for topic in response.topics:
        for one in topic.partitions:
            tp = TopicPartition(topic.name, one.partition_index)
            try:
                refuse(ItemResult(tp, one.error_code, one.error_message), "producers of", "Read")
                found[tp] = [_producer(state) for state in one.active_producers]
            except BrokerError as error:
                failed[tp] = error
    return failed


def _producer(state: ProducerState) -> ActiveProducer:
    start = state.current_txn_start_offset
    return ActiveProducer(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_timestamp_ms=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        transaction_start_offset=start if start >= 0 else None,
    )


def _abort(topic_partition: TopicPartition, producer: ActiveProducer) -> WriteTxnMarkersRequest:
    topic = WritableTxnMarkerTopic(name=topic_partition.topic, partition_indexes=[topic_partition.partition])
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[topic],
        # -1 is the leader's response for a producer without a transaction marker.
        coordinator_epoch=max(0, producer.coordinator_epoch),
    )
    return WriteTxnMarkersRequest(markers=[marker])
