"""Code of a user of the client. mypy (test_types_for_users.py) and pyright (`make wheels`) find no error."""

from collections.abc import Iterator
from typing import assert_type

from spark_kafka_native.formats import ColumnFormat
from spark_kafka_native.kafka import (
    Admin,
    Consumer,
    Delivery,
    FetchedRecords,
    GroupConsumer,
    KafkaError,
    Producer,
    Record,
    TopicPartition,
    TransactionalProducer,
    TypedRecords,
)


def write(servers: str) -> int:
    with Producer(servers, acks="all") as producer:
        delivery: Delivery = producer.send("orders", b"value", key=b"key", headers=[("a", b"b")])
        producer.flush(timeout=60.0)
        return delivery.result(60.0).offset or 0


def read(servers: str) -> Iterator[Record]:
    with Consumer(servers, "orders") as consumer:
        consumer.seek(17, TopicPartition("orders", 0))
        yield from consumer.poll(1.0)


def read_typed(servers: str, group: str) -> int:
    """A read with a format has other records than one without."""
    with Consumer(servers, "orders") as consumer, GroupConsumer(servers, "orders", group) as member:
        assert_type(consumer.read_columns(1.0), FetchedRecords | None)
        assert_type(member.read(timeout=1.0), FetchedRecords | None)
        assert_type(consumer.read_columns(value_format="json", mode="permissive"), TypedRecords | None)
        assert_type(member.read(1.0, key_format="string"), TypedRecords | None)
        found = member.read(1.0, value_format=ColumnFormat("json", "id bigint"), key_format="string")
        return 0 if found is None else found.bad


def copy(servers: str, group: str) -> None:
    with (
        GroupConsumer(servers, "orders", group) as consumer,
        TransactionalProducer(servers, "copy-1") as producer,
    ):
        for record in consumer:
            with consumer.transaction(producer):
                producer.send("copy", record.value, key=record.key)


def lag(servers: str) -> int:
    with Admin(servers) as admin:
        try:
            return sum(one.lag or 0 for one in admin.group_lag("copiers").values())
        except KafkaError as error:
            raise SystemExit(str(error)) from error
