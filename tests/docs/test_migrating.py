"""The Python blocks of docs/migrating.md run, in order, as one program; ``localhost:9092`` is the broker of
the tests, ``localhost:8081`` their schema registry."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from spark_kafka_native.testing import EmbeddedKafka, EmbeddedRegistry

PAGE = Path(__file__).parents[2] / "docs/migrating.md"


def descriptor_file() -> bytes:
    """What ``protoc --descriptor_set_out`` makes of a message of two strings."""
    text = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
    file = descriptor_pb2.FileDescriptorProto(name="person.proto", syntax="proto3")
    message = file.message_type.add(name="Person")
    for number, name in enumerate(("id", "name"), start=1):
        message.field.add(name=name, number=number, type=text, label=1)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


@pytest.mark.timeout(900)
@pytest.mark.spark
@pytest.mark.broker
def test_what_comes_after_a_migration_runs(
    kafka: EmbeddedKafka, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 10
    program = tmp_path / "migrated.py"
    code = "\n".join(blocks).replace("localhost:9092", kafka.bootstrap_servers)
    program.write_text(code.replace("http://localhost:8081", registry.url))
    (tmp_path / "person.desc").write_bytes(descriptor_file())
    ran = subprocess.run(
        ["python", program],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    assert "Unknown option" not in ran.stderr
    assert "has no effect" not in ran.stderr
