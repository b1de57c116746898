"""`TopicAdmin`: create, delete and describe topics, add partitions, delete records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..cluster import offsets
from ..cluster.metadata import Topic
from ..error_code import ErrorCode
from ..errors import BrokerError, IncompleteResponseError, KafkaError, PartialAnswerError, reasons_of
from ..model import IsolationLevel, OffsetAt, TopicPartition
from ..protocol.api.topics import (
    DEFAULT_COUNT,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from ..runtime.deadline import Deadline, Timeout
from ..runtime.retry import is_retriable
from .family import AdminFamily, ItemResult, Task, broker_share, names_of

_ALL = -1
"""In place of an offset: all records."""
_CREATING = Task("creating topic", "Create")
_DELETING = Task("deleting topic", "Delete", done_by_lost=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_GROWING = Task("adding partitions to topic", "Alter")


@dataclass(frozen=True)
class NewTopic:
    """A topic to create: ``NewTopic("orders", 3, 2)``; None leaves a count to the broker's default.

    ``replicas`` lists the brokers of each partition, the preferred leader first; the counts then follow from
    it.
    """

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    replicas: Sequence[Sequence[int]] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a topic's name must be a str that is not empty, not {self.name!r}")
        for name, count in (("partitions", self.partitions), ("replication_factor", self.replication_factor)):
            if count is not None and (type(count) is not int or count < 1):
                raise ValueError(
                    f"topic {self.name}: {name} must be a number from 1 on, not {count!r}; "
                    "None is the broker's default"
                )
        texts: Any = self.configs
        if not isinstance(texts, Mapping):
            raise ValueError(f"topic {self.name}: configs must be a dict, not {texts!r}")
        for key, value in texts.items():
            if not isinstance(key, str) or not isinstance(value, str):
                wrong = f"{key!r}: {value!r}"
                raise ValueError(f"topic {self.name}: names and values of configs are texts, not {wrong}")
        if self.replicas is not None and (self.partitions or self.replication_factor):
            raise ValueError(f"topic {self.name}: replicas say how many partitions and replicas there are")


class TopicAdmin(AdminFamily):
    """Topics, their partitions, and the records at their beginning."""

    def create_topics(
        self,
        topics: Collection[NewTopic | str] | NewTopic,
        timeout: Timeout = None,
        *,
        exist_ok: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Create ``topics`` and wait until this client's metadata contain all of them, as far as it may
        describe them.

        With ``exist_ok`` an existing topic is left as it is; with ``validate_only`` the broker only checks. A
        name alone creates a topic with the broker's defaults. Raises `BrokerError` for the first topic that
        is refused.
        """
        limit = self._limit(timeout)
        wanted = {topic.name: topic for topic in _new_topics(topics)}
        new = dict.fromkeys(wanted)

        def ask(names: list[Any]) -> Iterable[ItemResult]:
            request = CreateTopicsRequest(
                topics=[_creatable(wanted[name]) for name in names],
                timeout_ms=broker_share(limit),
                validate_only=validate_only,
            )
            for result in self._ask_controller(request, limit).topics:
                there = exist_ok and result.error_code is ErrorCode.TOPIC_ALREADY_EXISTS
                if there:  # one of its partitions may have no leader for long
                    new.pop(result.name, None)
                yield ItemResult(
                    result.name, ErrorCode.NONE if there else result.error_code, result.error_message
                )

        self._settle(wanted, ask, _CREATING._replace(changes=not validate_only), limit)
        if wanted and not validate_only:
            self._await_topics(list(wanted), new, limit)

    def delete_topics(
        self, names: Collection[str], timeout: Timeout = None, *, missing_ok: bool = False
    ) -> None:
        """Delete ``names``; the brokers may still list them for a moment afterwards.

        Raises `BrokerError` for the first topic that is refused.
        """
        limit = self._limit(timeout)

        def ask(pending: list[Any]) -> Iterable[ItemResult]:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicState(name=name) for name in pending], timeout_ms=broker_share(limit)
            )
            for result in self._ask_controller(request, limit).responses:
                gone = missing_ok and result.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                code = ErrorCode.NONE if gone else result.error_code
                yield ItemResult(result.name, code, result.error_message)

        self._settle(names_of(names, "topics"), ask, _DELETING, limit)

    def create_partitions(
        self,
        counts: Mapping[str, int],
        timeout: Timeout = None,
        *,
        replicas: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Increase each topic to this total number of partitions.

        ``replicas`` lists the brokers of each *new* partition of a topic. Keyed records may go to other
        partitions than before. Raises `BrokerError` for the first that is refused.
        """
        limit = self._limit(timeout)

        def ask(pending: list[Any]) -> Iterable[ItemResult]:
            topics = [
                CreatePartitionsTopic(
                    name=name, count=counts[name], assignments=_new_replicas((replicas or {}).get(name))
                )
                for name in pending
            ]
            request = CreatePartitionsRequest(
                topics=topics, timeout_ms=broker_share(limit), validate_only=validate_only
            )
            for result in self._ask_controller(request, limit).results:
                yield ItemResult(result.name, result.error_code, result.error_message)

        self._settle(counts, ask, _GROWING._replace(changes=not validate_only), limit)

    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout: Timeout = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before each offset (-1: all that the partition has now); returns the first
        offset of each partition afterwards.

        Raises after the others are done: `PartialAnswerError` with their first offsets, `BrokerError` and the
        like for the first partition that is refused if none is done; its notes name the others. A note names
        the partitions with a lost answer: their records may be deleted nevertheless.
        """
        limit, patient = self._limit(timeout), Deadline.after_ms(offsets.MISSING_MS)
        before = {TopicPartition(*tp): offset for tp, offset in before.items()}
        ends = {tp: offset for tp, offset in before.items() if offset != _ALL}
        first: dict[TopicPartition, int] = {}
        refused: dict[TopicPartition, KafkaError] = {}
        failed: dict[TopicPartition, KafkaError] = {}
        lost: set[TopicPartition] = set()

        def attempt() -> None:
            pending = [tp for tp in before if tp not in first and tp not in refused]
            failures = self._delete_before(pending, ends, first, lost, limit)
            failed.clear()  # only now: if that raises, those of the attempt before count
            for tp, error in failures.items():
                (failed if is_retriable(error) else refused)[tp] = error
            if failed and not (refused and patient.expired):
                raise next(iter(failed.values()))

        try:
            self._router.retry(
                attempt, what="deleting records", deadline=limit, topics={tp.topic for tp in before}
            )
        except KafkaError as error:
            reasons = refused | failed
            if first:
                left = {tp: reasons.get(tp, error) for tp in before if tp not in first}
                raise _with_lost(PartialAnswerError(first, left), lost) from error
            raise _with_reasons(error, reasons, lost) from error.__cause__
        if reasons := refused | failed:
            if first:
                raise _with_lost(PartialAnswerError(first, reasons), lost)
            raise _with_reasons(next(iter(reasons.values())), reasons, lost)
        return first

    def _delete_before(
        self,
        wanted: list[TopicPartition],
        ends: dict[TopicPartition, int],
        first: dict[TopicPartition, int],
        lost: set[TopicPartition],
        limit: Deadline,
    ) -> dict[TopicPartition, KafkaError]:
        """One round: put the results into ``first``; returns the errors of the other partitions. ``lost``
        gets those with records that may be deleted nevertheless.

        An end that is not in ``ends`` is looked up, once: a request that is sent again must not delete
        records that were written after the first.
        """
        timeout_ms = self._router.config.request_timeout_ms
        latest = dict.fromkeys((tp for tp in wanted if tp not in ends), OffsetAt.LATEST)
        failed: dict[TopicPartition, KafkaError] = {}
        if latest:
            # With the whole time: a lost answer to this is no failed round.
            self._router.metadata({tp.topic for tp in latest}, deadline=limit)
            found, failed = offsets.try_offsets(
                self._router, latest, IsolationLevel.READ_UNCOMMITTED, limit.within_ms(timeout_ms)
            )
            ends.update({tp: one.offset or 0 for tp, one in found.items()})

        def read(response: DeleteRecordsResponse) -> dict[TopicPartition, BrokerError]:
            refused = _read_deleted(response, ends, first)
            lost.update(tp for tp, error in refused.items() if error.error_code.timeout)
            lost.difference_update(first)
            return refused

        failed |= self._ask_leaders(
            [tp for tp in wanted if tp in ends],
            lambda led: _delete_records({tp: ends[tp] for tp in led}, limit),
            read,
            limit,
            lost,
        )
        lacks = "the response lacks it"
        return {
            tp: failed.get(tp) or IncompleteResponseError(f"deleting records of {tp}: {lacks}")
            for tp in wanted
            if tp not in first
        }

    def list_topics(self, timeout: Timeout = None, *, internal: bool = False) -> list[str]:
        """The names of all topics that this client may see, sorted; Kafka's internal topics only if
        ``internal``.
        """
        metadata = self._router.metadata(None, refresh=True, deadline=self._limit(timeout))
        return sorted(name for name, topic in metadata.topics.items() if internal or not topic.internal)

    def describe_topics(
        self, names: Collection[str] | None = None, timeout: Timeout = None
    ) -> dict[str, Topic]:
        """Id, partitions, leaders and replicas of topics (None: of all), from a broker now.

        Raises `BrokerError` for the first that is unknown or not authorized; of all, such a one is returned
        with its ``error_code``, and without partitions.
        """
        wanted = None if names is None else names_of(names, "topics")
        metadata = self._router.metadata(wanted, refresh=True, deadline=self._limit(timeout))
        if wanted is None:
            return dict(sorted(metadata.topics.items()))
        return {name: metadata.topic(name) for name in wanted}

    def _await_topics(self, names: list[str], new: Collection[str], limit: Deadline) -> None:
        """Wait until they are known, and those that are ``new`` have leaders."""

        def all_led() -> None:
            metadata = self._router.metadata(names, refresh=True, deadline=limit)
            for name in names:
                if name in metadata.topics and metadata.topics[name].error_code is _HIDDEN:
                    continue
                partitions = metadata.topic(name).partitions
                for partition in partitions if name in new else ():
                    self._router.leader(TopicPartition(name, partition))

        what = f"waiting for new topics {', '.join(sorted(names))}"
        self._router.retry(all_led, what=what, deadline=limit)


_HIDDEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED
"""It takes another permission to describe a topic than to create it."""


def _new_topics(given: Collection[NewTopic | str] | NewTopic) -> list[NewTopic]:
    if isinstance(given, NewTopic):
        return [given]
    if isinstance(given, str):
        raise ValueError(f"topics must be a collection, as [{given!r}], not {given!r}")
    topics = [NewTopic(name=topic) if isinstance(topic, str) else topic for topic in given]
    names = [topic.name for topic in topics]
    if len(set(names)) < len(names):
        raise ValueError(f"a topic is to be created twice: {', '.join(sorted(names))}")
    return topics


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=DEFAULT_COUNT if topic.partitions is None else topic.partitions,
        replication_factor=DEFAULT_COUNT if topic.replication_factor is None else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in enumerate(topic.replicas or ())
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _new_replicas(replicas: Sequence[Sequence[int]] | None) -> list[CreatePartitionsAssignment] | None:
    if replicas is None:
        return None
    return [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in replicas]


def _with_reasons(
    error: KafkaError, failed: Mapping[TopicPartition, KafkaError], lost: Collection[TopicPartition]
) -> KafkaError:
    """`_with_lost`, with a note for each reason in ``failed`` that ``error`` does not say itself."""
    said = {str(error), str(error.__cause__)}
    said |= {f"{tp}: {text}" for tp in failed for text in said}
    for outcome, is_lost in (("not deleted: ", False), ("", True)):
        for reason in reasons_of({tp: one for tp, one in failed.items() if (tp in lost) is is_lost}):
            if reason not in said:
                error.add_note(f"{outcome}{reason}")
    return _with_lost(error, lost)


def _with_lost(error: KafkaError, lost: Collection[TopicPartition]) -> KafkaError:
    if lost:
        error.add_note(f"records may have been deleted nevertheless: {', '.join(map(str, sorted(lost)))}")
    return error


def _read_deleted(
    response: DeleteRecordsResponse,
    asked: Mapping[TopicPartition, int],
    first: dict[TopicPartition, int],
) -> dict[TopicPartition, BrokerError]:
    """Store in ``first`` the result of every partition that is done. Returns the refusals."""
    refused: dict[TopicPartition, BrokerError] = {}
    for topic in response.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            if partition.error_code:
                where = f"deleting records of {tp} before offset {asked.get(tp)}"
                refused[tp] = BrokerError(partition.error_code, where, operation="Delete")
            else:
                first[tp] = partition.low_watermark
    return refused


def _delete_records(before: Mapping[TopicPartition, int], deadline: Deadline) -> DeleteRecordsRequest:
    topics: dict[str, list[DeleteRecordsPartition]] = defaultdict(list)
    for tp, offset in before.items():
        topics[tp.topic].append(DeleteRecordsPartition(partition_index=tp.partition, offset=offset))
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        timeout_ms=broker_share(deadline),
    )
