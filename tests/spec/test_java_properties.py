"""Every property of Java's clients is read, refused, without meaning here, or called not supported yet."""

import pytest

from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig, ProducerConfig
from spark_kafka_native.spark.options.option_values import MEANINGLESS_IN_WRITES, describe_unread
from spark_kafka_native.spark.read import read_options
from spark_kafka_native.spark.write import write_options
from spark_kafka_native.testing import run_java

ORACLE = """
    class Oracle {
        public static void main(String[] arguments) {
            var names = arguments[0].equals("consumer")
                ? org.apache.kafka.clients.consumer.ConsumerConfig.configNames()
                : org.apache.kafka.clients.producer.ProducerConfig.configNames();
            names.forEach(System.out::println);
        }
    }
"""


@pytest.mark.parametrize(
    ("side", "config", "refused", "meaningless"),
    [
        ("consumer", ConsumerConfig, read_options.REFUSED, ()),
        ("producer", ProducerConfig, write_options.REFUSED, MEANINGLESS_IN_WRITES),
    ],
)
def test_no_property_of_java_is_called_unknown(side, config, refused, meaningless) -> None:
    # The odd one is read before the others are.
    names = set(run_java(ORACLE, side).split()) - set(refused) - {"partitioner.ignore.keys"}
    assert len(names) > 80
    told = describe_unread(sorted(names), (ClientConfig, config), meaningless)
    assert [warning for warning in told if "Unknown" in warning] == []
