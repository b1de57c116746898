"""A script that sends and ends: what it sent is delivered, or said to be lost. The interpreters are real
ones."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers.produce_cluster import ProduceCluster, refused
from support.brokers.scripted_broker import properties

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.live_producers import LiveProducers
from spark_kafka_native.kafka.producer.stats import ProducerStats

TP = TopicPartition("t", 0)
SCRIPT = """
import sys
sys.path[:0] = {paths!r}
from spark_kafka_native.kafka import ClientConfig, Producer, ProducerConfig

client = ClientConfig.from_properties({properties!r})
producer = Producer(client, ProducerConfig(linger_ms=60_000, **{config!r}))
{body}
"""


@pytest.fixture
def cluster():
    with ProduceCluster() as running:
        running.create("t")
        yield running


def run(cluster, body, **config):
    script = SCRIPT.format(
        paths=[str(Path(__file__).parents[4])],
        properties=dict(properties(cluster.bootstrap_servers)),
        config=config,
        body=body,
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    # Not the lines about a machine that stands still for three seconds.
    lines = ended.stderr.splitlines(keepends=True)
    ended.stderr = "".join(line for line in lines if "broker has answered" not in line)
    return ended


@pytest.mark.parametrize(
    "body",
    [
        'producer.send("t", value="hello")',
        'producer.send("t", key="k", value="hello")',
        'producer.send("t", value="hello", partition=0, timestamp_ms=5, headers=[("h", b"v")])',
        'producer.send("t", value="hello"); sys.exit(0)',
        'producer.send("t", value="hello"); 1 / 0',
        "import threading, time\n"
        "def late():\n"
        "    threading.main_thread().join()\n"
        '    producer.send("t", value="hello", headers={"h": None})\n'
        "threading.Thread(target=late).start()",
        "import numpy\n"
        "from spark_kafka_native.kafka import RecordColumns\n"
        "import pyarrow as pa\n"
        'value = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(numpy.array([0, 5], "i4")), '
        'pa.py_buffer(b"hello")])\n'
        'producer.send_columns(RecordColumns(length=1, value=value), "t")',
    ],
)
def test_a_record_that_was_sent_is_delivered_at_the_end(cluster, body):
    ended = run(cluster, body)
    assert "lost" not in ended.stderr
    assert cluster.values(TP) == [b"hello"]


@pytest.mark.parametrize(
    ("partitioner", "codec"),
    [
        ("murmur2", "none"),
        ("crc32", "gzip"),
        ("round_robin", "snappy"),
        ("least_bytes", "lz4"),
        ("sticky", "zstd"),
    ],
)
def test_whatever_is_needed_at_the_end_is_there(cluster, partitioner, codec):
    body = """
for i in range(1000):
    producer.send("t", key=f"{i % 7}" if i % 3 else None, value=f"{i}" if i % 5 else None, headers={"h":
    None})
assert "pandas" not in sys.modules
"""
    ended = run(cluster, body, partitioner=partitioner, compression_type=codec)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert cluster.values(TP) == [b"%d" % i if i % 5 else None for i in range(1000)]


def test_what_is_lost_at_the_end_is_said(cluster):
    cluster.script(TP, *[refused(ErrorCode.INVALID_RECORD)] * 5)
    ended = run(cluster, 'for _ in range(3):\n    producer.send("t", value="hello")')
    assert ended.returncode == 0
    assert "3 records that were sent and not flushed are lost" in ended.stderr
    assert "INVALID_RECORD" in ended.stderr
    assert cluster.values(TP) == []


def test_records_that_are_left_where_the_end_is_interrupted_are_lost_and_other_producers_are_closed(caplog):
    class Interrupted:
        def close(self):
            raise KeyboardInterrupt

        def stats(self):
            return ProducerStats(failed_records=7, buffered_records=3)

    class Other(Interrupted):
        closed = False

        def close(self):
            self.closed = True

        def stats(self):
            return ProducerStats(failed_records=7, buffered_records=0 if self.closed else 5)

    live, producers = LiveProducers(), [Other(), Interrupted(), Other()]
    for one in producers:
        live.add(one)
    live.close_all()
    assert (producers[0].closed, producers[2].closed) == (True, True)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("3 records that were sent and not flushed are lost")
    assert "KeyboardInterrupt()" in said


def test_all_producers_are_closed_though_each_leaves_as_it_ends():
    class Leaving:
        closed = False

        def close(self):
            self.closed = True
            live.discard(self)

        def stats(self):
            return ProducerStats()

    live, producers = LiveProducers(), [Leaving() for _ in range(3)]
    for one in producers:
        live.add(one)
    live.close_all()
    assert all(one.closed for one in producers)


def test_what_was_said_to_have_failed_before_the_end_is_not_said_again(cluster):
    cluster.script(TP, refused(ErrorCode.INVALID_RECORD))
    ended = run(cluster, 'assert producer.send("t", value="hello").exception()')
    said = "t-0: 1 record not written: Produce to t-0: INVALID_RECORD"
    assert (ended.returncode, ended.stderr.count("\n"), ended.stderr[: len(said)]) == (0, 1, said)


def test_what_is_still_under_way_as_closing_is_interrupted_is_said(caplog):
    class Interrupted:
        closed = 0

        def close(self):
            self.closed += 1
            raise KeyboardInterrupt

        def stats(self):
            return ProducerStats(buffered_records=0 if self is idle else 7)

        def disown(self):
            raise AssertionError("no process was forked")

    idle, busy, live = Interrupted(), Interrupted(), LiveProducers()
    live.add(idle)
    live.add(busy)
    live.close_all()
    assert (idle.closed, busy.closed) == (1, 1)
    (said,) = caplog.messages
    assert said.startswith("7 records that were sent and not flushed are lost")
    assert "KeyboardInterrupt" in said


def test_a_forked_child_gives_up_the_producers_of_its_parent_and_does_not_close_them():
    class Parents:
        called = ()

        def close(self):
            self.called += ("close",)

        def disown(self):
            self.called += ("disown",)

        def stats(self):
            return ProducerStats()

    live, producers = LiveProducers(), [Parents(), Parents()]
    for one in producers:
        live.add(one)
    live.disown_all()
    live.close_all()
    assert [one.called for one in producers] == [("disown",), ("disown",)]


def test_what_is_kept_in_the_spill_folder_is_not_lost(cluster, tmp_path):
    cluster.script(TP, *[refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)] * 5)
    ended = run(cluster, 'producer.send("t", value="hello")', spill_dir=str(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list(tmp_path.glob("*.batches"))


CHILD = """
import multiprocessing
import sys
sys.path[:0] = {paths!r}
from spark_kafka_native.kafka import Producer

def send(servers, method, generations):
    producer = Producer(servers, linger_ms=60_000)
    for i in range(600):
        producer.send("t", b"%d-%d" % (generations, i))
    if generations > 1:
        sys.exit(in_child(servers, method, generations - 1))

def in_child(*arguments):
    child = multiprocessing.get_context(arguments[1]).Process(target=send, args=arguments)
    child.start()
    child.join()
    return child.exitcode

if __name__ == "__main__":
    sys.exit(in_child({servers!r}, {method!r}, {generations}))
"""


@pytest.mark.parametrize(
    ("method", "generations"), [("fork", 1), ("forkserver", 1), ("spawn", 1), ("fork", 2)]
)
def test_a_child_of_multiprocessing_delivers_what_it_did_not_flush(cluster, tmp_path, method, generations):
    """Such a child ends without the functions that are registered with atexit, a child of it too."""
    script = tmp_path / "parent.py"
    paths, servers = [str(Path(__file__).parents[4])], cluster.bootstrap_servers
    script.write_text(CHILD.format(paths=paths, method=method, servers=servers, generations=generations))
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    of_each = range(1, generations + 1)  # the youngest ends first
    assert cluster.values(TP) == [b"%d-%d" % (one, i) for one in of_each for i in range(600)]
