"""Requests and responses of committed offsets, in literals."""

from __future__ import annotations

import pytest
from support.group.committing import Committing

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, IncompleteResponseError
from spark_kafka_native.kafka.group import committed_offsets as module
from spark_kafka_native.kafka.group.committed_offsets import (
    all_committed_offsets,
    build_offset_commit,
    build_offset_fetch,
    commit_offsets,
    committed_offsets,
    committed_positions,
    read_all_offsets,
    read_offset_commit,
    read_offset_fetch,
)
from spark_kafka_native.kafka.group.membership import Identity
from spark_kafka_native.kafka.model import OffsetToCommit, TopicPartition
from spark_kafka_native.kafka.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import MockBroker

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def fetched(
    *found: tuple[TopicPartition, int, ErrorCode], error: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponse:
    topics = [
        OffsetFetchResponseTopics(
            name=tp.topic,
            partitions=[
                OffsetFetchResponsePartitions(
                    partition_index=tp.partition, committed_offset=offset, metadata=None, error_code=code
                )
            ],
        )
        for tp, offset, code in found
    ]
    return OffsetFetchResponse(
        groups=[OffsetFetchResponseGroup(group_id="g", topics=topics, error_code=error)]
    )


def test_the_request_names_each_topic_once_and_waits_for_transactions() -> None:
    request = build_offset_fetch("g", [A0, B0, A1])
    [group] = request.groups
    assert group.group_id == "g"
    assert [(t.name, t.partition_indexes) for t in group.topics or []] == [("a", [0, 1]), ("b", [0])]
    assert request.require_stable


def test_offset_0_is_committed_and_minus_1_is_none() -> None:
    told = fetched((A0, 0, ErrorCode.NONE), (A1, -1, ErrorCode.NONE), (B0, 7, ErrorCode.NONE))
    assert read_offset_fetch(told, "g", [A0, A1]) == {A0: 0, A1: None}


def test_a_partition_left_out_is_not_told_as_none_committed() -> None:
    with pytest.raises(IncompleteResponseError, match="committed offset of a-1 in group g"):
        read_offset_fetch(fetched((A0, 5, ErrorCode.NONE)), "g", [A0, A1])


def test_errors_of_the_group_and_of_a_partition_are_raised() -> None:
    with pytest.raises(BrokerError, match="committed offsets of group g: GROUP_AUTHORIZATION_FAILED"):
        read_offset_fetch(fetched(error=ErrorCode.GROUP_AUTHORIZATION_FAILED), "g", [A0])
    with pytest.raises(BrokerError, match="committed offsets of group g: GROUP_AUTHORIZATION_FAILED"):
        read_all_offsets(fetched(error=ErrorCode.GROUP_AUTHORIZATION_FAILED), "g")
    refused = fetched((A0, -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="committed offset of a-0 in group g: TOPIC_AUTHORIZATION_FAILED"):
        read_offset_fetch(refused, "g", [A0])


def test_all_offsets_of_a_group_leave_out_what_has_none() -> None:
    told = fetched((A0, 0, ErrorCode.NONE), (A1, -1, ErrorCode.NONE), (B0, 7, ErrorCode.NONE))
    assert read_all_offsets(told, "g") == {A0: OffsetToCommit(offset=0), B0: OffsetToCommit(offset=7)}
    assert read_all_offsets(fetched(), "g") == {}


def test_an_answer_about_another_group_is_not_told_as_none_committed() -> None:
    with pytest.raises(IncompleteResponseError, match="does not name it"):
        read_all_offsets(fetched(), "other")
    with pytest.raises(BrokerError, match="a-0 in group g: UNSTABLE_OFFSET_COMMIT"):
        read_all_offsets(fetched((A0, 5, ErrorCode.UNSTABLE_OFFSET_COMMIT)), "g")


POSITIONS = {TopicPartition("a", 0): 5, TopicPartition("b", 1): 6, TopicPartition("a", 2): 7}


def committed(*partitions: tuple[str, int, ErrorCode]) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic,
                partitions=[OffsetCommitResponsePartition(partition_index=index, error_code=code)],
            )
            for topic, index, code in partitions
        ]
    )


def test_a_commit_without_membership() -> None:
    request = build_offset_commit("g", POSITIONS)
    assert (request.group_id, request.member_id, request.generation_id_or_member_epoch) == ("g", "", -1)
    sent = {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in request.topics
        for partition in topic.partitions
    }
    assert sent == {("a", 0): 5, ("a", 2): 7, ("b", 1): 6}
    assert [topic.name for topic in request.topics] == ["a", "b"]


def test_a_member_commits_under_its_ids_and_with_the_epochs_of_its_records(member: Committing) -> None:
    """A coordinator refuses a static member that does not give its instance id."""
    member.identity = Identity("me", 3, "place")
    member.queue.leader_epochs = lambda _offsets: {A0: 5}
    member.commit({A0: 1, A1: 2})
    assert member.group.cluster[1].requests(OffsetCommitRequest) == [
        OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=3,
            member_id="me",
            group_instance_id="place",
            topics=[
                OffsetCommitRequestTopic(
                    name="a",
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=0,
                            committed_offset=1,
                            committed_leader_epoch=5,
                            committed_metadata="",
                        ),
                        OffsetCommitRequestPartition(
                            partition_index=1,
                            committed_offset=2,
                            committed_leader_epoch=-1,
                            committed_metadata="",
                        ),
                    ],
                )
            ],
        )
    ]


def test_committed_offsets_are_read_with_the_epochs_and_metadata_that_were_committed() -> None:
    stored = {A0: OffsetToCommit(offset=5, leader_epoch=7, metadata="m"), A1: OffsetToCommit(offset=0)}
    with MockBroker() as broker:
        broker.create_topic("a", 2)
        router = Router(ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers}))
        commit_offsets(router, "g", stored)
        assert all_committed_offsets(router, "g") == stored
        assert committed_positions(router, "g", [A0, A1]) == {
            A0: OffsetToCommit(offset=5, leader_epoch=7),
            A1: OffsetToCommit(offset=0),
        }
        router.close()


@pytest.mark.parametrize("stable", [True, False])
def test_all_offsets_are_asked_for_with_open_transactions_or_without(
    member: Committing, stable: bool
) -> None:
    assert all_committed_offsets(member.router, "g", stable=stable) == {}
    assert member.group.cluster[1].requests(OffsetFetchRequest) == [
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)], require_stable=stable)
    ]


@pytest.mark.parametrize("version", [7, 8])
@pytest.mark.parametrize("stable", [True, False])
def test_old_brokers_also_hold_offsets_of_open_transactions_back(version: int, stable: bool) -> None:
    with MockBroker(versions={"OffsetFetch": (1, version)}) as broker:
        router = Router(ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers}))
        all_committed_offsets(router, "g", stable=stable)
        (request,) = broker.asked("OffsetFetch")
        assert (request.version, request.fields["require_stable"]) == (version, stable)
        router.close()


def test_each_partition_must_be_confirmed() -> None:
    none = ErrorCode.NONE
    read_offset_commit(committed(("a", 0, none), ("a", 2, none), ("b", 1, none)), "g", POSITIONS)
    with pytest.raises(IncompleteResponseError, match="the offset of b-1 in group g: the response lacks it"):
        read_offset_commit(committed(("a", 0, none), ("a", 2, none)), "g", POSITIONS)
    with pytest.raises(BrokerError, match="committing the offset of a-2 in group g"):
        read_offset_commit(
            committed(("a", 0, none), ("a", 2, ErrorCode.UNKNOWN_MEMBER_ID), ("b", 1, none)), "g", POSITIONS
        )


def test_a_refusal_says_which_offsets_are_stored_and_what_else_was_refused() -> None:
    """`pykafka reset` ended with an error, and no word of the partitions that had moved."""
    places = [TopicPartition("a", index) for index in range(15)]
    denied, large = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OFFSET_METADATA_TOO_LARGE
    codes = {0: denied, 2: large}
    found = [("a", index, codes.get(index, ErrorCode.NONE)) for index in range(15)]
    with pytest.raises(BrokerError, match="offset of a-0 in group g") as refused:
        read_offset_commit(committed(*found), "g", places)
    also, stored = refused.value.__notes__
    assert also.startswith("also refused: committing the offset of a-2 in group g: OFFSET_METADATA_TOO_LARGE")
    assert (
        stored == "committed nevertheless: a-1, a-10, a-11, a-12, a-13, a-14, a-3, a-4, a-5, a-6 and 3 more"
    )
    with pytest.raises(BrokerError) as alone:
        read_offset_commit(committed(("a", 0, denied)), "g", places[:1])
    assert not hasattr(alone.value, "__notes__")


def test_each_part_of_a_commit_is_a_request() -> None:
    positions: dict[TopicPartition, int | OffsetToCommit] = {
        TopicPartition("t", partition): OffsetToCommit(offset=partition, metadata="m" * 4_096)
        for partition in range(300)
    }
    with MockBroker() as broker:
        broker.create_topic("t", 300)
        router = Router(ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers}))
        commit_offsets(router, "g", positions)
        assert len(broker.asked("OffsetCommit")) == 3
        assert broker.committed("g") == {tp: tp.partition for tp in positions}
        later = {tp: OffsetToCommit(offset=7, metadata="m" * 4_096) for tp in positions}
        broker.on("OffsetCommit", partition=299).fail("TOPIC_AUTHORIZATION_FAILED")
        with pytest.raises(BrokerError, match="t-299 in group g: TOPIC_AUTHORIZATION_FAILED") as refused:
            commit_offsets(router, "g", later)
        own, earlier = (note.split() for note in refused.value.__notes__)
        assert own[:2] == earlier[:2] == ["committed", "nevertheless:"]
        assert int(own[-2]) + int(earlier[-2]) == 299 - 20  # ten of each are named
        assert broker.committed("g") == {**dict.fromkeys(positions, 7), TopicPartition("t", 299): 299}
        router.close()


def test_all_parts_of_a_commit_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = {
        TopicPartition("t", partition): OffsetToCommit(offset=1, metadata="m" * 4_096)
        for partition in range(300)
    }
    deadlines: list[object] = []
    monkeypatch.setattr(module, "retry_at_coordinator", lambda *arguments: deadlines.append(arguments[-1]))
    router = Router(ClientConfig(bootstrap_servers=("nowhere:9092",)))
    commit_offsets(router, "g", positions)
    assert len(deadlines) == 3
    assert deadlines[0] is deadlines[1] is deadlines[2] is not None
    given = Deadline.after_ms(1_000)
    commit_offsets(router, "g", positions, given)
    assert deadlines[3] is deadlines[4] is deadlines[5] is given


@pytest.mark.parametrize("limit", [None, Deadline.after_ms(1_000)], ids=["default", "given"])
def test_committed_offsets_are_asked_for_until_the_deadline_of_the_caller(
    limit: Deadline | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[object] = []

    def send(*arguments: object) -> dict[TopicPartition, None]:
        deadlines.append(arguments[-1])
        return {}

    monkeypatch.setattr(module, "send_to_coordinator", send)
    router = Router(ClientConfig(bootstrap_servers=("nowhere:9092",)))
    committed_offsets(router, "g", [A0], limit)
    committed_positions(router, "g", [A0], limit)
    all_committed_offsets(router, "g", limit)
    assert deadlines == [limit] * 3
