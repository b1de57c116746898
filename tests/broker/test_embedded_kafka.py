import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from spark_kafka_native.testing import BrokerStartError, EmbeddedKafka
from spark_kafka_native.testing.java import kafka_folder

pytestmark = pytest.mark.broker

PARENT = """
import json, sys, time
from spark_kafka_native.testing import EmbeddedKafka
kafka = EmbeddedKafka(int(sys.argv[1])).start()
print(json.dumps([str(kafka.folder), [broker.pid for broker in kafka.brokers]]), flush=True)
time.sleep(600)
"""


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def eventually(condition, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def produce(bootstrap_servers: str, topic: str, values: list[str], **settings: str) -> None:
    config = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all", **config})
    failures = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(120) == 0
    assert not failures


def consume(bootstrap_servers: str, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "test", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, timeout=120)
    consumer.close()
    return [message.value().decode() for message in messages]


def offset_is_answered(kafka: EmbeddedKafka, topic: str, timeout_s: float) -> bool:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "test"})
    try:
        consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=timeout_s)
    except Exception:
        return False
    finally:
        consumer.close()
    return True


def test_it_is_paused_restarted_stopped_and_gone_when_it_is_left(topic):
    # One that was killed may come back when its session is over, of which a lone broker has half a minute.
    with EmbeddedKafka(properties={"broker.session.timeout.ms": 5_000}) as kafka:
        folder, address, pid = kafka.folder, kafka.bootstrap_servers, kafka.broker(1).pid
        assert running(pid)
        kafka.create_topic(topic)
        kafka.pause(1)
        assert kafka.broker(1).running
        host, port = address.split(":")
        socket.create_connection((host, int(port)), timeout=60).close()  # the kernel still accepts
        assert not offset_is_answered(kafka, topic, 2)
        kafka.resume(1)
        eventually(lambda: offset_is_answered(kafka, topic, 5))
        values = []
        for graceful in (True, False):
            values.append(f"before {graceful}")
            produce(address, topic, values[-1:])
            kafka.restart(1, graceful=graceful)
            assert kafka.bootstrap_servers == address
            assert kafka.broker(1).pid != pid
            pid = kafka.broker(1).pid
        assert consume(address, topic, 2) == values
        kafka.stop(1)
        assert not kafka.broker(1).running
        kafka.resume(1)  # of no effect, and no error either
    assert not folder.exists()
    assert not running(pid)


def test_records_go_in_and_come_out(kafka, topic):
    assert kafka.create_topic(topic, 2) == topic
    produce(kafka.bootstrap_servers, topic, [])
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, "hello", partition=0)
    assert producer.flush(120) == 0
    assert consume(kafka.bootstrap_servers, topic, 1) == ["hello"]


def test_nothing_is_written_outside_its_folder(tmp_path):
    # In a process of its own, because the temp folder is chosen once per process.
    source = """
import os
from confluent_kafka import Producer
from spark_kafka_native.testing import EmbeddedKafka
with EmbeddedKafka() as kafka:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": "lz4"})
    producer.produce("compressed", "x" * 10_000)
    assert producer.flush(120) == 0
    print(sorted(os.listdir(os.environ["TMPDIR"])) == [kafka.folder.name])
    kafka.broker(1).kill()
print(os.listdir(os.environ["TMPDIR"]))
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.stdout.split("\n")[:2] == ["True", "[]"], ran.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_broker_and_folder_go_with_a_killed_parent(number):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, "1"], stdout=subprocess.PIPE, text=True)
    folder, pids = json.loads(parent.stdout.readline())
    assert Path(folder).is_dir()
    assert all(map(running, pids))
    parent.send_signal(number)
    parent.communicate(timeout=60)
    eventually(lambda: not any(map(running, pids)))
    eventually(lambda: not Path(folder).exists())


# As the processes of each run on a new machine do; here the files that stay behind can be seen.
@pytest.mark.soak
def test_two_processes_prepare_the_image_at_once(tmp_path):
    made = tmp_path / kafka_folder().name
    made.mkdir()
    (made / "jars").symlink_to(kafka_folder() / "jars")  # all but the jars is missing
    environment = {**os.environ, "SPARK_KAFKA_NATIVE_CACHE": str(tmp_path)}
    source = """
from spark_kafka_native.testing import EmbeddedKafka
with EmbeddedKafka() as kafka:
    print(kafka.bootstrap_servers)
"""
    both = [
        subprocess.Popen([sys.executable, "-c", source], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    addresses = {process.communicate(timeout=180)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(addresses) == 2
    assert (made / "bootstrap.checkpoint").stat().st_size
    assert [archive.stat().st_size > 1 << 20 for archive in made.glob("classes-*.jsa")] == [True]
    assert not list(made.glob("*.partial"))


def test_three_brokers_survive_the_death_of_a_leader(kafka_cluster, topic):
    kafka_cluster.create_topic(topic)
    produce(kafka_cluster.bootstrap_servers, topic, ["one"])
    kafka_cluster.kill(leader_of(kafka_cluster, topic))
    dead = [broker.node_id for broker in kafka_cluster.brokers if not broker.running]
    produce(kafka_cluster.bootstrap_servers, topic, ["two"])
    assert consume(kafka_cluster.bootstrap_servers, topic, 2) == ["one", "two"]
    kafka_cluster.restart(dead[0])
    eventually(lambda: len(in_sync(kafka_cluster, topic)) == 3)


def leader_of(kafka: EmbeddedKafka, topic: str) -> int:
    return partition_of(kafka, topic).leader


def in_sync(kafka: EmbeddedKafka, topic: str) -> list[int]:
    return partition_of(kafka, topic).isrs


def partition_of(kafka: EmbeddedKafka, topic: str):
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    return producer.list_topics(topic, timeout=60).topics[topic].partitions[0]


@pytest.fixture(scope="module")
def secure_kafka():
    listeners = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
    with EmbeddedKafka(listeners=listeners, users={"alice": "a=b", "bob": "b"}) as kafka:
        yield kafka


def test_tls_handshake_with_the_authority_it_made(secure_kafka):
    trusting = ssl.create_default_context(cafile=str(secure_kafka.certificates.authority))
    host, port = secure_kafka.bootstrap_servers_for("SSL").split(":")
    for name in (host, "localhost"):
        with (
            socket.create_connection((host, int(port)), 60) as plain,
            trusting.wrap_socket(plain, server_hostname=name) as secured,
        ):
            assert secured.version() in ("TLSv1.2", "TLSv1.3")
    with (
        socket.create_connection((host, int(port)), 60) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        ssl.create_default_context().wrap_socket(plain, server_hostname=host)


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_accounts(secure_kafka, topic, listener, mechanism):
    settings = {
        "security_protocol": listener,
        "sasl_mechanism": mechanism,
        "sasl_username": "bob",
        "sasl_password": "b",
        "ssl_ca_location": str(secure_kafka.certificates.authority),
    }
    secure_kafka.create_topic(topic)
    produce(secure_kafka.bootstrap_servers_for(listener), topic, ["in"], **settings)
    assert consume(secure_kafka.bootstrap_servers, topic, 1) == ["in"]


def test_required_client_certificates():
    with EmbeddedKafka(listeners=("SSL",), client_auth="required") as kafka:
        given = {
            "security_protocol": "SSL",
            "ssl_ca_location": str(kafka.certificates.authority),
            "ssl_certificate_location": str(kafka.certificates.client_certificate),
            "ssl_key_location": str(kafka.certificates.client_key),
        }
        kafka.create_topic("t")
        produce(kafka.bootstrap_servers, "t", ["in"], **given)
        without = Producer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "security.protocol": "SSL",
                "ssl.ca.location": given["ssl_ca_location"],
                "log_level": 0,
            }
        )
        with pytest.raises(Exception, match=r"Failed to get metadata|transport failure"):
            without.list_topics(timeout=2)


def test_a_broker_that_can_not_start_says_why():
    with pytest.raises(BrokerStartError, match=r"ended while starting(.|\n)*num\.io\.threads"):
        EmbeddedKafka(properties={"num.io.threads": "none"}).start()


def test_a_chosen_port_that_is_taken_says_so():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BrokerStartError, match="Address already in use"):
            EmbeddedKafka(port=taken.getsockname()[1]).start()


def test_misuse_is_told(kafka_cluster):
    with pytest.raises(ValueError, match="brokers must be 1 or 3"):
        EmbeddedKafka(2)
    with pytest.raises(ValueError, match="user 'al': name and password"):
        EmbeddedKafka(users={"al": "a,b"})
    with pytest.raises(RuntimeError, match="not running"):
        _ = EmbeddedKafka().bootstrap_servers
    with pytest.raises(ValueError, match="no listener SSL"):
        kafka_cluster.bootstrap_servers_for("SSL")
    with pytest.raises(ValueError, match="no broker 4"):
        kafka_cluster.kill(4)
    with pytest.raises(RuntimeError, match="already running"):
        kafka_cluster.start()
    EmbeddedKafka().close()  # harmless
