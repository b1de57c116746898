"""A topic gets partitions while workers live: each task goes by those that there are when it begins."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.batch_writer import KafkaBatchWriter
from spark_kafka_native.spark.write.stream_writer import KafkaStreamWriter
from spark_kafka_native.testing import MockBroker

KEYS = [str(key).encode() for key in range(40)]


@pytest.mark.parametrize("named_by", ["the option", "the rows"])
@pytest.mark.parametrize("kind", [KafkaBatchWriter, KafkaStreamWriter], ids=["batch", "stream"])
def test_keys_go_where_they_go_from_now_on(kind: type, named_by: str) -> None:
    """Workers that had looked at different times sent a key here and there for five minutes."""
    schema = StructType().add("key", "binary").add("value", "binary")
    columns = {"key": KEYS, "value": KEYS}
    given = {"topic": "t"}
    if named_by == "the rows":
        schema, given, columns = schema.add("topic", "string"), {}, {**columns, "topic": ["t"] * len(KEYS)}

    with MockBroker() as broker:
        values = OptionValues.parse(
            {"kafka.bootstrap.servers": broker.bootstrap_servers, **given}, Scope.WRITE
        )

        def run_task(partitions: int) -> bool:
            writer = kind(values, schema, **({"overwrite": False} if kind is KafkaBatchWriter else {}))
            writer.write(iter([pa.record_batch(columns)]))
            return all(broker.records("t", partition) for partition in range(partitions))

        broker.create_topic("t", partitions=2)
        assert run_task(2)
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_partitions({"t": 8})
        assert run_task(8)
