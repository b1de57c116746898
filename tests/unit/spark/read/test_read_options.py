import contextlib
import pickle

import pytest

from spark_kafka_native.kafka.errors import ConfigError, KafkaError
from spark_kafka_native.kafka.model import IsolationLevel, TopicPartition
from spark_kafka_native.spark.error_conditions import KafkaConditionError
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read.offset_range import (
    At,
    AtTimestamp,
    AtTimestamps,
    Earliest,
    Latest,
    LatestMinus,
    Specific,
)
from spark_kafka_native.spark.read.read_options import (
    MicroBatchLimits,
    OffsetRetries,
    ReadOptions,
    ReadTask,
    StartFallbacks,
    StreamOptions,
    TaskLimits,
    check_general,
)
from spark_kafka_native.spark.read.schema import full_schema
from spark_kafka_native.spark.read.subscription import Assign, Subscribe, SubscribePattern

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}


def read(**options):
    given = {name.replace("__", "."): value for name, value in options.items()}
    return ReadOptions.for_batch(OptionValues.parse(BASE | given, Scope.READ), now_ms=10_000_000)


def refuse(options, remove=()):
    given = {name: value for name, value in (BASE | options).items() if name not in remove}
    with pytest.raises((ConfigError, KafkaConditionError)) as caught:
        ReadOptions.for_batch(OptionValues.parse(given, Scope.READ))
    return str(caught.value)


def test_defaults():
    options = read()
    assert options.subscription == Subscribe(("t",))
    assert (options.starting, options.ending) == (Earliest(), Latest())
    assert options.fail_on_data_loss
    assert options.client.bootstrap_servers == ("localhost:9092",)
    assert options.consumer.poll_timeout_ms == 120_000
    assert options.group_id.startswith("spark-kafka-relation-")
    assert options.warnings == ()
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("works_at", "again", "attempts"), [(1, True, 1), (3, True, 3), (4, True, 4), (5, True, 4), (2, False, 1)]
)
def test_retries_are_counted_however_long_each_attempt_takes(monkeypatch, works_at, again, attempts):
    """By time, slow brokers and an interval of 0 had none."""
    made, slept = [], []

    def attempt():
        made.append(None)
        if len(made) < works_at:
            raise KafkaError("behind")
        return "found"

    retries = read(fetchOffset__numRetries="3", fetchOffset__retryIntervalMs="70").offset_retries
    monkeypatch.setattr("time.sleep", slept.append)
    with contextlib.nullcontext() if attempts == works_at else pytest.raises(KafkaError, match="behind"):
        assert retries.run(attempt, lambda _: again) == "found"
    assert (len(made), slept) == (attempts, [0.07] * (attempts - 1))


def test_each_limit_is_that_of_its_own_option():
    limits = {"minPartitions": "2", "maxRecordsPerPartition": "3", "maxPartitions": "4"}
    triggers = {"maxOffsetsPerTrigger": "6", "minOffsetsPerTrigger": "6", "maxBytesPerTrigger": "7"}
    retries = {"fetchOffset.numRetries": "8", "fetchOffset.retryIntervalMs": "9"}
    fallbacks = {"startingOffsetsByTimestampStrategy": "latest", "committedOffsetsFallback": "error"}
    given = BASE | limits | triggers | retries | fallbacks | {"maxTriggerDelay": "10ms"}
    options = StreamOptions.parse(OptionValues.parse(given, Scope.STREAM))
    assert options.limits == MicroBatchLimits(max_offsets=6, max_bytes=7, min_offsets=6, max_delay_ms=10)
    assert options.read.task_limits == TaskLimits(
        min_partitions=2, max_records_per_partition=3, max_partitions=4
    )
    assert options.read.offset_retries == OffsetRetries(count=8, interval_ms=9)
    assert options.read.fallbacks == StartFallbacks(after_last_record="latest", not_committed="error")


def test_subscriptions():
    assert read(subscribe=" a, b,,a ").subscription == Subscribe(("a", "b"))
    only = {"kafka.bootstrap.servers": "h:1"}
    assert ReadOptions.for_batch(
        OptionValues.parse(only | {"SUBSCRIBEPATTERN": " a.* "}, Scope.READ)
    ).subscription == SubscribePattern("a.*")
    assert ReadOptions.for_batch(
        OptionValues.parse(only | {"assign": '{"a":[1]}'}, Scope.READ)
    ).subscription == Assign((TopicPartition("a", 1),))


def test_a_time_may_be_the_first_one_there_is():
    zero = {TopicPartition("t", 0): 0}
    assert read(startingOffsetsByTimestamp='{"t":{"0":0}}').starting == AtTimestamps(zero)
    assert read(endingOffsetsByTimestamp='{"t":{"0":0}}').ending == AtTimestamps(zero)


@pytest.mark.parametrize(
    ("start", "end", "bounds"),
    [(-2, 5, (Earliest(), At(5))), (5, -1, (At(5), Latest())), (5, 5, (At(5), At(5)))],
)
def test_a_partition_is_read_from_its_first_record_or_to_its_last_or_between_offsets(start, end, bounds):
    options = read(startingOffsets=f'{{"t":{{"0":{start}}}}}', endingOffsets=f'{{"t":{{"0":{end}}}}}')
    tp = TopicPartition("t", 0)
    assert (options.starting, options.ending) == tuple(Specific({tp: bound}) for bound in bounds)


def test_the_first_way_to_say_where_wins():
    times, offsets = '{"t":{"0":5}}', '{"t":{"0":7}}'
    options = read(startingTimestamp="3", startingOffsetsByTimestamp=times, startingOffsets=offsets)
    assert options.starting == AtTimestamp(3)
    options = read(endingOffsetsByTimestamp=times, endingOffsets=offsets)
    assert options.ending == AtTimestamps({TopicPartition("t", 0): 5})
    assert read(startingOffsets=offsets).starting == Specific({TopicPartition("t", 0): At(7)})
    assert read(startingTimestamp="-1s").starting == AtTimestamp(9_999_000)
    assert read(startingOffsets="latest-10").starting == LatestMinus(10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries on Kafka"),
        (
            {"startingOffsets": '{"t":{"0":-1}}'},
            "startingOffsets for t-0 can't be latest for batch queries on Kafka",
        ),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries on Kafka"),
        (
            {"endingOffsets": '{"t":{"0":-2}}'},
            "ending offset for t-0 can't be earliest for batch queries on Kafka",
        ),
        ({"endingOffsets": "latest-5"}, "latest-N and committed are for starting only"),
        (
            {"endingOffsets": "committed", "kafka.group.id": "g"},
            "latest-N and committed are for starting only",
        ),
        ({"startingTimestamp": "soon"}, "Expected a single long value, got soon"),
        (
            {"assign": "{}"},
            "Only one of the following options can be specified for Kafka source: subscribe, "
            "subscribepattern, "
            "assign. See the docs for more details.",
        ),
        (
            {"subscribe": " , "},
            "No topics to subscribe to as specified value for option 'subscribe' is ' , '",
        ),
        ({"minPartitions": "0"}, "minPartitions must be positive"),
        ({"maxPartitions": "0"}, "maxPartitions must be positive"),
        (
            {"kafka.auto.offset.reset": "none"},
            "Kafka option 'auto.offset.reset' is not supported.\nInstead set the",
        ),
        ({"kafka.key.deserializer": "x"}, "Kafka option 'key.deserializer' is not supported as keys are"),
        ({"kafka.value.deserializer": "x"}, "Use DataFrame operations to explicitly deserialize the values."),
        ({"kafka.enable.auto.commit": "true"}, "Kafka option 'enable.auto.commit' is not supported"),
        ({"kafka.interceptor.classes": "x"}, "Kafka option 'interceptor.classes' is not supported"),
        ({"kafka.isolation.level": "snapshot"}, "must be read_uncommitted or read_committed"),
        (
            {"minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"},
            "The value of minOffsetPerTrigger(2) is higher than the maxOffsetsPerTrigger(1).",
        ),
        ({"startingOffsets": "committed"}, "needs kafka.group.id"),
        ({"includeHeaders": "maybe"}, 'For input string: "maybe"'),
        (
            {"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"1":1}}'},
            "[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET] The specified start offset "
            "and end "
            "offset should have the same topic-partitions. Topic-partitions for start offset: [t-0], "
            "topic-partitions for end offset: [t-1].",
        ),
        (
            {"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"0":2,"1":2}}'},
            "Topic-partitions for start offset: [t-0], topic-partitions for end offset: [t-0, t-1].",
        ),
        (
            {"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"0":0}}'},
            "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] The specified start offset 1 is greater than "
            "the "
            "end offset 0 for topic t partition 0.",
        ),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":2}}', "endingOffsetsByTimestamp": '{"t":{"0":1}}'},
            "The specified start timestamp 2 is greater than the end timestamp 1 for topic t partition 0.",
        ),
    ],
)
def test_refusals_are_in_the_words_of_sparks_connector(options, message):
    assert message in refuse(options)


@pytest.mark.parametrize(
    "near",
    [
        "kafka.bootstrap.server",
        "kafka.bootstrapServers",
        "bootstrap_servers",
        "kafka.brokers",
        "kafka.boostrap.servers",
    ],
)
def test_what_was_probably_meant_by_a_missing_address_is_said(near):
    said = refuse({near: "h:1"}, remove=("kafka.bootstrap.servers",))
    assert said.endswith(f"('{near.lower()}' was given: did you mean 'kafka.bootstrap.servers'?)")


@pytest.mark.parametrize(
    ("near", "meant"),
    [
        ("topic", "subscribe"),
        ("topics", "subscribe"),
        ("kafka.topic", "subscribe"),
        ("subscribes", "subscribe"),
        ("subscribe.pattern", "subscribePattern"),
    ],
)
def test_what_was_probably_meant_by_missing_topics_is_said(near, meant):
    said = refuse({near: "t"}, remove=("subscribe",))
    assert said.endswith(f"See the docs for more details. ('{near}' was given: did you mean '{meant}'?)")


def test_what_was_probably_meant_by_a_missing_group_is_said():
    said = refuse({"startingOffsets": "committed", "group.id": "g"})
    assert said.endswith("('group.id' was given: did you mean 'kafka.group.id'?)")


def test_an_empty_group_is_none_to_start_from_or_to_commit_to():
    for given, text in (
        ({"startingOffsets": "committed"}, "needs kafka.group.id: the group whose offsets to use"),
        ({"commitOffsets": "true"}, "needs kafka.group.id: the group that the offsets are committed to"),
    ):
        values = OptionValues.parse(BASE | given | {"kafka.group.id": ""}, Scope.STREAM)
        with pytest.raises(ConfigError) as caught:
            StreamOptions.parse(values)
        assert str(caught.value).endswith(text)


def test_a_group_has_no_blanks_around_its_name():
    """Java's clients take none: the offsets of another group were looked for."""
    given = {"commitOffsets": "true", "kafka.group.id": " g\n"}
    options = StreamOptions.parse(OptionValues.parse(BASE | given, Scope.STREAM))
    assert options.read.group_id == "g"


def test_refusals_of_what_is_missing():
    assert refuse({}, remove=("subscribe",)) == (
        "One of the following options must be specified for Kafka source: subscribe, subscribepattern, "
        "assign. "
        "See the docs for more details."
    )
    assert refuse({}, remove=("kafka.bootstrap.servers",)) == (
        "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer"
    )
    assert refuse({"bootstrap.servers": "h:1"}, remove=("kafka.bootstrap.servers",)).endswith(
        "configuring Kafka consumer ('bootstrap.servers' was given: did you mean 'kafka.bootstrap.servers'?)"
    )
    both = refuse({"startingOffsets": "latest"}, remove=("subscribe",))
    assert both == "starting offset can't be latest for batch queries on Kafka"
    pattern = refuse({"subscribePattern": " "}, remove=("subscribe",))
    assert pattern == "Pattern to subscribe is empty as specified value for option 'subscribePattern' is ' '"
    assign = refuse({"assign": "t"}, remove=("subscribe",))
    assert assign == "No topicpartitions to assign as specified value for option 'assign' is 't'"


def test_load_does_not_know_yet_whether_it_is_a_stream():
    values = OptionValues.parse(BASE | {"startingOffsets": "latest", "includeHeaders": "true"}, Scope.READ)
    assert check_general(values).include_headers
    with pytest.raises(ConfigError, match="One of the following"):
        check_general(OptionValues.parse({}, Scope.READ))


def test_client_properties_are_read_and_the_unknown_told():
    options = read(
        kafka__isolation__level="read_committed",
        kafka__fetch__max__bytes="1000",
        kafka__max__poll__records="500",
        kafka__fetch__max__byte="7",
        kafka__group__id="g",
        groupIdPrefix="p",
        kafkaConsumer__pollTimeoutMs="9",
    )
    assert options.consumer.isolation_level is IsolationLevel.READ_COMMITTED
    assert options.consumer.fetch_max_bytes == 1000
    assert options.consumer.poll_timeout_ms == 9
    assert read(kafka__poll__timeout__ms="8").consumer.poll_timeout_ms == 8
    both = {"kafkaConsumer__pollTimeoutMs": "9", "kafka__poll__timeout__ms": "8"}
    assert read(**both).consumer.poll_timeout_ms == 9
    assert (options.group_id, options.has_group_id) == ("g", True)
    assert "Option groupIdPrefix will be ignored as option kafka.group.id has been set." in options.warnings
    assert (
        "Unknown option 'kafka.fetch.max.byte' is ignored; did you mean 'kafka.fetch.max.bytes'?"
        in options.warnings
    )
    assert not any("max.poll.records" in warning for warning in options.warnings)


@pytest.mark.parametrize(("poll", "api", "expected"), [("9000", "60000", 9_000), ("120000", "7000", 7_000)])
def test_nothing_that_a_task_waits_for_takes_longer_than_its_timeout(poll, api, expected):
    options = read(kafkaConsumer__pollTimeoutMs=poll, kafka__default__api__timeout__ms=api)
    task = ReadTask.of(options, full_schema(False))
    assert (task.client.default_api_timeout_ms, task.consumer.poll_timeout_ms) == (expected, int(poll))
    assert options.client.default_api_timeout_ms == int(api)  # the driver's


@pytest.mark.parametrize("fails", [True, False])
def test_a_loss_fails_a_task_as_the_option_says(fails):
    options = read(failOnDataLoss=str(fails).lower())
    assert ReadTask.of(options, full_schema(False)).fail_on_data_loss is fails


@pytest.mark.parametrize(("poll_ms", "api_ms"), [("9000", "20000"), ("20000", "9000")])
def test_what_a_task_asks_for_takes_no_longer_than_either_timeout(poll_ms, api_ms):
    given = {"kafkaConsumer__pollTimeoutMs": poll_ms, "kafka__default__api__timeout__ms": api_ms}
    task = ReadTask.of(read(**given, kafka__request__timeout__ms="1000"), full_schema(False))
    assert task.client.default_api_timeout_ms == 9_000
    assert task.consumer.poll_timeout_ms == int(poll_ms)


@pytest.mark.parametrize(("poll_timeout_ms", "wait_ms"), [("3000", 1_500), ("120000", 5_000)])
def test_the_end_of_a_log_is_waited_for_within_the_poll_timeout(poll_timeout_ms, wait_ms):
    """Else a truncated log would be a broker that does not answer, also with `failOnDataLoss=false`."""
    options = read(kafkaConsumer__pollTimeoutMs=poll_timeout_ms)
    task = ReadTask.of(options, full_schema(include_headers=False))
    assert task.consumer.end_of_log_wait_ms == wait_ms
