"""`TransactionCluster`: a scripted broker with a transaction coordinator and a group coordinator in the
manner of Kafka's, for either protocol. A naive model: the contents and the end of each transaction are kept
in full.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api import all_requests
from spark_kafka_native.kafka.protocol.api.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from spark_kafka_native.kafka.protocol.api.find_coordinator import (
    GROUP_KEY_TYPE,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafka_native.kafka.protocol.api.produce import PartitionProduceResponse, ProduceRequest
from spark_kafka_native.kafka.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from spark_kafka_native.kafka.records.batch import HEADER
from spark_kafka_native.kafka.records.decode import decode_record_set
from support.brokers.produce_cluster import ProduceCluster
from support.brokers.scripted_broker import HangUp, Late

E = ErrorCode


@dataclass
class Held:
    """What the coordinator keeps of a transactional id."""

    producer_id: int
    epoch: int = -1
    last_epoch: int = -1
    state: str = "empty"
    """empty, ongoing, committed or aborted"""
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    batches: list[tuple[TopicPartition, list[bytes]]] = field(default_factory=list)
    offsets: dict[tuple[str, TopicPartition], tuple[int, str]] = field(default_factory=dict)


class TransactionCluster(ProduceCluster):
    """One broker that is leader and coordinator of everything. ``level`` is its transaction.version. Of
    several ``brokers``, the last one coordinates the groups."""

    def __init__(self, level: int = 2, brokers: int = 1) -> None:
        super().__init__(brokers)
        self.level = level
        self.held: dict[str, Held] = {}
        self.committed: dict[TopicPartition, list[bytes]] = defaultdict(list)
        self.offsets: dict[tuple[str, TopicPartition], tuple[int, str]] = {}
        self.ended: list[tuple[str, int, bool]] = []
        """Transactional id, epoch and whether it was a commit, of each that had anything in it."""
        self._producing: tuple[str | None, int] = (None, 0)
        self.handlers: dict[Any, Any] = {
            InitProducerIdRequest: self._init,
            AddPartitionsToTxnRequest: self._add_partitions,
            AddOffsetsToTxnRequest: self._add_offsets,
            TxnOffsetCommitRequest: self._offset_commit,
            EndTxnRequest: self._end,
            ProduceRequest: self._produce(self.producer(1)),
        }
        for request, handler in self.handlers.items():
            self[brokers if request is TxnOffsetCommitRequest else 1].on(request, handler)
        for broker in self.brokers.values():
            broker.on(FindCoordinatorRequest, self._find)
            broker.on(ApiVersionsRequest, self._versions)

    # Faults: what a test pushes for one request.

    def lost(self, request: Any) -> Any:
        """Applied, and the answer is lost."""

        def answer(asked: Any, version: int) -> Any:
            self.handlers[request](asked, version)
            return HangUp

        return answer

    def late(self, request: Any, seconds: float) -> Any:
        """Applied at once, answered late."""
        return lambda asked, version: Late(seconds, self.handlers[request](asked, version))

    def delayed(self, request: Any, seconds: float) -> Any:
        """It arrives late: applied and answered late."""
        return Late(seconds, self.handlers[request])

    def overtaken(self, request: Any) -> tuple[Any, Any]:
        """It arrives right behind its retry. Answers for both, in the order in which they were sent."""
        first: list[tuple[Any, int]] = []

        def hold(asked: Any, version: int) -> Any:
            first.append((asked, version))
            return HangUp

        def answer(asked: Any, version: int) -> Any:
            told = self.handlers[request](asked, version)
            self.handlers[request](*first.pop())
            return told

        return hold, answer

    def doubled(self, request: Any) -> Any:
        """It arrives twice."""

        def answer(asked: Any, version: int) -> Any:
            self.handlers[request](asked, version)
            return self.handlers[request](asked, version)

        return answer

    def expire(self, transactional_id: str) -> None:
        """The coordinator aborts a transaction that has been open for too long."""
        held = self.held[transactional_id]
        if held.state == "ongoing":
            held.epoch += 1
            held.last_epoch = -1
            self._finish(transactional_id, held, commit=False)

    # The coordinators.

    def _versions(self, _request: Any, _version: int) -> ApiVersionsResponse:
        keys = [
            ApiVersion(api_key=key, min_version=one.versions[0], max_version=one.versions[1])
            for key, one in all_requests().items()
        ]
        level = FinalizedFeatureKey(
            name="transaction.version", max_version_level=self.level, min_version_level=0
        )
        return ApiVersionsResponse(error_code=E.NONE, api_keys=keys, finalized_features=[level])

    def _find(self, request: FindCoordinatorRequest, _version: int) -> FindCoordinatorResponse:
        found = self[max(self.brokers) if request.key_type == GROUP_KEY_TYPE else 1]
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(
                    key=key,
                    node_id=found.node_id,
                    host=found.host,
                    port=found.port,
                    error_code=E.NONE,
                    error_message=None,
                )
                for key in request.coordinator_keys
            ]
        )

    def _init(self, request: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        name = request.transactional_id
        if name is None:
            return self._identify(request, version)
        with self.lock:
            held = self.held.get(name)
            if held is None:
                self.next_producer_id += 1
                held = self.held[name] = Held(self.next_producer_id)
            expected = request.producer_epoch
            if request.producer_id >= 0 and request.producer_id != held.producer_id:
                return InitProducerIdResponse(error_code=E.PRODUCER_FENCED, producer_epoch=-1)
            if expected >= 0 and expected not in (held.epoch, held.last_epoch):
                return InitProducerIdResponse(error_code=E.PRODUCER_FENCED, producer_epoch=-1)
            if held.state == "ongoing":
                held.epoch += 1
                held.last_epoch = -1
                self._finish(name, held, commit=False)
                return InitProducerIdResponse(error_code=E.CONCURRENT_TRANSACTIONS, producer_epoch=-1)
            if expected < 0 or expected == held.epoch:  # else it asks again
                held.last_epoch, held.epoch = held.epoch if expected >= 0 else -1, held.epoch + 1
            held.state = "empty"
            return InitProducerIdResponse(
                error_code=E.NONE, producer_id=held.producer_id, producer_epoch=held.epoch
            )

    def _refusal(self, name: str, producer_id: int, epoch: int) -> ErrorCode:
        held = self.held.get(name)
        if held is None or held.producer_id != producer_id:
            return E.INVALID_PRODUCER_ID_MAPPING
        return E.NONE if held.epoch == epoch else E.PRODUCER_FENCED

    def _add_partitions(self, request: AddPartitionsToTxnRequest, _version: int) -> Any:
        with self.lock:
            name = request.v3_and_below_transactional_id
            code = self._refusal(name, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
            if code is E.NONE:
                held = self._begin(name)
                for topic in request.v3_and_below_topics:
                    held.partitions.update(TopicPartition(topic.name, one) for one in topic.partitions)
            return AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=[
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(partition_index=one, partition_error_code=code)
                            for one in topic.partitions
                        ],
                    )
                    for topic in request.v3_and_below_topics
                ]
            )

    def _add_offsets(self, request: AddOffsetsToTxnRequest, _version: int) -> AddOffsetsToTxnResponse:
        with self.lock:
            code = self._refusal(request.transactional_id, request.producer_id, request.producer_epoch)
            if code is E.NONE:
                self._begin(request.transactional_id).groups.add(request.group_id)
            return AddOffsetsToTxnResponse(error_code=code)

    def _offset_commit(self, request: TxnOffsetCommitRequest, version: int) -> TxnOffsetCommitResponse:
        with self.lock:
            code = self._refusal(request.transactional_id, request.producer_id, request.producer_epoch)
            if code is E.NONE:
                held = self.held[request.transactional_id]
                if version >= 5:
                    self._begin(request.transactional_id).groups.add(request.group_id)
                elif held.state != "ongoing" or request.group_id not in held.groups:
                    code = E.INVALID_TXN_STATE
            if code is E.NONE:
                for topic in request.topics:
                    for one in topic.partitions:
                        tp = TopicPartition(topic.name, one.partition_index)
                        told = one.committed_offset, one.committed_metadata or ""
                        held.offsets[request.group_id, tp] = told
            return TxnOffsetCommitResponse(
                topics=[
                    TxnOffsetCommitResponseTopic(
                        name=topic.name,
                        partitions=[
                            TxnOffsetCommitResponsePartition(
                                partition_index=one.partition_index, error_code=code
                            )
                            for one in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )

    def _end(self, request: EndTxnRequest, version: int) -> EndTxnResponse:
        with self.lock:
            held = self.held.get(request.transactional_id)
            if held is None or held.producer_id != request.producer_id:
                return EndTxnResponse(error_code=E.INVALID_PRODUCER_ID_MAPPING)
            wanted = "committed" if request.committed else "aborted"
            again = version >= 5 and request.producer_epoch == held.last_epoch and held.state == wanted
            if again:
                return EndTxnResponse(
                    error_code=E.NONE, producer_id=held.producer_id, producer_epoch=held.epoch
                )
            if request.producer_epoch != held.epoch:
                expired = version >= 5 and request.producer_epoch == held.epoch - 1
                return EndTxnResponse(error_code=E.INVALID_TXN_STATE if expired else E.PRODUCER_FENCED)
            if held.state != "ongoing":
                empty_abort = version >= 5 and not request.committed
                if not empty_abort:
                    same = held.state == wanted and version < 5
                    return EndTxnResponse(error_code=E.NONE if same else E.INVALID_TXN_STATE)
            if version >= 5:
                held.last_epoch, held.epoch = held.epoch, held.epoch + 1
            self._finish(request.transactional_id, held, commit=request.committed)
            return EndTxnResponse(error_code=E.NONE, producer_id=held.producer_id, producer_epoch=held.epoch)

    def _begin(self, name: str) -> Held:
        held = self.held[name]
        held.state = "ongoing"
        return held

    def _finish(self, name: str, held: Held, *, commit: bool) -> None:
        for tp, values in held.batches:
            if commit:
                self.committed[tp] += values
        if commit:
            self.offsets.update(held.offsets)
        for (tp, _topic_id, producer_id), state in self.states.items():
            if producer_id == held.producer_id and tp in held.partitions and state.epoch < held.epoch:
                state.epoch = held.epoch  # by the marker
                state.last.clear()
        self.ended.append((name, held.epoch, commit))
        held.state = "committed" if commit else "aborted"
        for kept in (held.batches, held.partitions, held.groups, held.offsets):
            kept.clear()

    # The leader.

    def _produce(self, produce: Any) -> Any:
        def answer(request: ProduceRequest, version: int) -> Any:
            self._producing = request.transactional_id, version
            return produce(request, version)

        return answer

    def _append(self, tp: TopicPartition, log: Any, data: bytes) -> PartitionProduceResponse:
        head = np.frombuffer(data, HEADER, 1)[0]
        name, version = self._producing
        if name is None or not int(head["attributes"]) & 0x10:
            raise AssertionError("a batch outside of a transaction")
        held = self.held[name]
        if held.producer_id != int(head["producer_id"]) or held.epoch != int(head["producer_epoch"]):
            return PartitionProduceResponse(
                index=tp.partition, error_code=E.INVALID_PRODUCER_EPOCH, base_offset=-1
            )
        if version >= 12:
            self._begin(name).partitions.add(tp)
        elif tp not in held.partitions:
            return PartitionProduceResponse(
                index=tp.partition, error_code=E.INVALID_TXN_STATE, base_offset=-1
            )
        before = len(log.batches)
        answer = super()._append(tp, log, data)
        if len(log.batches) > before:
            columns = decode_record_set(bytes(data), fetch_offset=0).columns
            assert columns.value is not None
            held.batches.append((tp, columns.value.to_pylist()))
        return answer
