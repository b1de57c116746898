"""`prepare_topic`: makes sure that a topic exists before rows go to it. The driver does so for the topic
of an option, workers for topics that rows name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from ...kafka.admin import Admin, NewTopic
from ...kafka.cluster.metadata import topics_named
from ...kafka.cluster.recreated_topics import find_recreated
from ...kafka.cluster.router import Router, router_for
from ...kafka.error_code import ErrorCode
from ...kafka.errors import (
    BrokerError,
    ConfigError,
    DeadlineExceededError,
    IncompleteResponseError,
    KafkaError,
)
from ...kafka.protocol.api.produce import ProduceRequest
from ...kafka.runtime.deadline import Deadline
from ...kafka.runtime.retry import is_retriable
from .write_options import WriteOptions

ZSTD_SINCE: Final = 7
"""The version of Produce that carries zstd (Kafka 2.1)."""

_VERSION_CHECK_MS: Final = 3_000
"""For a connection to one broker before the next is asked."""

_LAGGING_BROKER_MS: Final = 5_000


def look_at_topics(router: Router, topics: Collection[str], options: WriteOptions) -> None:
    """Know ``topics``, with one request of each task: what the process knows of them may be minutes old. A
    topic may have been deleted since, or have more partitions: tasks that know other numbers of them would
    send a key here and there. Exactly-once tasks ask for the ids of their topics anyway, once they begin."""
    refresh = options.create_topics or options.exactly_once is None
    router.metadata(topics, refresh=refresh, deadline=router.deadline(options.producer.max_block_ms))


def prepare_topic(router: Router, topic: str, options: WriteOptions) -> None:
    """Make sure that ``topic`` exists: create it with ``createTopics``. Raises `ConfigError` if it does
    not, and the client's error if that is still unknown after ``kafka.max.block.ms``."""
    deadline = router.deadline(options.producer.max_block_ms)
    known = router.metadata((topic,), deadline=deadline).topics.get(topic)
    _check_compression(router, options)
    if known is not None and not known.error_code:
        return
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known is None else known.error_code
    if not is_retriable(error := BrokerError(code, f"topic {topic}", operation="Describe")):
        raise error
    if code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not options.create_topics:
        _await_topic(router, topic, deadline)
        return
    new = NewTopic(
        name=topic,
        partitions=options.create_partitions,
        replication_factor=options.create_replication_factor,
    )
    try:
        Admin(router).create_topics([new])
    except BrokerError as error:
        if error.error_code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # another task was faster
            raise
        _await_topic(router, topic, deadline)


def look_at_fixed_topics(options: WriteOptions) -> None:
    """`look_at_topics` for what no row names, on a worker."""
    if options.fixed_topics:
        look_at_topics(router_for(options.client), options.fixed_topics, options)


def prepare_fixed_topics(options: WriteOptions) -> None:
    """`prepare_topic` for what no row names, on a worker."""
    look_at_fixed_topics(options)
    for topic in options.fixed_topics:
        prepare_topic(router_for(options.client), topic, options)


def _check_compression(router: Router, options: WriteOptions) -> None:
    """Refuse zstd where a broker is too old for it (KIP-110), instead of failing with the first batch."""
    if options.producer.compression_type != "zstd":
        return
    for node_id in router.snapshot.brokers:
        try:
            connection = router.connection(node_id, router.deadline(_VERSION_CHECK_MS))
        except KafkaError:
            continue  # a broker that is down does not prevent the write
        if connection.version_of(ProduceRequest) < ZSTD_SINCE:
            raise ConfigError(
                f"kafka.compression.type=zstd needs Kafka 2.1 or later, and {connection.address} is older: "
                "choose lz4, snappy or gzip"
            )
        return


def gone_topics(router: Router, topics: Collection[str], deadline: Deadline) -> set[str]:
    """Those of ``topics`` that do not exist: brokers deny them for some seconds, as one may be slower than
    others to hear of a topic. Raises `DeadlineExceededError` where that can't be waited for."""
    denied = {*topics}

    def look() -> None:
        known = router.metadata(denied, refresh=True, deadline=deadline).topics
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        denied.intersection_update(
            {one for one in denied if one not in known or known[one].error_code is unknown}
        )
        if denied:
            raise IncompleteResponseError(f"no broker knows {topics_named(denied)}")

    try:
        if denied:
            look()
    except IncompleteResponseError:
        patience = deadline.within_ms(_LAGGING_BROKER_MS)
        is_cut_short = deadline.remaining_ms < _LAGGING_BROKER_MS
        try:
            router.retry(look, what="looking for topics", deadline=patience)
        except DeadlineExceededError as error:
            if is_cut_short or not isinstance(error.__cause__, IncompleteResponseError):
                raise
    return denied


def check_written_topics(router: Router, written: Mapping[str, Collection[str]], deadline: Deadline) -> None:
    """Raises `ConfigError` if one of the topics that tasks have written to (with its ids, as far as they are
    known) does not exist any more, or was created again: its rows, or the markers in it, are gone. For one
    that does not exist, the coordinators of a transaction would have its driver wait until it expires."""
    if gone := gone_topics(router, written, deadline):
        raise ConfigError(f"topic {min(gone)} was deleted after this run wrote to it")
    # Tasks that have found different ones have seen it change. A single id may be one that another broker
    # still gives: only leaders confirm it.
    again = {topic for topic, ids in written.items() if len({*ids}) > 1}
    expected = {topic: UUID(hex=one) for topic, ids in written.items() for one in ids}
    if again or (again := {*find_recreated(router, expected, refresh=True, deadline=deadline)}):
        raise ConfigError(f"topic {min(again)} was deleted and created again after this run wrote to it")


def _await_topic(router: Router, topic: str, deadline: Deadline) -> None:
    """A topic that was just created takes a moment to reach every broker."""
    try:
        router.retry(
            lambda: router.refresh((topic,), deadline).topic(topic),
            what=f"asking for topic {topic}",
            deadline=deadline,
            topics=(topic,),
        )
    except BrokerError as error:
        if error.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ConfigError(
                f"topic {topic} does not exist: create it first, or set createTopics=true "
                "(with createTopics.partitions and createTopics.replicationFactor)"
            ) from error
        raise
