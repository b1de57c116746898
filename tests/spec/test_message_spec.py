"""Every declared message, at every declared version, against the spec that Kafka's code is generated from."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafka_native.kafka.protocol.api import all_requests
from spark_kafka_native.kafka.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from spark_kafka_native.kafka.protocol.message import ArrayOf, Field, Message, Struct, declared_fields
from spark_kafka_native.kafka.protocol.message_codec import codec

ReadSpec = Callable[[str], dict[str, Any]]

MESSAGES: list[type[Message]] = [
    message for request in all_requests().values() for message in (request, request.response)
] + [ConsumerProtocolAssignment, ConsumerProtocolSubscription]
AT_EACH_VERSION = [
    pytest.param(message, version, id=f"{message.__name__}-v{version}")
    for message in MESSAGES
    for version in range(message.versions[0], message.versions[1] + 1)
]
_ZEROS: dict[str, object] = {
    "string": "",
    "bool": False,
    "bytes": b"",
    "uuid": uuid.UUID(int=0),
    "float64": 0.0,
}


def covers(versions: str | None, version: int) -> bool:
    """Return True if a range of the spec ("4+", "0-7", "3", "none") has ``version``."""
    if versions is None or versions == "none":
        return False
    lowest, _, highest = versions.replace("+", "-32767").partition("-")
    return int(lowest) <= version <= int(highest or lowest)


def snake_cased(name: str) -> str:
    words = ""
    for at, letter in enumerate(name):
        if letter.isupper() and at and not (name[at - 1].isupper() and name[at + 1 : at + 2].isupper()):
            words += "_"
        words += letter.lower()
    return words


def spec_default(spec: dict[str, Any]) -> object:
    """The value that Java's generated class has before anything is set."""
    kind, default = spec["type"], spec.get("default")
    if default == "null":
        return None
    if kind.startswith("[]"):
        return []
    if default is None:
        return _ZEROS.get(kind, 0)
    if kind == "bool":
        return str(default) == "true"
    return int(str(default), 0) if kind.startswith(("int", "uint")) else default


def spec_shape(specs: list[dict[str, Any]], structs: dict[str, Any], version: int) -> list[dict[str, Any]]:
    """The fields of a struct at one version, in the order in which they are written; tagged ones after."""
    shape = []
    for spec in specs:
        if not covers(spec["versions"], version):
            continue
        element = spec["type"].removeprefix("[]")
        within = spec.get("fields") or structs.get(element)
        tagged = covers(spec.get("taggedVersions"), version)
        shape.append(
            {
                "name": snake_cased(spec["name"]),
                "type": spec["type"],
                "nullable": covers(spec.get("nullableVersions"), version),
                "tag": spec["tag"] if tagged else None,
                "fields": spec_shape(within, structs, version) if within else None,
            }
        )
    return sorted(shape, key=lambda field: -1 if field["tag"] is None else field["tag"])


def type_name(field_type: Any) -> str:
    if isinstance(field_type, ArrayOf):
        return f"[]{type_name(field_type.element)}"
    return field_type.spec_name if isinstance(field_type, type) else field_type.name


def struct_of(field: Field) -> type[Struct] | None:
    element = field.type.element if isinstance(field.type, ArrayOf) else field.type
    return element if isinstance(element, type) else None


def our_shape(struct: type[Struct], version: int) -> list[dict[str, Any]]:
    shape = [
        {
            "name": field.name,
            "type": type_name(field.type),
            "nullable": version >= field.nullable,
            "tag": field.tag,
            "fields": our_shape(within, version) if (within := struct_of(field)) else None,
        }
        for field in declared_fields(struct)
        if field.present(version)
    ]
    return sorted(shape, key=lambda field: -1 if field["tag"] is None else field["tag"])


def common_structs(spec: dict[str, Any]) -> dict[str, Any]:
    return {struct["name"]: struct["fields"] for struct in spec.get("commonStructs", [])}


@pytest.mark.parametrize(("message", "version"), AT_EACH_VERSION)
def test_fields_are_those_of_the_spec(message: type[Message], version: int, read_spec: ReadSpec) -> None:
    spec = read_spec(message.__name__)

    assert our_shape(message, version) == spec_shape(spec["fields"], common_structs(spec), version)
    assert codec(message, version).flexible == covers(spec["flexibleVersions"], version)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_versions_are_stable_ones_of_the_spec(message: type[Message], read_spec: ReadSpec) -> None:
    spec = read_spec(message.__name__)
    lowest, highest = message.versions

    assert spec.get("apiKey") == getattr(message, "api_key", None)
    assert covers(spec["validVersions"], lowest)
    assert covers(spec["validVersions"], highest)
    if spec.get("latestVersionUnstable"):
        assert highest < int(spec["validVersions"].partition("-")[2])


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_defaults_and_ignorable_are_those_of_the_spec(message: type[Message], read_spec: ReadSpec) -> None:
    """They decide which fields are dropped, refused or written as tags, so they have to be Kafka's."""
    spec = read_spec(message.__name__)
    structs = common_structs(spec)

    def compare(struct: type[Struct], specs: list[dict[str, Any]], versions: list[int], where: str) -> None:
        by_name = {snake_cased(one["name"]): one for one in specs}
        for field in declared_fields(struct):
            one, path = by_name[field.name], f"{where}.{field.name}"
            present = [version for version in versions if covers(one["versions"], version)]
            if present != versions:
                assert field.ignorable == one.get("ignorable", False), path
            within = struct_of(field)
            if within is not None:
                compare(within, one.get("fields") or structs[type_name(within)], present, path)
            if not field.required and not (within is not None and not isinstance(field.type, ArrayOf)):
                assert field.default == spec_default(one), path

    lowest, highest = message.versions
    compare(message, spec["fields"], list(range(lowest, highest + 1)), message.__name__)


def test_the_spec_of_the_headers_is_what_the_header_module_assumes(read_spec: ReadSpec) -> None:
    request, response = read_spec("RequestHeader"), read_spec("ResponseHeader")

    assert [(field["name"], field["type"]) for field in request["fields"]] == [
        ("RequestApiKey", "int16"),
        ("RequestApiVersion", "int16"),
        ("CorrelationId", "int32"),
        ("ClientId", "string"),
    ]
    assert request["fields"][-1]["flexibleVersions"] == "none"
    assert request["flexibleVersions"] == "2+"
    assert [(field["name"], field["type"]) for field in response["fields"]] == [("CorrelationId", "int32")]
    assert response["flexibleVersions"] == "1+"
