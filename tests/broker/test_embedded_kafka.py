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
from spark_kafka_native.testing.broker_image import broker_image
from spark_kafka_native.testing.jars import kafka_folder

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


def eventually(condition, seconds: float = 15) -> None:
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
    assert producer.flush(30) == 0
    assert not failures


def consume(bootstrap_servers: str, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "test", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, timeout=20)
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


def test_ready_within_five_seconds_and_gone_at_once():
    broker_image()
    started = time.monotonic()
    with EmbeddedKafka() as kafka:
        ready_s = time.monotonic() - started
        folder, pid = kafka.folder, kafka.broker(1).pid
        assert running(pid)
    assert not folder.exists()
    assert not running(pid)
    # On an idle machine it is 1.5 s; the bound leaves room for a machine that does something else too.
    assert ready_s < 15, f"ready after {ready_s:.1f} s"


def test_records_go_in_and_come_out(kafka, topic):
    assert kafka.create_topic(topic, 2) == topic
    produce(kafka.bootstrap_servers, topic, [])
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, "hello", partition=0)
    assert producer.flush(20) == 0
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
    assert producer.flush(20) == 0
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
    parent.communicate(timeout=10)
    eventually(lambda: not any(map(running, pids)))
    eventually(lambda: not Path(folder).exists())


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


def test_a_paused_broker_is_silent_and_goes_on_when_resumed(topic):
    with EmbeddedKafka() as kafka:
        kafka.create_topic(topic)
        assert offset_is_answered(kafka, topic, 10)
        kafka.pause(1)
        assert kafka.broker(1).running
        host, port = kafka.bootstrap_servers.split(":")
        socket.create_connection((host, int(port)), timeout=5).close()  # the kernel still accepts
        assert not offset_is_answered(kafka, topic, 2)
        kafka.resume(1)
        eventually(lambda: offset_is_answered(kafka, topic, 5), 30)


@pytest.mark.parametrize("graceful", [True, False])
def test_restart_keeps_address_and_data(topic, graceful):
    with EmbeddedKafka() as kafka:
        address, pid = kafka.bootstrap_servers, kafka.broker(1).pid
        kafka.create_topic(topic)
        produce(address, topic, ["before"])
        kafka.restart(1, graceful=graceful)
        assert kafka.bootstrap_servers == address
        assert kafka.broker(1).pid != pid
        produce(address, topic, ["after"])
        assert consume(address, topic, 2) == ["before", "after"]
        kafka.stop(1)
        assert not kafka.broker(1).running
        kafka.resume(1)  # of no effect, and no error either


def test_three_brokers_survive_the_death_of_a_leader(kafka_cluster, topic):
    kafka_cluster.create_topic(topic)
    produce(kafka_cluster.bootstrap_servers, topic, ["one"])
    kafka_cluster.kill(leader_of(kafka_cluster, topic))
    dead = [broker.node_id for broker in kafka_cluster.brokers if not broker.running]
    produce(kafka_cluster.bootstrap_servers, topic, ["two"])
    assert consume(kafka_cluster.bootstrap_servers, topic, 2) == ["one", "two"]
    kafka_cluster.restart(dead[0])
    eventually(lambda: len(in_sync(kafka_cluster, topic)) == 3, 40)


def leader_of(kafka: EmbeddedKafka, topic: str) -> int:
    return partition_of(kafka, topic).leader


def in_sync(kafka: EmbeddedKafka, topic: str) -> list[int]:
    return partition_of(kafka, topic).isrs


def partition_of(kafka: EmbeddedKafka, topic: str):
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    return producer.list_topics(topic, timeout=10).topics[topic].partitions[0]


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
            socket.create_connection((host, int(port)), 10) as plain,
            trusting.wrap_socket(plain, server_hostname=name) as secured,
        ):
            assert secured.version() in ("TLSv1.2", "TLSv1.3")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
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


def test_misuse_is_told():
    with pytest.raises(ValueError, match="brokers must be 1 or 3"):
        EmbeddedKafka(2)
    with pytest.raises(ValueError, match="user 'al': name and password"):
        EmbeddedKafka(users={"al": "a,b"})
    with pytest.raises(RuntimeError, match="not running"):
        _ = EmbeddedKafka().bootstrap_servers
    with EmbeddedKafka() as kafka:
        with pytest.raises(ValueError, match="no listener SSL"):
            kafka.bootstrap_servers_for("SSL")
        with pytest.raises(ValueError, match="no broker 2"):
            kafka.kill(2)
        with pytest.raises(RuntimeError, match="runs already"):
            kafka.start()
    kafka.close()  # harmless
