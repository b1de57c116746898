"""A living producer sends again what it has put into its spill folder: once, in order, and then goes on."""

import os
import random
import threading
import time

import pytest
from support.brokers.produce_cluster import LOST_ANSWER, LOST_REQUEST, ProduceCluster, Step, refused
from support.brokers.scripted_broker import properties

from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.errors import DeliveryStatus
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest

pytestmark = pytest.mark.timed(0.1)

TP = TopicPartition("t", 0)
DENIED = refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@pytest.fixture
def cluster():
    with ProduceCluster() as running:
        running.create("t", 2)
        yield running


def open_producer(cluster, folder, on_error=None, **config):
    client = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
    settings = {"batch_records": 1, "linger_ms": 0, "delivery_timeout_ms": 2_000} | config
    return Producer(client, ProducerConfig(spill_dir=str(folder), **settings), on_error=on_error)


def numbers(start, stop):
    return [b"%d" % i for i in range(start, stop)]


def eventually(what, timeout_s=60):
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.01)


def is_empty(folder):
    return sorted(path.name for path in folder.iterdir()) == ["owner.lock"]


def test_a_living_producer_delivers_once_the_leader_answers(cluster, tmp_path):
    with open_producer(cluster, tmp_path, delivery_timeout_ms=300) as producer:
        producer.send("t", value=b"0", partition=0).result(60)
        cluster[1].stop()
        deliveries = [producer.send("t", value=value, partition=0) for value in numbers(1, 20)]
        assert all(delivery.exception(60).spilled for delivery in deliveries)
        cluster[1].start()
        eventually(lambda: is_empty(tmp_path))
        assert producer.send("t", value=b"20", partition=0).result(60).offset == 20
        assert cluster.values(TP) == numbers(0, 21)
        stats = producer.stats()
        assert (stats.records, stats.failed_records, stats.spilled_records) == (21, 19, 19)


def test_what_was_possibly_written_is_recognised(cluster, tmp_path):
    with open_producer(cluster, tmp_path, delivery_timeout_ms=400) as producer:
        producer.send("t", value=b"0", partition=0).result(60)
        cluster.script(TP, *[LOST_ANSWER] * 1000)  # it is appended, and the answer is lost
        lost = producer.send("t", value=b"1", partition=0)
        assert lost.exception(60).status is DeliveryStatus.POSSIBLY_PERSISTED
        cluster.scripts.clear()
        eventually(lambda: is_empty(tmp_path))
        producer.send("t", value=b"2", partition=0).result(60)
        assert cluster.values(TP) == numbers(0, 3)


def test_what_was_possibly_written_and_is_left_behind_may_be_written_twice_and_the_log_says_so(
    cluster, tmp_path, caplog
):
    """Brokers look at the content before they look for duplicates."""
    with open_producer(cluster, tmp_path, retries=1) as producer:
        cluster.script(TP, LOST_ANSWER, LOST_ANSWER, refused(ErrorCode.INVALID_TIMESTAMP))
        assert producer.send("t", value=b"0", partition=0).exception(60).spilled
        eventually(lambda: caplog.messages)
        producer.send("t", value=b"1", partition=0)
        eventually(lambda: cluster.values(TP) == numbers(0, 2))
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "only the next producer sends it again" in said
    assert "it may be in the log already, and is there twice then" in said
    assert not is_empty(tmp_path)


def test_bytes_that_were_damaged_on_the_way_are_kept_and_sent_again(cluster, tmp_path):
    with open_producer(cluster, tmp_path, delivery_timeout_ms=300) as producer:
        cluster.script(TP, *[refused(ErrorCode.CORRUPT_MESSAGE)] * 10_000)
        assert producer.send("t", value=b"0", partition=0).exception(60).spilled
        cluster.scripts.clear()
        eventually(lambda: is_empty(tmp_path))
    assert cluster.values(TP) == [b"0"]


def test_bytes_that_are_refused_as_corrupt_from_the_folder_too_hold_up_no_other(cluster, tmp_path, caplog):
    """An old broker says so of a record without a key in a compacted topic."""
    with open_producer(cluster, tmp_path, delivery_timeout_ms=300) as producer:
        cluster.script(TP, *[refused(ErrorCode.CORRUPT_MESSAGE)] * 10_000)
        assert producer.send("t", value=b"0", partition=0).exception(60).spilled
        eventually(lambda: [one for one in caplog.records if one.levelname == "ERROR"])
        cluster.scripts.clear()
        producer.send("t", value=b"1", partition=0)
        eventually(lambda: cluster.values(TP)[-1:] == [b"1"])
    assert "only the next producer sends it again" in caplog.text
    if cluster.values(TP) == [b"1"]:
        assert not is_empty(tmp_path)
    else:  # its last request was under way when it was given up
        assert cluster.values(TP) == [b"0", b"1"]
        assert "it may be in the log already" in caplog.text


def test_records_are_told_once_however_often_it_is_tried(cluster, tmp_path):
    told = []
    producer = open_producer(
        cluster,
        tmp_path,
        lambda _tp, records, _error, _retriable: told.append(records.length),
        keep_undelivered=True,
    )
    with producer:
        cluster.script(TP, *[DENIED] * 5)
        first = producer.send("t", value=b"0", partition=0)
        assert first.exception(60).spilled
        second = producer.send("t", value=b"1", partition=0)
        assert "must not be overtaken" in str(second.exception(60))
        eventually(lambda: is_empty(tmp_path))
        assert cluster.values(TP) == numbers(0, 2)
        assert told == [1, 1]
        assert len(producer.undelivered()) == 2
        assert producer.stats().failed_records == 2


def test_other_partitions_are_not_held_up(cluster, tmp_path):
    with open_producer(cluster, tmp_path) as producer:
        cluster.script(TP, *[DENIED] * 3)
        assert producer.send("t", value=b"0", partition=0).exception(60).spilled
        assert producer.send("t", value=b"other", partition=1).result(60).offset == 0
        eventually(lambda: is_empty(tmp_path))


def test_new_records_wait_behind_what_is_sent_again(cluster, tmp_path):
    """The first of many is taken; before the others are, records come, and a batch is refused once more."""
    with open_producer(cluster, tmp_path, delivery_timeout_ms=60_000) as producer:
        producer.send("t", value=b"0", partition=0).result(60)
        cluster.script(TP, DENIED)
        for value in numbers(1, 10):
            producer.send("t", value=value, partition=0)
        cluster.delay_s = 0.05
        eventually(lambda: len(cluster.values(TP)) > 2)
        cluster.script(TP, refused(ErrorCode.NOT_ENOUGH_REPLICAS), DENIED, LOST_ANSWER)
        for value in numbers(10, 30):
            producer.send("t", value=value, partition=0)
        eventually(lambda: is_empty(tmp_path) and len(cluster.values(TP)) >= 30)
        assert cluster.values(TP) == numbers(0, 30)
        assert producer.send("t", value=b"30", partition=0).result(60).offset == 30


def test_numbers_that_the_broker_forgot_are_given_anew(cluster, tmp_path):
    with open_producer(cluster, tmp_path) as producer:
        producer.send("t", value=b"0", partition=0).result(60)
        cluster.script(TP, DENIED, *[refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)] * 2)
        for value in numbers(1, 6):
            producer.send("t", value=value, partition=0)
        eventually(lambda: is_empty(tmp_path) and len(cluster.values(TP)) >= 6)
        producer.send("t", value=b"6", partition=0).result(60)
        assert cluster.values(TP) == numbers(0, 7)


def test_what_is_refused_for_good_by_then_is_said_and_holds_up_nobody(cluster, tmp_path, caplog):
    with open_producer(cluster, tmp_path) as producer:
        cluster.script(TP, DENIED, refused(ErrorCode.INVALID_RECORD))
        for value in numbers(0, 5):
            producer.send("t", value=value, partition=0)
        eventually(lambda: len(cluster.values(TP)) >= 4)
        producer.send("t", value=b"5", partition=0).result(60)
        assert cluster.values(TP) == numbers(1, 6)
        said = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
        assert [("INVALID_RECORD" in one, "kept in the spill folder" in one) for one in said] == [
            (True, True)
        ]
    assert not is_empty(tmp_path)


def test_a_batch_that_is_too_large_by_then_goes_in_halves(cluster, tmp_path):
    with open_producer(cluster, tmp_path, batch_records=8, linger_ms=2_000) as producer:
        cluster.script(TP, DENIED)
        for value in numbers(0, 8):
            producer.send("t", value=value + b"x" * 90, partition=0)
        cluster.max_message_bytes = 400
        producer.flush(60)
        eventually(lambda: is_empty(tmp_path))
        assert cluster.values(TP) == [value + b"x" * 90 for value in numbers(0, 8)]


def test_a_producer_that_ends_leaves_the_rest_for_the_next(cluster, tmp_path):
    with open_producer(cluster, tmp_path, delivery_timeout_ms=300) as producer:
        producer.send("t", value=b"0", partition=0).result(60)
        cluster[1].stop()
        deliveries = [producer.send("t", value=value, partition=0) for value in numbers(1, 5)]
        assert all(delivery.exception(60).spilled for delivery in deliveries)
        producer.close(0.1)
    cluster[1].start()
    with open_producer(cluster, tmp_path, delivery_timeout_ms=60_000) as producer:
        producer.flush(60)
        assert cluster.values(TP) == numbers(0, 5)


def test_what_an_earlier_producer_left_is_tried_again_without_a_flush(cluster, tmp_path):
    with open_producer(cluster, tmp_path) as producer:
        cluster.script(TP, *[DENIED] * 2)
        assert producer.send("t", value=b"0", partition=0).exception(60).spilled
        producer.close(0)
    cluster[1].stop()
    with open_producer(cluster, tmp_path, max_block_ms=50) as producer:
        time.sleep(0.3)  # it finds no broker to ask for the topic
        cluster[1].start()
        eventually(lambda: is_empty(tmp_path))
        assert cluster.values(TP) == numbers(0, 1)


def test_without_sequence_numbers_what_was_in_flight_is_not_sent_twice(cluster, tmp_path):
    """The delivery timeout passes while the answer is on its way: it comes before anything is tried again."""
    with open_producer(cluster, tmp_path, delivery_timeout_ms=500, enable_idempotence=False) as producer:
        producer.send("t", value=b"0", partition=0).result(60)
        cluster.delay_s = 1.5
        late = producer.send("t", value=b"1", partition=0)
        assert late.exception(60).status is DeliveryStatus.POSSIBLY_PERSISTED
        cluster.delay_s = 0
        eventually(lambda: is_empty(tmp_path))
        producer.send("t", value=b"2", partition=0).result(60)
        assert cluster.values(TP) == numbers(0, 3)


def test_a_producer_that_ends_waits_for_the_answer_to_a_try(cluster, tmp_path):
    """Without sequence numbers no broker would recognise that of the next producer."""
    tried, turned, answered = threading.Event(), threading.Event(), threading.Event()
    produce = cluster.producer(1)

    def answer_late(request, version):
        tried.set()
        assert answered.wait(60)
        return produce(request, version)

    with open_producer(cluster, tmp_path, delivery_timeout_ms=60_000, enable_idempotence=False) as producer:
        cluster.script(TP, DENIED)
        assert producer.send("t", value=b"0", partition=0).exception(60).spilled
        turn = producer._sender.loop.turn

        def turn_and_note(new_topics, closing):
            turn(new_topics, closing)
            if closing:
                turned.set()

        producer._sender.loop.turn = turn_and_note
        cluster[1].push(ProduceRequest, answer_late)
        assert tried.wait(60)
        closing = threading.Thread(target=producer.close, args=(60,))
        closing.start()
        try:
            eventually(lambda: turned.is_set() or not producer._sender.running)
        finally:
            answered.set()
        closing.join(60)
    assert cluster.values(TP) == numbers(0, 1)
    assert is_empty(tmp_path)


@pytest.mark.parametrize("records", [2, 4])
def test_only_halves_of_a_batch_in_doubt_may_be_doubled(cluster, tmp_path, caplog, records):
    """They get new numbers; the batches behind it are in the log, too, and are recognised by theirs."""
    cluster.told_max_message_bytes = 1_000_000
    with open_producer(cluster, tmp_path, batch_records=records, linger_ms=1_000) as producer:
        for value in numbers(0, records):
            last = producer.send("t", value=value, partition=0)
        last.result(60)
        in_doubt, refusal = Step(True, ErrorCode.REQUEST_TIMED_OUT), refused(ErrorCode.NOT_ENOUGH_REPLICAS)
        cluster.script(TP, *[in_doubt] * 3, *[refusal] * 10_000)
        values = [*(b"%d" % i + b"x" * 1_000 for i in range(records)), *numbers(0, 2 * records)]
        deliveries = [producer.send("t", value=value, partition=0) for value in values]
        assert all(delivery.exception(60).spilled for delivery in deliveries)
        before = cluster.values(TP)
        cluster.max_message_bytes = 1_500
        cluster.scripts.clear()
        eventually(lambda: is_empty(tmp_path))
        producer.send("t", value=b"last", partition=0).result(60)
    assert before == [*numbers(0, records), *values]
    assert cluster.values(TP) == [*before, *values[:records], b"last"]
    assert "its halves may be duplicates" in caplog.text


FAULTS = (
    LOST_ANSWER,
    LOST_REQUEST,
    refused(ErrorCode.NOT_ENOUGH_REPLICAS),
    DENIED,
    Step(True, ErrorCode.REQUEST_TIMED_OUT),
)


@pytest.mark.parametrize("seed", range(int(os.environ.get("HEALING_SEEDS", "10"))))
def test_whatever_happens_each_record_is_there_once_and_in_order(seed, tmp_path):
    """One producer lives through outages, refusals, lost requests and lost answers, and at times ends."""
    rng, before = random.Random(seed), threading.active_count()
    with ProduceCluster() as cluster:
        cluster.create("t", 1)
        if rng.random() < 0.4:
            cluster.max_message_bytes, cluster.told_max_message_bytes = 400, 100_000
        config = {
            "delivery_timeout_ms": rng.choice([100, 300, 3_000]),
            "retries": rng.choice([1, 3, 100]),
            "batch_records": rng.choice([1, 3]),
        }
        producer, sent = open_producer(cluster, tmp_path, **config), 0
        for _ in range(rng.randint(4, 10)):
            cluster.script(TP, *rng.choices(FAULTS, k=rng.randint(0, 8)))
            cluster.delay_s = rng.choice([0, 0.005, 0.02])
            stopped = rng.random() < 0.3
            for turn in range(rng.randint(1, 6)):
                for _ in range(rng.randint(1, 5)):
                    producer.send("t", value=b"%04d" % sent + b"x" * 90, partition=0)
                    sent += 1
                time.sleep(rng.random() * 0.1)
                if stopped and turn == 2:
                    cluster[1].stop()
            time.sleep(rng.random() * 0.3)
            if rng.random() < 0.2:
                producer.close(rng.choice([0.001, 0.05, 0.3]))
            cluster[1].start() if stopped and turn >= 2 else None
            if producer.closed:
                producer = open_producer(cluster, tmp_path, **config)
        cluster.scripts.clear()
        cluster.delay_s = 0
        with producer:
            producer.flush(60)
            eventually(lambda: is_empty(tmp_path))
            producer.send("t", value=b"last", partition=0).result(60)
        assert [value[:4] for value in cluster.values(TP)] == [b"%04d" % i for i in range(sent)] + [b"last"]
        assert threading.active_count() < before + 40  # its own, and those that earlier tests left
