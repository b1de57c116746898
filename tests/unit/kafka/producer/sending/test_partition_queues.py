"""The queues of all partitions of a producer: which are due, which are active."""

from __future__ import annotations

import math

from support.producer.sending_batches import batch

from spark_kafka_native.kafka.errors import NetworkError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.accumulating.batch import Batch
from spark_kafka_native.kafka.producer.sending.idempotence import ProducerId
from spark_kafka_native.kafka.producer.sending.partition_queue import PartitionQueues, SendingRules
from spark_kafka_native.kafka.producer.sending.transaction import Transaction, TransactionEvent

RULES = SendingRules(retries=10, pipelined=False, delay_s=lambda _failures: 0.5, topic_propagation_s=30.0)


def batch_of(partition: int) -> Batch:
    one = batch(1)
    one.topic_partition = TopicPartition("t", partition)
    return one


def test_the_queues_say_which_are_due_and_when_the_next_is() -> None:
    queues = PartitionQueues(RULES, None)
    waiting = queues.add(batch_of(0))
    backing_off = queues.add(batch_of(1))
    longer = queues.add(batch_of(2))
    again_at, later_at = backing_off.without_leader(10.0), longer.without_leader(11.0)
    assert queues.due(10.0) == ([waiting], again_at)
    assert queues.due(again_at) == ([waiting, backing_off], later_at)
    assert queues.due(later_at) == ([waiting, backing_off, longer], math.inf)


def test_in_a_transaction_only_its_partitions_are_due_and_the_others_are_noted() -> None:
    transaction = Transaction("id")
    transaction.move(TransactionEvent.INITIALIZED)
    queues = PartitionQueues(RULES, ProducerId("id"), transaction)
    added, other = queues.add(batch_of(0)), queues.add(batch_of(1))
    assert queues.due(0.0) == ([], math.inf)  # there is no transaction
    transaction.begin(version=1)
    transaction.added([added.topic_partition])
    assert queues.due(0.0) == ([added], math.inf)
    assert transaction.take_wanted() == [other.topic_partition]


def test_what_holds_up_some_topics_is_noted_for_no_other() -> None:
    queues = PartitionQueues(RULES, None)
    one, other = batch_of(0), batch_of(1)
    other.topic_partition = TopicPartition("u", 1)
    for each in (one, other):
        queues.add(each)
    lost, late = NetworkError("lost"), NetworkError("late")
    queues.held_up(lost)
    queues.held_up(late, ["u"])
    assert (one.sending.last_error, other.sending.last_error) == (lost, late)


def test_a_queue_without_batches_is_retired_and_found_again() -> None:
    queues = PartitionQueues(RULES, None)
    one = batch_of(0)
    queue = queues.add(one)
    queues.retire_idle()
    assert list(queues.active) == [queue]
    queue.given_up([one])
    queues.retire_idle()
    assert not queues.active
    assert queues.find(one.topic_partition) is queues.of(one.topic_partition) is queue
    assert queues.find(TopicPartition("t", 1)) is None
