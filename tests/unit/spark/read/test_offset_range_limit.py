import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.read.offset_range import (
    At,
    Committed,
    Earliest,
    Latest,
    LatestMinus,
    Specific,
    format_offsets,
    format_topic_partitions,
    parse_assignment,
    parse_offset_limit,
    parse_timestamps,
)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("earliest", Earliest()),
        (" LATEST ", Latest()),
        ("latest-1000", LatestMinus(1000)),
        ("Latest - 5", LatestMinus(5)),
        ("committed", Committed()),
        (" Committed\n", Committed()),
        (
            '{"a":{"0":23,"1":-1},"b":{"0":-2}}',
            Specific(
                {
                    TopicPartition("a", 0): At(23),
                    TopicPartition("a", 1): Latest(),
                    TopicPartition("b", 0): Earliest(),
                }
            ),
        ),
        # As pandas writes the offsets of a column with nulls.
        (
            '{"a":{"0":5.0,"1":-2.0,"2":9223372036854775807.00}}',
            Specific(
                {
                    TopicPartition("a", 0): At(5),
                    TopicPartition("a", 1): Earliest(),
                    TopicPartition("a", 2): At(2**63 - 1),
                }
            ),
        ),
    ],
)
def test_a_limit_is_a_word_or_json(text, limit):
    assert parse_offset_limit(text) == limit


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("soonest", "line 1 column 1"),
        ("latest-", "line 1"),
        ("[]", "not a JSON object"),
        ('{"a":[0]}', "topic 'a' needs an object of partitions"),
        ('{"a":{"0":-3}}', "-3 is not allowed for a-0"),
        ('{"a":{"0":1.5}}', "1.5 is not allowed for a-0"),
        ('{"a":{"0":true}}', "True is not allowed for a-0"),
        ('{"a":{"0":1e400}}', "inf is not allowed for a-0"),
        ('{"a":{"0":1e-400}}', "0.0 is not allowed for a-0"),
        ('{"a":{"0":1.0e2}}', "100.0 is not allowed for a-0"),
        ('{"a":{"0":1e99999999999999999999}}', "inf is not allowed for a-0"),
        ('{"a":{"0":' + "1" * 5000 + ".0}}", "integer string conversion"),
        ('{"a":{"0":9223372036854775807.5}}', "is not allowed for a-0"),
        ('{"a":{"0":NaN}}', "NaN is not a number"),
        ('{"a":{"0":9223372036854775808}}', "is not allowed for a-0"),
        ('{"a":{"00":1}}', "'00' of topic 'a' is not a partition"),
        ('{"a":{"-1":1}}', "'-1' of topic 'a' is not a partition"),
        ('{"a":{"2147483648":1}}', "is not a partition"),
        ('{"a":{"0":1,"0":2}}', "the key '0' occurs twice"),
        ('{"a":{"0":1},"a":{"1":2}}', "the key 'a' occurs twice"),
        ('{"a":' * 5 + "1" + "}" * 5, "it is nested more than 4 levels deep"),
        ("[" * 100_000, "it is nested more than 4 levels deep"),
        ('{"}}}":{"0":[[[1]]]}}', "it is nested more than 4 levels deep"),
        ('{"a":{"0":' + "1" * 5000 + "}}", "integer string conversion"),
        ('{"a":{"0":1}}' + " " * (8 << 20), "more than the 8388608 allowed"),
    ],
)
def test_json_is_checked_like_untrusted_input(text, why):
    with pytest.raises(ConfigError) as caught:
        parse_offset_limit(text)
    message = str(caught.value)
    assert message.startswith('Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got ')
    assert why in message
    assert len(message) < 600


def test_timestamps_are_whole_milliseconds():
    assert parse_timestamps('{"t":{"0":1700000000000}}').timestamps_ms == {
        TopicPartition("t", 0): 1700000000000
    }
    last = 2**63 - 1
    assert parse_timestamps(f'{{"t":{{"0":{last}}}}}').timestamps_ms == {TopicPartition("t", 0): last}
    for wrong in (-1, last + 1):
        with pytest.raises(ConfigError, match="123456789"):
            parse_timestamps(f'{{"t":{{"0":{wrong}}}}}')
    for value in ("-1", "true", "1.5", '"5"', "null", "9223372036854775808"):
        with pytest.raises(ConfigError, match=r"123456789.* is not allowed for t-0"):
            parse_timestamps(f'{{"t":{{"0":{value}}}}}')


def test_an_assignment_lists_partitions():
    assert parse_assignment('{"b":[1,0],"a":[3]}') == (
        TopicPartition("a", 3),
        TopicPartition("b", 0),
        TopicPartition("b", 1),
    )
    assert parse_assignment('{"a":[1,0,1]}') == (TopicPartition("a", 0), TopicPartition("a", 1))
    for text in ('{"a":0}', '{"a":[-1]}', '{"a":[2147483648]}', '{"a":["0"]}', '{"a":[true]}', "{"):
        with pytest.raises(ConfigError, match=r'Expected e.g. \{"topicA":\[0,1\],"topicB":\[0,1\]\}, got'):
            parse_assignment(text)


def test_offsets_are_written_in_order():
    offsets = {TopicPartition("b", 10): 1, TopicPartition("b", 2): 2, TopicPartition("a", 0): 3}
    assert format_offsets(offsets) == '{"a":{"0":3},"b":{"2":2,"10":1}}'
    assert json.loads(format_offsets(offsets)) == {"a": {"0": 3}, "b": {"2": 2, "10": 1}}


def test_the_offsets_of_a_hundred_thousand_partitions_are_an_option():
    offsets = {
        TopicPartition(f"events.{topic:03d}", partition): 10**12 + partition
        for topic in range(100)
        for partition in range(1_000)
    }
    limit = parse_offset_limit(format_offsets(offsets))
    assert limit == Specific({tp: At(offset) for tp, offset in offsets.items()})


def test_a_long_list_of_partitions_is_cut():
    text = format_topic_partitions(TopicPartition("t", i) for i in range(60))
    assert text.startswith("[t-0, t-1, t-2")
    assert text.endswith(", ... 10 more]")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("0"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(text=st.text(max_size=60) | _JSON.map(json.dumps))
def test_any_text_is_a_limit_or_a_config_error(text):
    for parse in (parse_offset_limit, parse_timestamps, parse_assignment):
        with contextlib.suppress(ConfigError):
            parse(text)


@given(
    offsets=st.dictionaries(
        st.tuples(st.text("abc-._", min_size=1, max_size=4), st.integers(0, 2**31 - 1)).map(
            lambda p: TopicPartition(*p)
        ),
        st.integers(0, 2**63 - 1),
        max_size=6,
    )
)
def test_what_is_written_is_read_back(offsets):
    assert parse_offset_limit(format_offsets(offsets)) == Specific(
        {tp: At(offset) for tp, offset in offsets.items()}
    )
