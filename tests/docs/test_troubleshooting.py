"""Each error of ours is found in docs/troubleshooting.md by the name under which it appears."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.spark.error_conditions import CONDITIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
NAMED = set(re.findall(r"`([A-Za-z_.]+)`", PAGE))
INNER = {
    "CompressionError": "becomes a CorruptRecordError",
    "HeaderError": "becomes a RecordError",
    "HeaderKeyError": "becomes a CorruptRecordError",
    "InputError": "the command line prints its message alone",
    "NotSentError": "inside of kafka.admin: its reason is raised",
    "OtherTopicError": "inside of kafka.consumer: a TopicRecreatedError, once it stays",
    "NotTogetherError": "inside of formats: the payloads are read one by one",
    "UnencodableError": "a ValueError of the caller's; the command line prints its message alone",
    "TooLargeError": "inside of formats: an Arrow IPC stream that is a bad record",
    "RecursiveError": "a FormatError, about a Protobuf message that contains itself",
    "RequestError": "inside of formats.registry: it asks again, or raises a RegistryError",
    "RefusedError": "inside of http_request: a RegistryError, or an AuthenticationError for a token endpoint",
    "ForbiddenAddressError": "the same",
    "RecordsRefusedError": "the cause of a DeliveryError; it is a BrokerError with the places of records",
    "KafkaError": "the base of the others; nobody raises it by itself",
}


def error_classes() -> set[str]:
    """The names of all exceptions that the package defines for others."""
    found = set()
    for path in (ROOT / "spark_kafka_native").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and node.name[0] != "_":
                found |= {node.name} if node.bases else set()
    return found


def test_each_error_is_there_by_its_name() -> None:
    missing = error_classes() - NAMED - set(INNER)

    assert not missing, "docs/troubleshooting.md says nothing about these"


@pytest.mark.parametrize("condition", CONDITIONS)
def test_each_condition_of_spark_is_there(condition: str) -> None:
    assert condition in NAMED


def test_what_the_page_names_exists() -> None:
    codes = re.findall(r"`([A-Z_]{6,})`", PAGE.partition("### Error codes")[2])
    assert codes
    assert {code for code in codes if code not in ErrorCode.__members__} <= {"JAVA_HOME"}
    assert {name.rpartition(".")[2] for name in NAMED if name.endswith("Error")} <= error_classes() | {
        "ModuleNotFoundError"
    }


def test_links_within_the_page_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", PAGE, flags=re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings
