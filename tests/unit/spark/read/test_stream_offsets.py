import json

import pytest

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.read.driver.micro_batch import StreamOffset

A0, A1, A10, B2 = (
    TopicPartition("a", 0),
    TopicPartition("a", 1),
    TopicPartition("a", 10),
    TopicPartition("b", 2),
)
ID = "0123456789abcdef0123456789abcdef"


def test_the_layout_of_the_jvm_connector_in_one_order():
    text = '{"a": {"0": 5, "1": 6, "10": 7}, "b": {"2": 8}}'
    for positions in ({B2: 8, A10: 7, A1: 6, A0: 5}, {A0: 5, A1: 6, A10: 7, B2: 8}):
        assert json.dumps(StreamOffset(positions=positions).to_json()) == text
    assert StreamOffset.from_json(json.loads('{"b":{"2":8},"a":{"10":7,"1":6,"0":5}}')).positions == {
        A0: 5, A1: 6, A10: 7, B2: 8,
    }  # fmt: skip


def test_ids_and_start_go_there_and_back_where_the_jvm_connector_sees_no_partition():
    offset = StreamOffset(
        positions={A0: 5, B2: 8}, topic_ids={"b": ID, "a": ID[::-1]}, start={A0: 1, A1: 0, B2: 3}
    )
    written = offset.to_json()
    assert StreamOffset.from_json(json.loads(json.dumps(written))) == offset
    assert {topic: partitions for topic, partitions in written.items() if partitions} == {
        "a": {"0": 5},
        "b": {"2": 8},
    }
    assert list(written) == [
        "a",
        "b",
        f"#id a {ID[::-1]}",
        f"#id b {ID}",
        "#start",
        "#start a 0:1 1:0",
        "#start b 2:3",
    ]


def test_no_partition_at_all_is_written_as_a_start_and_never_as_nothing():
    nothing = StreamOffset(positions={}, start={})
    assert nothing.to_json() == {"#start": {}}
    assert StreamOffset.from_json({"#start": {}}) == nothing
    assert nothing.is_initial
    with pytest.raises(ValueError, match="no partition"):
        StreamOffset(positions={}).to_json()
    with pytest.raises(ConfigError, match="no partitions, and each would be read again"):
        StreamOffset.from_json({})  # of the JVM connector, SPARK-41375


def test_initial_is_what_is_its_own_start():
    assert StreamOffset(positions={A0: 5}, start={A0: 5}).is_initial
    assert not StreamOffset(positions={A0: 6}, start={A0: 5}).is_initial
    assert not StreamOffset(positions={A0: 5}).is_initial


def test_another_topic_is_one_with_another_id_if_both_are_known():
    offset = StreamOffset(positions={A0: 5}, topic_ids={"a": ID})
    assert offset.is_other_topic("a", ID[::-1])
    assert not any(offset.is_other_topic(*pair) for pair in (("a", ID), ("a", None), ("b", ID)))


@pytest.mark.parametrize(
    ("offset", "why"),
    [
        (None, "not a JSON object"),
        ([], "not a JSON object"),
        ({"a": 5}, "'a' needs an object"),
        ({"a": {"x": 5}}, "'x' of topic 'a' is not a partition"),
        ({"a": {"01": 5}}, "'01' of topic 'a' is not a partition"),
        ({"a": {"0": -1}}, "-1 is not an offset of a-0"),
        ({"a": {"0": True}}, "True is not an offset"),
        ({"a": {"0": 2**63}}, "is not an offset"),
        ({"a": {"0": 1.5}}, "1.5 is not an offset"),
        ({"#lease 7": {}}, "a newer version wrote it"),
        ({"#id a xyz": {}}, "a newer version wrote it"),
    ],
)
def test_what_is_no_offset_is_refused(offset, why):
    with pytest.raises(
        ConfigError, match="The checkpoint has an offset that is not one of Kafka's"
    ) as caught:
        StreamOffset.from_json(offset)
    assert why in str(caught.value)


def test_where_new_partitions_begin_goes_there_and_back():
    offset = StreamOffset(positions={A0: 5, B2: 8}, topic_ids={"a": ID}, added={A0: 1, A1: 0, B2: 3})
    written = offset.to_json()
    assert list(written) == ["a", "b", f"#id a {ID}", "#added a 0:1 1:0", "#added b 2:3"]
    assert StreamOffset.from_json(json.loads(json.dumps(written))) == offset


def test_positions_in_missing_partitions_go_there_and_back_with_the_ids_of_their_topics_in_their_order():
    ids = {"a": ID, "b": ID[::-1]}
    offset = StreamOffset(positions={A0: 5}, topic_ids=ids, gone={B2: 8, A1: 3})
    written = offset.to_json()
    assert list(written) == ["a", f"#id a {ID}", f"#id b {ids['b']}", "#gone b 2:8", "#gone a 1:3"]
    read = StreamOffset.from_json(json.loads(json.dumps(written)))
    assert read == offset
    assert list(read.gone) == [B2, A1]
