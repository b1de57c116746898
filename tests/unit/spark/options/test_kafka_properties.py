from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.spark.options.option_values import describe_unread

CONFIGS = (ClientConfig, ConsumerConfig)


def test_what_is_read_or_means_nothing_here_is_passed_over():
    names = ["client.id", "fetch.min.bytes", "client.dns.lookup", "metadata.recovery.strategy", "mine"]
    assert describe_unread(names, CONFIGS, {"mine"}) == ()


def test_what_is_not_supported_yet_is_told_from_what_is_unknown():
    names = ["sasl.kerberos.kinit.cmd", "ssl.engine.factory.class", "config.providers"]
    assert describe_unread(names, CONFIGS) == tuple(
        f"Option 'kafka.{name}' is not supported yet: it has no effect" for name in names
    )
    assert describe_unread(["ssl.keystore.locaton", "clientid", "zzz"], CONFIGS) == (
        "Unknown option 'kafka.ssl.keystore.locaton' is ignored; did you mean 'kafka.ssl.keystore.location'?",
        "Unknown option 'kafka.clientid' is ignored; did you mean 'kafka.client.id'?",
        "Unknown option 'kafka.zzz' is ignored",
    )
