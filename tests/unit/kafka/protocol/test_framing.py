from __future__ import annotations

import importlib
import struct
import sys
from dataclasses import replace
from typing import Any

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import ProtocolError, UnsupportedVersionError
from spark_kafka_native.kafka.protocol.api.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from spark_kafka_native.kafka.protocol.api.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafka_native.kafka.protocol.api.group_membership import LeaveGroupRequest, MemberIdentity
from spark_kafka_native.kafka.protocol.api.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
)
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.protocol.api.topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafka_native.kafka.protocol.framing import Framing
from spark_kafka_native.kafka.protocol.message_codec import codec
from spark_kafka_native.kafka.protocol.versions import (
    choose_version,
    lower_api_versions,
    negotiate,
    read_version_ranges,
)

METADATA = MetadataRequest(topics=None)
UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION


def frame(correlation_id: int, response: Any, version: int, header_tags: bytes = b"") -> memoryview:
    body = b"".join(codec(type(response), version).write(response))
    return memoryview(struct.pack(">i", correlation_id) + header_tags + body)


def metadata_response() -> MetadataResponse:
    return MetadataResponse(brokers=[], topics=[])


class TestSend:
    def test_header_v1(self) -> None:
        correlation_id, buffers = Framing("me").send(METADATA, 4)

        written = b"".join(buffers)
        assert correlation_id == 0
        assert written[:4] == struct.pack(">i", len(written) - 4)
        assert written[4:] == b"\0\x03\0\x04\0\0\0\0" + b"\0\x02me" + b"\xff\xff\xff\xff" + b"\x01"

    def test_header_v2_keeps_the_client_id_an_old_string(self) -> None:
        _, buffers = Framing("me").send(METADATA, 12)

        assert b"".join(buffers)[4:] == b"\0\x03\0\x0c\0\0\0\0" + b"\0\x02me" + b"\0" + b"\0" + b"\x01\0\0"

    @pytest.mark.parametrize(("version", "size"), [(8, 16), (9, 17)])
    def test_header_v2_begins_with_the_first_flexible_version(self, version: int, size: int) -> None:
        _, buffers = Framing("me").send(METADATA, version)

        body = b"".join(codec(MetadataRequest, version).write(METADATA))
        assert len(b"".join(buffers)) == size + len(body)

    def test_no_client_id(self) -> None:
        _, buffers = Framing(None).send(METADATA, 4)

        assert b"".join(buffers)[12:14] == b"\xff\xff"

    def test_correlation_ids_count_up_and_wrap(self) -> None:
        session = Framing("me")
        session._next_correlation_id = (1 << 31) - 2

        assert [session.send(METADATA, 4)[0] for _ in range(3)] == [(1 << 31) - 2, (1 << 31) - 1, 0]

    def test_nothing_is_in_flight_when_a_request_cannot_be_written(self) -> None:
        session = Framing("me")

        with pytest.raises(UnsupportedVersionError):
            session.send(MetadataRequest(topics=[], allow_auto_topic_creation=False), 1)
        assert session.in_flight == 0
        assert session.send(METADATA, 1)[0] == 0

    def test_acks_0_is_not_answered(self) -> None:
        session = Framing("me")
        session.send(ProduceRequest(acks=0, timeout_ms=1, topic_data=[]), 9)
        session.send(METADATA, 4)

        assert session.in_flight == 1
        assert session.receive(frame(1, metadata_response(), 4)) == (1, metadata_response())


class TestReceive:
    def test_in_order(self) -> None:
        session = Framing("me")
        session.send(METADATA, 4)
        session.send(METADATA, 12)

        assert session.receive(frame(0, metadata_response(), 4)) == (0, metadata_response())
        assert session.receive(frame(1, metadata_response(), 12, b"\0")) == (1, metadata_response())
        assert session.in_flight == 0

    def test_tags_in_the_response_header_are_skipped(self) -> None:
        session = Framing("me")
        session.send(METADATA, 12)

        assert (
            session.receive(frame(0, metadata_response(), 12, b"\x01\x07\x03abc"))[1] == metadata_response()
        )

    @pytest.mark.parametrize("tags", [b"\x01\x07\x63abc", b"\x01\x07", b"\xff\xff\xff\xff\xff\xff"])
    def test_tags_that_lie_are_refused(self, tags: bytes) -> None:
        session = Framing("me")
        session.send(METADATA, 12)

        with pytest.raises(ProtocolError):
            session.receive(memoryview(struct.pack(">i", 0) + tags))

    @pytest.mark.parametrize("correlation_id", [1, 7, -1])
    def test_another_correlation_id_is_refused_by_name(self, correlation_id: int) -> None:
        session = Framing("me")
        session.send(METADATA, 4)
        session.send(METADATA, 4)

        with pytest.raises(ProtocolError, match=rf"id {correlation_id} came where 0 \(Metadata v4\) was due"):
            session.receive(frame(correlation_id, metadata_response(), 4))
        assert session.in_flight == 2

    def test_an_answer_to_nothing_is_refused(self) -> None:
        with pytest.raises(ProtocolError, match="correlation id 5 came, but nothing was asked"):
            Framing("me").receive(frame(5, metadata_response(), 4))

    def test_a_frame_without_correlation_id_is_refused(self) -> None:
        with pytest.raises(ProtocolError, match="2 bytes is too short"):
            Framing("me").receive(memoryview(b"\0\0"))


class TestApiVersions:
    """KIP-511."""

    def test_the_response_header_is_v0_at_every_version(self) -> None:
        session = Framing("me")
        response = ApiVersionsResponse(
            error_code=ErrorCode.NONE, api_keys=[ApiVersion(api_key=3, min_version=0, max_version=13)]
        )
        session.send(ApiVersionsRequest(), 4)

        assert session.receive(frame(0, response, 4)) == (0, response)

    def test_a_broker_that_does_not_know_the_version_answers_in_version_0(self) -> None:
        session = Framing("me")
        response = ApiVersionsResponse(
            error_code=UNSUPPORTED, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)]
        )
        session.send(ApiVersionsRequest(), 4)

        _, received = session.receive(frame(0, response, 0))

        assert received == response
        assert isinstance(received, ApiVersionsResponse)
        assert lower_api_versions(received, tried=4) == 2

    def test_no_other_response_that_begins_with_these_bytes_is_one_of_version_0(self) -> None:
        """The first field of most is the time of a quota."""
        session = Framing("me")
        session.send(METADATA, 12)
        response = replace(metadata_response(), throttle_time_ms=int(UNSUPPORTED) << 16)

        assert session.receive(frame(0, response, 12, b"\0")) == (0, response)

    @pytest.mark.parametrize(
        ("api_keys", "tried", "next_"),
        [
            ([], 4, 0),  # before Kafka 2.4
            ([ApiVersion(api_key=18, min_version=0, max_version=3)], 4, 3),
            (
                [ApiVersion(api_key=18, min_version=0, max_version=9)],
                4,
                3,
            ),  # not lower: it must come to an end
            ([ApiVersion(api_key=18, min_version=0, max_version=9)], 0, None),
        ],
    )
    def test_what_is_tried_next_is_strictly_lower(
        self, api_keys: list[ApiVersion], tried: int, next_: int | None
    ) -> None:
        response = ApiVersionsResponse(error_code=UNSUPPORTED, api_keys=api_keys)

        assert lower_api_versions(response, tried) == next_

    def test_an_answer_is_an_answer(self) -> None:
        assert lower_api_versions(ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=[]), 4) is None


class TestNegotiate:
    def test_the_highest_version_that_both_speak(self) -> None:
        assert negotiate(MetadataRequest, {3: (0, 13)}) == 13
        assert negotiate(MetadataRequest, {3: (0, 99)}) == MetadataRequest.versions[1]
        assert negotiate(MetadataRequest, {3: (0, 8)}) == 8
        assert negotiate(MetadataRequest, {3: (0, 99)}, at_most=9) == 9

    def test_ranges_that_do_not_meet_are_both_named(self) -> None:
        with pytest.raises(
            UnsupportedVersionError,
            match="Metadata: the broker speaks versions 20 to 22, this client 1 to 13",
        ):
            negotiate(MetadataRequest, {3: (20, 22)})
        with pytest.raises(UnsupportedVersionError, match="0 to 0, this client 1 to 13"):
            negotiate(MetadataRequest, {3: (0, 0)})

    def test_an_api_that_the_broker_lacks_is_named(self) -> None:
        with pytest.raises(UnsupportedVersionError, match=r"does not offer Metadata \(API key 3\)"):
            negotiate(MetadataRequest, {})

    def test_a_version_is_chosen_within_the_bounds_of_the_caller_and_the_broker(self) -> None:
        assert choose_version({3: (4, 9)}, 3, 0, 99) == 9
        assert choose_version({3: (4, 9)}, 3, 0, 4) == 4
        assert choose_version({3: (4, 9)}, 3, 9, 99) == 9
        for low, high in ((0, 3), (10, 99)):
            with pytest.raises(
                UnsupportedVersionError,
                match=f"speaks versions 4 to 9 of API key 3; asked for were {low} to {high}",
            ):
                choose_version({3: (4, 9)}, 3, low, high)
        with pytest.raises(UnsupportedVersionError, match="does not offer API key 3"):
            choose_version({}, 3, 0, 99)

    def test_ranges_of_a_response(self) -> None:
        response = ApiVersionsResponse(
            error_code=ErrorCode.NONE, api_keys=[ApiVersion(api_key=3, min_version=1, max_version=13)]
        )

        assert read_version_ranges(response) == {3: (1, 13)}


def old_offsets() -> OffsetFetchResponse:
    """About one group, as before version 8."""
    partition = OffsetFetchResponsePartition(
        partition_index=1,
        committed_offset=42,
        committed_leader_epoch=5,
        metadata="m",
        error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )
    return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=[partition])])


class TestOneShapeForAllVersions:
    """A caller builds and reads the latest shape; the session translates for older versions."""

    def test_find_coordinator(self) -> None:
        session = Framing("me")
        request = FindCoordinatorRequest(coordinator_keys=["g"])
        _, buffers = session.send(request, 1)
        assert b"".join(buffers).endswith(b"\0\x01g\0")
        old = FindCoordinatorResponse(node_id=3, host="h", port=9092, error_message=None)

        _, response = session.receive(frame(0, old, 1))

        assert isinstance(response, FindCoordinatorResponse)
        assert response.coordinators == [
            Coordinator(
                key="g", node_id=3, host="h", port=9092, error_code=ErrorCode.NONE, error_message=None
            )
        ]

    def test_find_coordinator_of_one_that_is_refused(self) -> None:
        session = Framing("me")
        session.send(FindCoordinatorRequest(coordinator_keys=["g"]), 3)
        refused = FindCoordinatorResponse(
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message="wait", node_id=-1, port=-1
        )

        _, response = session.receive(frame(0, refused, 3, b"\0"))

        assert isinstance(response, FindCoordinatorResponse)
        (one,) = response.coordinators
        assert (one.key, one.node_id) == ("g", -1)
        assert (one.error_code, one.error_message) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "wait")

    def test_find_coordinator_of_many_needs_a_version(self) -> None:
        with pytest.raises(UnsupportedVersionError, match=r"FindCoordinator v3 finds one coordinator, not 2"):
            Framing("me").send(FindCoordinatorRequest(coordinator_keys=["g", "h"]), 3)

    def test_offset_fetch(self) -> None:
        session = Framing("me")
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[1])]
        session.send(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)]), 7)

        _, response = session.receive(frame(0, old_offsets(), 7, b"\0"))

        assert isinstance(response, OffsetFetchResponse)
        (group,) = response.groups
        assert group.group_id == "g"
        assert group.error_code is ErrorCode.NONE
        assert group.topics[0].partitions == [
            OffsetFetchResponsePartitions(
                partition_index=1,
                committed_offset=42,
                committed_leader_epoch=5,
                metadata="m",
                error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
            )
        ]

    @pytest.mark.parametrize("refused", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.NOT_COORDINATOR])
    def test_an_offset_fetch_that_is_refused(self, refused: ErrorCode) -> None:
        """Without its error the group would seem to have committed nothing."""
        session = Framing("me")
        session.send(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 7)

        _, response = session.receive(frame(0, OffsetFetchResponse(error_code=refused), 7, b"\0"))

        assert isinstance(response, OffsetFetchResponse)
        assert [(group.group_id, group.error_code) for group in response.groups] == [("g", refused)]

    def test_offset_fetch_of_one_partition_that_is_refused(self) -> None:
        session = Framing("me")
        session.send(OffsetFetchRequest(group_id="g", topics=None), 7)

        _, response = session.receive(frame(0, old_offsets(), 7, b"\0"))

        assert isinstance(response, OffsetFetchResponse)
        (group,) = response.groups
        assert group.group_id == "g"
        assert [topic.name for topic in group.topics] == ["t"]
        found = group.topics[0].partitions[0]
        assert (found.committed_leader_epoch, found.metadata) == (5, "m")
        assert found.error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT

    def test_offset_fetch_of_everything(self) -> None:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])

        assert request.downgraded(7).topics is None
        assert request.downgraded(8) is request

    def test_offset_fetch_of_no_partition_is_not_one_of_everything(self) -> None:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[])])

        assert request.downgraded(7) == OffsetFetchRequest(group_id="g", topics=[])

    def test_offset_fetch_of_many_groups_needs_a_version(self) -> None:
        groups = [OffsetFetchRequestGroup(group_id=group_id, topics=None) for group_id in "gh"]

        with pytest.raises(
            UnsupportedVersionError, match="OffsetFetch v7 asks for one group at a time, not 2"
        ):
            OffsetFetchRequest(groups=groups).downgraded(7)

    def test_leave_group(self) -> None:
        request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])

        assert request.downgraded(2) == LeaveGroupRequest(group_id="g", member_id="m")
        assert request.downgraded(3) is request

    @pytest.mark.parametrize(
        "members",
        [
            [MemberIdentity(member_id="m"), MemberIdentity(member_id="n")],
            [MemberIdentity(member_id="m", group_instance_id="i")],
        ],
    )
    def test_leave_group_of_many_or_static_members_needs_a_version(
        self, members: list[MemberIdentity]
    ) -> None:
        with pytest.raises(UnsupportedVersionError, match="LeaveGroup v2 lets one member leave"):
            LeaveGroupRequest(group_id="g", members=members).downgraded(2)

    def test_delete_topics(self) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5)

        assert request.downgraded(5) == DeleteTopicsRequest(topic_names=["t"], timeout_ms=5)
        assert request.downgraded(6) is request

    @pytest.mark.parametrize("named", [[], [DeleteTopicState(name="t")]])
    def test_delete_topics_by_id_needs_a_version(self, named: list[DeleteTopicState]) -> None:
        request = DeleteTopicsRequest(topics=[*named, DeleteTopicState()], timeout_ms=5)
        with pytest.raises(UnsupportedVersionError, match="DeleteTopics v5 knows no topic ids"):
            request.downgraded(5)


class TestPolledRequests:
    """A polled request mostly gets the same bytes as response: they are read once."""

    def answer(self, session: Framing, response: MetadataResponse) -> Any:
        correlation_id, _ = session.send(METADATA, 4)
        return session.receive(frame(correlation_id, response, 4))[1]

    def test_the_same_bytes_are_the_same_response(self) -> None:
        session = Framing("me")
        first = self.answer(session, metadata_response())
        assert self.answer(session, metadata_response()) is first

    def test_other_bytes_are_another_response(self) -> None:
        session = Framing("me")
        self.answer(session, metadata_response())
        assert (
            self.answer(session, MetadataResponse(brokers=[], topics=[], controller_id=7)).controller_id == 7
        )
        assert self.answer(session, metadata_response()) == metadata_response()

    def test_a_response_in_memory_that_was_used_again_is_another_response(self) -> None:
        session = Framing("me")
        memory = bytearray()
        for controller_id in (1, 2):
            correlation_id, _ = session.send(METADATA, 4)
            response = MetadataResponse(brokers=[], topics=[], controller_id=controller_id)
            memory[:] = frame(correlation_id, response, 4)
            assert session.receive(memoryview(memory).toreadonly())[1] == response

    def test_bytes_of_another_version_are_read_anew(self) -> None:
        session = Framing("me")
        first = self.answer(session, metadata_response())
        correlation_id, _ = session.send(METADATA, 5)
        assert session.receive(frame(correlation_id, metadata_response(), 5))[1] is not first

    def test_a_large_response_is_not_kept(self) -> None:
        session = Framing("me")
        large = MetadataResponse(brokers=[], topics=[], cluster_id="c" * 30_000)
        kept = self.answer(session, large)
        assert self.answer(session, large) is kept
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("spark_kafka_native.kafka.protocol.framing.MAX_KEPT_BYTES", 30_000)
            another = self.answer(session, MetadataResponse(brokers=[], topics=[], cluster_id="d" * 30_001))
            again = self.answer(session, MetadataResponse(brokers=[], topics=[], cluster_id="d" * 30_001))
        assert again == another
        assert again is not another

    def test_other_requests_are_read_each_time(self) -> None:
        session = Framing("me")
        response = FindCoordinatorResponse(coordinators=[])
        read = []
        for _ in range(2):
            correlation_id, _ = session.send(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
            read.append(session.receive(frame(correlation_id, response, 4, b"\0"))[1])
        assert read[0] == read[1]
        assert read[0] is not read[1]


@pytest.mark.parametrize(("former", "name"), [("codec", "codec"), ("session", "Session")])
def test_former_module_names_work_and_warn(former: str, name: str) -> None:
    sys.modules.pop(f"spark_kafka_native.kafka.protocol.{former}", None)
    with pytest.warns(DeprecationWarning, match="is now"):
        module = importlib.import_module(f"spark_kafka_native.kafka.protocol.{former}")
    assert getattr(module, name) in (codec, Framing)
