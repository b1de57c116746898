from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import ProtocolError, UnsupportedVersionError
from spark_kafka_native.kafka.protocol.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_native.kafka.protocol.api.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.protocol.api.metadata import (
    LeaderIdAndEpoch,
    MetadataRequest,
    MetadataRequestTopic,
)
from spark_kafka_native.kafka.protocol.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_native.kafka.protocol.api.topics import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from spark_kafka_native.kafka.protocol.consumer_protocol import (
    ConsumerProtocolSubscription,
    read_versioned,
    write_versioned,
)
from spark_kafka_native.kafka.protocol.message import Struct, field
from spark_kafka_native.kafka.protocol.message_codec import UnencodableError, codec, compile_struct
from spark_kafka_native.kafka.protocol.wire import (
    COPY_BELOW_BYTES,
    Bytes,
    Int8,
    Int32,
    String,
    Uuid,
    build_varint,
    read_varint,
)


class Inner(Struct):
    number: Int8


class Outer(Struct):
    inner: Inner | None
    after: Int8


class Tagged(Struct):
    number: Int8
    name: String | None = field(tag=0, default=None)
    blob: Bytes = field(tag=1, default=b"")
    many: list[Int32] = field(tag=5, default_factory=list)


class TaggedNumber(Struct):
    epoch: Int32 = field(tag=0, default=-1)


class Named(Struct):
    name: String
    blob: Bytes


class ManyNamed(Struct):
    many: list[Named]


class PerhapsMany(Struct):
    many: list[Inner] | None


class PerhapsNamed(Struct):
    name: String | None = field(nullable=0)
    blob: Bytes | None = field(nullable=0)
    numbers: list[Int32] | None = field(nullable=0)
    many: list[Inner] | None = field(nullable=0)


class Numbers(Struct):
    many: list[Int32]


class Gone(Struct):
    always: Int8
    old: Int8 = field(until=2, default=0)
    new: String = field(since=3, default="")
    dropped: Int8 = field(since=3, ignorable=True, default=7)


class TwoNew(Struct):
    always: Int8
    first: String = field(since=1, default="")
    second: String = field(since=1, default="")


class Empty(Struct):
    later: Int8 = field(since=9, default=0)


class ManyEmpty(Struct):
    many: list[Empty]


class NoDefault(Struct):
    later: Int8 = field(since=9)


class TaggedNullable(Struct):
    inner: Inner | None = field(tag=0, default=None)


class ArraysOfArrays(Struct):
    many: list[list[Int8]]


class NoWireType(Struct):
    number: int


def write(value: Struct, version: int = 9, *, flexible: bool = True) -> bytes:
    out: list[Any] = []
    compile_struct(type(value), version, flexible=flexible).write(value, out)
    return b"".join(out)


def read(struct: type[Struct], data: bytes, version: int = 9, *, flexible: bool = True) -> Any:
    value, end = compile_struct(struct, version, flexible=flexible).read(memoryview(data), 0)
    assert end == len(data)
    return value


class TestNullableStruct:
    """KIP-893."""

    def test_null(self) -> None:
        assert write(Outer(inner=None, after=7)) == b"\xff\x07\x00"
        assert read(Outer, b"\xff\x07\x00") == Outer(inner=None, after=7)

    def test_present(self) -> None:
        assert write(Outer(inner=Inner(number=3), after=7)) == b"\x01\x03\x00\x07\x00"
        assert read(Outer, b"\x01\x03\x00\x07\x00") == Outer(inner=Inner(number=3), after=7)

    @pytest.mark.parametrize("mark", [0, 2, 0x7F, 0x80, 0xFE])
    def test_any_other_mark_is_refused(self, mark: int) -> None:
        with pytest.raises(ProtocolError, match=f"Inner at byte 0 begins with {mark}:"):
            read(Outer, bytes([mark]) + b"\x03\x00\x07\x00")


class TestTags:
    """KIP-482."""

    def test_defaults_are_not_written(self) -> None:
        assert write(Tagged(number=1)) == b"\x01\x00"

    def test_only_what_is_not_the_default_is_written_in_order(self) -> None:
        written = write(Tagged(number=1, many=[2], name="x"))

        assert written == b"\x01\x02" + b"\x00\x02\x02x" + b"\x05\x05\x02\x00\x00\x00\x02"
        assert read(Tagged, written) == Tagged(number=1, many=[2], name="x")

    def test_0_is_written_where_it_is_not_the_default(self) -> None:
        assert write(TaggedNumber(epoch=0)) == b"\x01\x00\x04\x00\x00\x00\x00"
        assert write(TaggedNumber(epoch=-1)) == b"\x00"

    def test_unknown_tags_are_skipped(self) -> None:
        unknown = b"\x03\x03abc"
        far = b"\xff\x7f\x00"

        assert read(Tagged, b"\x01\x03" + unknown + b"\x05\x05\x02\x00\x00\x00\x02" + far) == Tagged(
            number=1, many=[2]
        )

    def test_a_size_beyond_the_end_is_refused(self) -> None:
        with pytest.raises(ProtocolError, match="tag 3 at byte 4 has length 9, but only 3 bytes are left"):
            read(Tagged, b"\x01\x01\x03\x09abc")

    def test_a_size_that_is_not_that_of_the_value_is_refused(self) -> None:
        with pytest.raises(ProtocolError, match=r"tag 0 \(name\) at byte 4 has size 3, but took 2"):
            read(Tagged, b"\x01\x01\x00\x03\x02xy")

    def test_a_value_cannot_reach_beyond_its_tag(self) -> None:
        with pytest.raises(ProtocolError, match="a string at byte 5 has length 3, but only 1 bytes are left"):
            read(Tagged, b"\x01\x01\x00\x02\x04xyz")

    def test_each_reading_has_lists_of_its_own(self) -> None:
        one, other = read(Tagged, b"\x01\x00"), read(Tagged, b"\x01\x00")
        one.many.append(1)

        assert other.many == []
        assert Tagged(number=1).many == []


class TestFieldsOfOtherVersions:
    def test_each_value_that_the_version_lacks_is_refused(self) -> None:
        assert write(TwoNew(always=1), 0)
        for name in ("first", "second"):
            with pytest.raises(UnsupportedVersionError, match=rf"TwoNew v0 cannot carry {name}='x'"):
                write(TwoNew(always=1, **{name: "x"}), 0)

    def test_a_value_that_the_version_lacks_is_refused(self) -> None:
        with pytest.raises(
            UnsupportedVersionError, match=r"Gone v2 cannot carry new='x': it needs version 3 or"
        ):
            write(Gone(always=1, new="x"), 2)
        with pytest.raises(
            UnsupportedVersionError, match=r"Gone v3 cannot carry old=1: it needs version 0 to 2"
        ):
            write(Gone(always=1, old=1), 3)

    def test_an_ignorable_value_is_dropped(self) -> None:
        assert write(Gone(always=1, dropped=9), 2, flexible=False) == b"\x01\x00"

    def test_defaults_are_no_obstacle_and_come_back(self) -> None:
        assert read(Gone, write(Gone(always=1, old=2), 2), 2) == Gone(always=1, old=2, new="", dropped=7)

    @pytest.mark.parametrize(
        ("request_", "version", "word"),
        [
            (ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=[]), 1, "isolation_level=1"),
            (
                MetadataRequest(topics=[], allow_auto_topic_creation=False),
                3,
                "allow_auto_topic_creation=False",
            ),
        ],
    )
    def test_what_would_change_the_meaning_is_refused(self, request_: Any, version: int, word: str) -> None:
        with pytest.raises(UnsupportedVersionError, match=word):
            codec(type(request_), version).write(request_)

    def test_versions_that_are_not_declared_are_refused(self) -> None:
        with pytest.raises(
            UnsupportedVersionError, match="FetchRequest is declared for versions 4 to 18, not 3"
        ):
            codec(FetchRequest, 3)


class TestValues:
    def test_a_number_that_does_not_fit_is_named(self) -> None:
        request = FetchRequest(max_wait_ms=1 << 31, min_bytes=1, topics=[])

        with pytest.raises(ValueError, match=r"FetchRequest v12: max_wait_ms=2147483648 is not an int32"):
            codec(FetchRequest, 12).write(request)

    def test_a_field_inside_is_named_with_its_path(self) -> None:
        partition = FetchPartition(partition=0, fetch_offset=1 << 63, partition_max_bytes=1)
        request = FetchRequest(
            max_wait_ms=1, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])]
        )

        with pytest.raises(
            ValueError, match=r"topics: partitions: fetch_offset=9223372036854775808 is not an"
        ):
            codec(FetchRequest, 11).write(request)

    def test_an_element_of_an_array_that_does_not_fit_is_an_error_of_the_field(self) -> None:
        new = CreatePartitionsAssignment(broker_ids=[1, 1 << 31])
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t", count=2, assignments=[new])],
            timeout_ms=1,
            validate_only=False,
        )
        with pytest.raises(
            UnencodableError, match=r"v2: topics: assignments: broker_ids: 2147483648 is not an int32"
        ):
            codec(CreatePartitionsRequest, 2).write(request)

    def test_null_where_null_is_not_allowed(self) -> None:
        with pytest.raises(ValueError, match="MetadataRequest v9: topics: name: a string must not be null"):
            codec(MetadataRequest, 9).write(MetadataRequest(topics=[MetadataRequestTopic(name=None)]))

    @pytest.mark.parametrize("flexible", [False, True])
    @pytest.mark.parametrize(
        ("value", "word"),
        [
            (ManyNamed(many=None), "an array"),  # type: ignore[arg-type]
            (Named(name=None, blob=b""), "a string"),  # type: ignore[arg-type]
            (Named(name="", blob=None), "bytes"),  # type: ignore[arg-type]
        ],
    )
    def test_null_of_any_type_where_null_is_not_allowed(
        self, value: Struct, word: str, flexible: bool
    ) -> None:
        with pytest.raises(ValueError, match=f"{word} must not be null"):
            write(value, flexible=flexible)

    @pytest.mark.parametrize("flexible", [False, True])
    @pytest.mark.parametrize("value", [None, [], [Inner(number=3)]])
    def test_an_empty_array_is_not_null(self, value: list[Inner] | None, flexible: bool) -> None:
        """In a heartbeat (KIP-848) null says that the partitions are the same as before."""
        written = write(PerhapsMany(many=value), flexible=flexible)
        assert read(PerhapsMany, written, flexible=flexible) == PerhapsMany(many=value)

    @pytest.mark.parametrize("flexible", [False, True])
    @pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 200])
    def test_an_array_of_numbers_of_any_length(self, length: int, flexible: bool) -> None:
        numbers = Numbers(many=list(range(length)))
        assert read(Numbers, write(numbers, flexible=flexible), flexible=flexible) == numbers

    @pytest.mark.parametrize("flexible", [False, True])
    def test_a_string_too_long(self, flexible: bool) -> None:
        """Its bytes count, not its characters."""
        for longest in ("x" * 32_767, "\u00e4" * 16_383 + "x"):
            named = Named(name=longest, blob=b"")
            assert read(Named, write(named, flexible=flexible), flexible=flexible) == named
            with pytest.raises(ValueError, match="a string of 32768 bytes is longer than 32767"):
                write(Named(name=longest + "x", blob=b""), flexible=flexible)

    def test_values_are_frozen_and_keyword_only(self) -> None:
        with pytest.raises(AttributeError):
            Inner(number=1).number = 2  # type: ignore[misc]
        with pytest.raises(TypeError):
            Inner(1)  # type: ignore[misc]

    def test_a_read_value_equals_prints_and_hashes_like_a_built_one(self) -> None:
        one = read(Inner, b"\x05\x00")

        assert one == Inner(number=5)
        assert repr(one) == "Inner(number=5)"
        assert hash(one) == hash(Inner(number=5))
        assert one not in (Inner(number=6), 5)


class TestRecords:
    def response(self, records: bytes) -> FetchResponse:
        partition = PartitionData(
            partition_index=0,
            error_code=ErrorCode.NONE,
            high_watermark=1,
            aborted_transactions=None,
            records=memoryview(records),
            current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=2),
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])

    def test_a_long_record_set_is_not_copied_when_written(self) -> None:
        batch = bytearray(COPY_BELOW_BYTES)
        data = PartitionProduceData(index=0, records=memoryview(batch))
        request = ProduceRequest(
            acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[data])]
        )

        buffers = codec(ProduceRequest, 9).write(request)

        assert [len(buffer) for buffer in buffers] == [17, COPY_BELOW_BYTES, 3]
        batch[0] = 0x77
        assert buffers[1][0] == 0x77

    def test_short_ones_are_joined(self) -> None:
        assert len(codec(FetchResponse, 12).write(self.response(b"x" * 100))) == 1

    def test_records_are_a_window_on_the_frame(self) -> None:
        frame = bytearray(b"".join(codec(FetchResponse, 12).write(self.response(b"abcde"))))
        records = codec(FetchResponse, 12).read(memoryview(frame)).responses[0].partitions[0].records
        assert records is not None
        frame[frame.index(b"abcde")] = ord("X")

        assert isinstance(records, memoryview)
        assert bytes(records) == b"Xbcde"


class TestLeftOverBytes:
    def test_they_are_refused_before_flexible_versions(self) -> None:
        with pytest.raises(ProtocolError, match="ApiVersionsResponse v0: 1 bytes are left over after byte 6"):
            codec(ApiVersionsResponse, 0).read(memoryview(b"\0\0\0\0\0\0?"))

    def test_they_are_logged_and_dropped_after(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "spark_kafka_native.kafka.protocol.message_codec._LOGGED", set()
        )  # as in a new process
        with caplog.at_level(logging.WARNING):
            response = codec(ApiVersionsResponse, 3).read(memoryview(b"\0\0\1\0\0\0\0\0" + b"?" * 17))

        assert response.api_keys == []
        assert "17 bytes are left over" in caplog.text


class TestBadBytes:
    def test_an_error_says_which_message_and_where(self) -> None:
        data = bytes(4) + b"\0\0" + bytes(4) + b"\x0f" + b"?" * 5

        with pytest.raises(
            ProtocolError, match="FetchResponse v12, 16 bytes: an array at byte 11 has length 14"
        ):
            codec(FetchResponse, 12).read(memoryview(data))

    def test_a_negative_length(self) -> None:
        with pytest.raises(ProtocolError, match="an array before byte 6 has the negative length -2"):
            codec(ApiVersionsResponse, 0).read(memoryview(b"\0\0\xff\xff\xff\xfe"))

    def test_null_where_null_is_not_allowed(self) -> None:
        with pytest.raises(ProtocolError, match="an array before byte 6 is null but must not be"):
            codec(ApiVersionsResponse, 0).read(memoryview(b"\0\0\xff\xff\xff\xff"))

    def test_a_null_string_or_null_bytes_where_null_is_not_allowed(self) -> None:
        for flexible, null in ((True, b"\0"), (False, b"\xff\xff")):
            with pytest.raises(ProtocolError, match=r"a string before byte . is null but must not be"):
                read(Named, null + bytes(9), flexible=flexible)
        for flexible, null in ((True, b"\1\0"), (False, b"\0\0\xff\xff\xff\xff")):
            with pytest.raises(ProtocolError, match=r"type bytes before byte . is null but must not be"):
                read(Named, null + bytes(9), flexible=flexible)

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (b"\xff\xfe", "a string before byte 2 has the negative length -2"),
            (b"\xff\xff" + b"\xff\xff\xff\xfe", "type bytes before byte 6 has the negative length -2"),
            (b"\xff\xff" + b"\xff" * 4 + b"\x80\0\0\0", "an array before byte 10 has the negative length"),
            (b"\xff\xff" + b"\xff" * 8 + b"\xff\xff\xff\xfe", "an array before byte 14 has the negative"),
        ],
    )
    def test_where_null_is_allowed_no_other_negative_length_stands_for_it(
        self, data: bytes, words: str
    ) -> None:
        """Else a broken record set would be one without records."""
        nothing = PerhapsNamed(name=None, blob=None, numbers=None, many=None)
        assert read(PerhapsNamed, b"\xff" * 14, flexible=False) == nothing
        with pytest.raises(ProtocolError, match=words):
            read(PerhapsNamed, data + bytes(14 - len(data)), flexible=False)

    @pytest.mark.parametrize("flexible", [False, True])
    def test_an_array_of_the_smallest_elements_is_no_array_that_is_too_long(self, flexible: bool) -> None:
        many = ManyNamed(many=[Named(name="", blob=b"")] * 20)
        assert read(ManyNamed, write(many, flexible=flexible), flexible=flexible) == many

    def test_a_string_that_is_not_utf8(self) -> None:
        with pytest.raises(ProtocolError, match="ApiVersionsRequest v3, 5 bytes: a string is not UTF-8"):
            codec(ApiVersionsRequest, 3).read(memoryview(b"\x03\xff\xfe\x01\0"))

    @pytest.mark.parametrize("bits", [1, 7, 8, 14, 15, 21, 22, 28, 29, 32])
    def test_varints_around_a_power_of_2(self, bits: int) -> None:
        for value in (2 ** (bits - 1), 2**bits - 1):
            built = build_varint(value)
            assert len(built) == -(-bits // 7)
            assert read_varint(memoryview(built), 0) == (value, len(built))

    @pytest.mark.parametrize("varint", [b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x10"])
    def test_a_varint_of_more_than_32_bits(self, varint: bytes) -> None:
        with pytest.raises(ProtocolError, match="a varint before byte 5 is longer than 32 bits"):
            codec(ApiVersionsRequest, 3).read(memoryview(varint + bytes(9)))

    def test_a_length_of_four_thousand_million_is_refused_at_once(self) -> None:
        with pytest.raises(ProtocolError, match="has length 4294967294, but only 4 bytes are left"):
            codec(ApiVersionsRequest, 3).read(memoryview(b"\xff\xff\xff\xff\x0f" + bytes(4)))

    def test_an_unknown_error_code_is_a_value(self) -> None:
        response = codec(ApiVersionsResponse, 0).read(memoryview(b"\x03\xe7\0\0\0\0"))

        assert response.error_code == 999
        assert response.error_code.name == "UNKNOWN_CODE_999"
        assert not response.error_code.retriable


class TestDeclarations:
    """A declaration that cannot work is refused when it is compiled; the spec test compiles all there are."""

    def test_an_array_of_nothing_would_have_no_bound(self) -> None:
        with pytest.raises(TypeError, match="elements without bytes"):
            compile_struct(ManyEmpty, 0, flexible=False)

    def test_a_field_that_may_be_absent_needs_a_default(self) -> None:
        with pytest.raises(TypeError, match=r"NoDefault\.later may be absent, and has no default"):
            compile_struct(NoDefault, 0, flexible=False)

    def test_tags_need_a_flexible_version(self) -> None:
        with pytest.raises(TypeError, match="Tagged v0 has tagged fields, but is not flexible"):
            compile_struct(Tagged, 0, flexible=False)

    def test_nullable_structs_in_tags_are_in_no_message(self) -> None:
        with pytest.raises(TypeError, match="a nullable Inner in a tag section"):
            compile_struct(TaggedNullable, 0, flexible=True)

    def test_arrays_of_arrays_are_in_no_message(self) -> None:
        with pytest.raises(TypeError, match="arrays of arrays"):
            compile_struct(ArraysOfArrays, 0, flexible=True)

    def test_a_plain_int_says_nothing_about_bytes(self) -> None:
        with pytest.raises(TypeError, match="is no wire type"):
            compile_struct(NoWireType, 0, flexible=True)


def test_uuids_are_uuids() -> None:
    class WithId(Struct):
        topic_id: Uuid

    raw = bytes(range(16))
    assert read(WithId, raw + b"\0").topic_id.bytes == raw
    assert write(read(WithId, raw + b"\0")) == raw + b"\0"


class TestConsumerProtocol:
    """What members of a classic group send each other, in any version."""

    def test_a_member_of_an_older_version_is_understood(self) -> None:
        v0 = b"\0\0" + b"\0\0\0\x01" + b"\0\x01t" + b"\0\0\0\x02hi"
        found = read_versioned(ConsumerProtocolSubscription, v0)
        assert (found.topics, found.user_data, found.generation_id) == (["t"], b"hi", -1)

    def test_fields_of_a_later_version_are_passed_over(self) -> None:
        mine = ConsumerProtocolSubscription(topics=["t"], generation_id=5, rack_id="r")
        later = b"\0\x63" + write_versioned(mine)[2:] + b"more"
        assert read_versioned(ConsumerProtocolSubscription, later) == mine

    def test_data_that_are_cut_off_are_refused(self) -> None:
        cut = b"\0\0" + b"\0\0\0\x01" + b"\0\x01t" + b"\0\0\0\x03hi"
        with pytest.raises(ProtocolError, match="has length 3, but only 2 bytes are left"):
            read_versioned(ConsumerProtocolSubscription, cut)

    @pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\0\0\0\0"])
    def test_bytes_without_a_version_are_refused(self, data: bytes) -> None:
        with pytest.raises(ProtocolError, match="does not begin with a version"):
            read_versioned(ConsumerProtocolSubscription, data)
