import shutil
import subprocess

import pytest

from spark_kafka_native.testing.console import consume, produce
from spark_kafka_native.testing.kafka_container import KafkaContainer

pytestmark = pytest.mark.broker


def has_docker() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "info"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_docker(), reason="needs Docker")
def test_what_java_wrote_java_reads(topic):
    with KafkaContainer() as kafka:
        kafka.create_topic(topic, 1)
        produce(kafka.bootstrap_servers, topic, [("a", "1")])
        (record,) = consume(kafka.bootstrap_servers, topic, max_records=1)
        assert (record.key, record.value) == (b"a", b"1")
