import pickle

import pytest

from spark_kafka_native.cli.typed_records import OF_DATA_FRAMES
from spark_kafka_native.formats import format
from spark_kafka_native.formats.format import SETTINGS
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig, ProducerConfig
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.spark.options.option import OptionType, Scope
from spark_kafka_native.spark.options.option_values import OWN_FORMATS, OptionValues
from spark_kafka_native.spark.options.table import OPTIONS


def test_names_are_case_insensitive_and_kafka_properties_go_apart():
    values = OptionValues.parse(
        {"MinPartitions": "4", "Kafka.Bootstrap.Servers": "h:1", "kafkaConsumer.pollTimeoutMs": "7"},
        Scope.READ,
    )
    assert values.value("minpartitions") == 4
    assert values.kafka == {"bootstrap.servers": "h:1"}
    assert values.value("kafkaConsumer.pollTimeoutMs") == 7
    assert values.warnings == ()


def test_blanks_around_a_property_are_left_out_as_in_java():
    """A space that does not break is none of them: it may be the end of a password."""
    values = OptionValues.parse(
        {"kafka.client.id": "\t\x01 me \n", "kafka.sasl.password": "\u00a0secret\u00a0"}, Scope.READ
    )
    assert values.kafka == {"client.id": "me", "sasl.password": "\u00a0secret\u00a0"}


def test_defaults_are_those_of_the_table():
    values = OptionValues.parse({}, Scope.READ)
    assert values.value("failOnDataLoss") is True
    assert values.value("minPartitions") is None
    assert values.value("fetchOffset.retryIntervalMs") == 1000
    assert values.value("maxTriggerDelay") == 15 * 60_000
    assert (values.value("startingOffsets"), values.value("groupIdPrefix")) == (
        "earliest",
        "spark-kafka-relation",
    )
    stream = OptionValues.parse({}, Scope.STREAM)
    assert stream.value("startingOffsets") == "latest"
    assert stream.value("groupIdPrefix") == "spark-kafka-source"
    assert stream.value("failOnDataLoss") is True


def test_bounds_are_allowed_and_units_have_any_case():
    given = {"minPartitions": str(2**31 - 1), "maxTriggerDelay": " 2 H ", "transactionTimeout": "1S"}
    values = OptionValues.parse(given, Scope.STREAM)
    assert [values.value(name) for name in given] == [2**31 - 1, 7_200_000, 1_000]


def test_an_option_means_its_cap_only_above_it():
    for name, cap in CAPS.items():
        given = [cap - 1, cap, cap + 1, 3_000_000_000]
        found = [OptionValues.parse({name: str(one)}, Scope.READ).value(name) for one in given]
        assert found == [cap - 1, cap, cap, cap]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("70000", 70_000),
        ("70000ms", 70_000),
        ("70s", 70_000),
        ("2m", 120_000),
        ("2 min", 120_000),
        ("3h", 10_800_000),
        ("1D", 86_400_000),
        ("70000000us", 70_000),
        ("70000999us", 70_000),
        (str(2**63 - 1), 2**63 - 1),
        ("70w", None),
        ("2 minutes", None),
        ("70 s 5", None),
        ("-70s", None),
        ("1.5h", None),
        ("s", None),
        ("", None),
    ],
)
def test_a_time_span_has_one_of_the_units_that_there_are(text, milliseconds):
    values = OptionValues.parse({"delegationTokens.maxLifetime": text}, Scope.READ)
    if milliseconds is not None:
        assert values.value("delegationTokens.maxLifetime") == milliseconds
        return
    with pytest.raises(ConfigError, match=r"^Option 'delegationTokens\.maxLifetime' is a duration such as"):
        values.value("delegationTokens.maxLifetime")


@pytest.mark.parametrize(
    "option", [option for option in OPTIONS if option.choices], ids=lambda option: option.name
)
def test_a_choice_has_any_case_and_may_have_blanks_around_it(option):
    for choice in option.choices:
        assert option.parse(f" {choice.upper()}\n") == choice
    with pytest.raises(ConfigError, match=f"option '{option.name}' must be"):
        option.parse("")


LARGEST = {
    "minPartitions": 2**31 - 1,
    "maxPartitions": 2**31 - 1,
    "value.inferRecords": 100_000,
    "key.inferRecords": 100_000,
    "fetchOffset.numRetries": 2**31 - 1,
    "createTopics.partitions": 100_000,
    "createTopics.replicationFactor": 2**15 - 1,
    "transactionTimeout": 2**31 - 1,
}
"""Of the others it is the largest number of 64 bits."""
DAYS = (2**63 - 1) // 86_400_000
CAPS = {"kafkaConsumer.pollTimeoutMs": 2**31 - 1, "fetchOffset.retryIntervalMs": 2**31 - 1}
"""What larger numbers mean, which Spark's connector takes."""


@pytest.mark.parametrize(
    "option",
    [option for option in OPTIONS if option.type in (OptionType.INT, OptionType.DURATION)],
    ids=lambda option: option.name,
)
def test_the_largest_number_is_read_and_the_next_one_refused(option):
    if option.type is OptionType.INT or option.name in LARGEST:
        largest, unit = LARGEST.get(option.name, 2**63 - 1), ""
    else:
        largest, unit = DAYS, "d"
    value = largest * (86_400_000 if unit else 1)
    assert option.parse(f"{largest}{unit}") == min(value, CAPS.get(option.name, value))
    with pytest.raises(ConfigError, match=rf"^{option.name} must be between .* not "):
        option.parse(f"{largest + 1}{unit}")


@pytest.mark.parametrize(("text", "value"), [("True", True), (" TRUE ", True), ("False", False)])
def test_true_and_false_have_any_case(text, value):
    """As Python writes them: `str(True)`."""
    assert OptionValues.parse({"failOnDataLoss": text}, Scope.READ).value("failOnDataLoss") is value


def test_an_unknown_name_is_told_with_the_nearest_one():
    values = OptionValues.parse(
        {"startingOffset": "earliest", "group.id": "g", "x": "1", "path": "p"}, Scope.READ
    )
    assert values.warnings == (
        "Unknown option 'startingOffset' is ignored; did you mean 'startingOffsets'?",
        "Unknown option 'group.id' is ignored; a property of the Kafka client is written 'kafka.group.id'",
        "Unknown option 'x' is ignored",
    )


def judged(scope=Scope.READ, **options):
    given = {name.replace("__", "."): text for name, text in options.items()}
    return OptionValues.parse(given, scope).judge_names((ClientConfig, ConsumerConfig))


@pytest.mark.parametrize(
    "name",
    [
        "acks",
        "transaction.timeout.ms",
        "transactional.id",
        "partitioner.ignore.keys",
        "partitioner.availability.timeout.ms",
    ],
)
def test_a_property_of_a_producer_is_known_in_a_read(name):
    """Both often share their options, also with unknownOptions=error."""
    given = {f"kafka.{name}": "1", "unknownOptions": "error"}
    assert judged(**given) == (f"Option 'kafka.{name}' is ignored here: it is one of the other direction",)


def test_a_name_that_is_refused_is_no_hint():
    for name, scope in (("auto.offset.reset", Scope.READ), ("transactional.id", Scope.WRITE)):
        [warning] = OptionValues.parse({name: "1"}, scope).warnings
        assert f"kafka.{name}" not in warning


def test_a_property_of_a_consumer_is_known_in_a_write():
    given = {"kafka.auto.offset.reset": "latest", "unknownOptions": "error"}
    values = OptionValues.parse(given, Scope.WRITE)
    assert values.judge_names((ClientConfig, ProducerConfig)) == (
        "Option 'kafka.auto.offset.reset' is ignored here: it is one of the other direction",
    )


@pytest.mark.parametrize("name", ["kafka.bootstrap.servers", "kafka.metadata.broker.list"])
def test_brokers_have_two_names(name):
    values = OptionValues.parse({name: "h:1"}, Scope.READ)
    values.require_bootstrap_servers("consumer")
    assert ClientConfig.from_properties(values.kafka).bootstrap_servers == ("h:1",)


def test_settings_that_a_format_knows_are_known():
    given = {"value.format": "csv", "value.delimiter": ";", "key.schemaReferences": "[]"}
    assert OptionValues.parse(given, Scope.WRITE).warnings == ()


def test_the_format_alone_judges_settings_that_csv_refuses():
    given = {"value.format": " CSV ", "value.dateFormat": "d", "value.mode": "x", "key.mode": "x"}
    [warning] = OptionValues.parse(given, Scope.READ).warnings
    assert warning.startswith("Unknown option 'key.mode' is ignored")


@pytest.mark.parametrize("payload", ["key", "value"])
def test_the_settings_of_our_formats_are_the_options_of_the_table(payload):
    names = {option.name for option in OPTIONS}
    options = {name.removeprefix(f"{payload}.") for name in names if name.startswith(f"{payload}.")}
    options |= {name for name in names if name.startswith("registry.")}
    settings = {setting for known in SETTINGS.values() for setting in known}
    assert settings == {name for name in options if name.lower() not in OF_DATA_FRAMES}
    assert set(OWN_FORMATS) == {"raw", *SETTINGS} == {"raw", *format._OURS}


@pytest.mark.parametrize(
    ("given", "warnings"),
    [
        ({"value.format": "mine", "value.colour": "red", "key.format": "json"}, ()),
        ({"VALUE.Format": " Mine ", "Value.Colour": "red"}, ()),
        ({"value.format": "mine", "key.colour": "red"}, ("Unknown option 'key.colour' is ignored",)),
        ({"value.format": " JSON ", "value.colour": "red"}, ("Unknown option 'value.colour' is ignored",)),
        ({"value.format": " CSV ", "value.colour": "red"}, ("Unknown option 'value.colour' is ignored",)),
        ({"value.colour": "red"}, ("Unknown option 'value.colour' is ignored",)),
        (
            {"value.format": "mine", "value.avroSchema": "{}"},
            ("value.avroSchema option ignored in writes",),
        ),
        (
            {"value.format": "json", "value.registry.colour": "red"},
            ("Unknown option 'value.registry.colour' is ignored",),
        ),
    ],
)
def test_a_format_of_another_package_has_settings_of_its_own(given, warnings):
    """Of its own payload only; an option of the table means there what it means elsewhere."""
    found = OptionValues.parse(given, Scope.WRITE).warnings
    assert tuple(line.partition(";")[0] for line in found) == warnings


@pytest.mark.parametrize("scope", [Scope.READ, Scope.STREAM, Scope.WRITE])
def test_unknown_names_are_warned_of_refused_or_passed_over(scope):
    unknown = {"x": "1", "kafka__client__ids": "c"}
    lines = (
        "Unknown option 'x' is ignored",
        "Unknown option 'kafka.client.ids' is ignored; did you mean 'kafka.client.id'?",
    )
    assert judged(scope, **unknown) == judged(scope, **unknown, unknownOptions="WARN") == lines
    assert judged(scope, **unknown, unknownOptions="ignore") == ()
    with pytest.raises(ConfigError) as caught:
        judged(scope, **unknown, unknownOptions="error")
    assert str(caught.value) == (
        "unknownOptions=error: Unknown option 'x'\n"
        "Unknown option 'kafka.client.ids'; did you mean 'kafka.client.id'?"
    )
    with pytest.raises(ConfigError, match="unknownOptions' must be error or warn or ignore"):
        judged(scope, unknownOptions="perhaps")


def test_of_the_options_only_those_of_the_registry_may_be_for_keys_or_values_alone():
    assert judged(value__format="json", value__registry__url="http://r", key__registry__url="http://s") == ()
    [line] = judged(value__format="json", value__failOnDataLoss="false")
    assert line.startswith("Unknown option 'value.failOnDataLoss' is ignored")


def test_what_is_known_and_has_no_effect_is_said_unless_it_is_refused():
    known = {"kafka__ssl__engine__factory__class": "C", "maxOffsetsPerTrigger": "1"}
    said = judged(**known)
    assert len(said) == 2
    assert judged(**known, unknownOptions="ignore") == said
    with pytest.raises(ConfigError) as caught:
        judged(**known, unknownOptions="error")
    assert str(caught.value).endswith(
        "'kafka.ssl.engine.factory.class' is not supported yet: it has no effect"
    )
    assert judged(maxOffsetsPerTrigger="1", unknownOptions="error") == said[:1]


def test_an_option_of_another_place_is_told():
    values = OptionValues.parse({"maxOffsetsPerTrigger": "1", "topic": "t"}, Scope.READ)
    assert values.warnings == (
        "maxOffsetsPerTrigger option ignored in batch queries",
        "topic option ignored in batch queries",
    )
    assert OptionValues.parse({"subscribe": "t"}, Scope.WRITE).warnings == (
        "subscribe option ignored in writes",
    )


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("failOnDataLoss", "yes", 'For input string: "yes"'),
        ("minPartitions", "x", 'For input string: "x"'),
        ("minPartitions", "0", "minPartitions must be positive"),
        ("maxRecordsPerPartition", "-1", "maxrecordsperpartition must be positive"),
        ("minPartitions", "3000000000", "must be between"),
        ("maxOffsetsPerTrigger", "9223372036854775808", "must be between .* and 9223372036854775807"),
        ("startingOffsetsByTimestampStrategy", "first", "No value found for 'first'"),
        ("maxTriggerDelay", "soon", "is a duration such as"),
        ("fetchOffset.numRetries", "-1", "must be between 0 and"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(name, text, why):
    values = OptionValues.parse({name: text}, Scope.READ)
    with pytest.raises(ConfigError, match=why):
        values.value(name)


def test_values_survive_pickling():
    values = OptionValues.parse({"subscribe": "t", "kafka.client.id": "c", "nope": ""}, Scope.READ)
    copy = pickle.loads(pickle.dumps(values))
    assert copy.value("startingOffsets") == "earliest"
    assert (copy.text("subscribe"), copy.kafka, copy.warnings) == ("t", values.kafka, values.warnings)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_default_is_a_value(option):
    for default in {option.default, option.stream_default} - {None}:
        assert OptionValues.parse({option.name: default}, option.scope).value(option.name) == option.parse(
            default
        )
        assert " " not in default


def test_every_option_is_declared_once_and_says_what_it_means():
    names = [option.name.lower() for option in OPTIONS]
    assert len(names) == len(set(names))
    assert all(option.sentence.endswith(".") for option in OPTIONS)


def test_what_spark_puts_among_the_options_is_no_mistake():
    given = {"path": "/x", "queryName": "copy", "checkpointLocation": "/y"}
    assert OptionValues.parse(given, Scope.WRITE).warnings == ()
