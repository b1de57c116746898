"""JSON with a registry: types from there, and the ids in front of payloads."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from support.http_server import Asked, Served, serving

from spark_kafka_native.formats import ColumnFormat, FormatError
from spark_kafka_native.formats.json.json_format import JsonFormat
from spark_kafka_native.formats.registry import (
    RegisteredSchema,
    RegistryError,
    frame_id,
    registry_client,
    schema_registry,
)

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}}
KIND = pa.struct([("id", pa.int64())])
JSON = JsonFormat()


@pytest.fixture
def answers() -> dict[str, Any]:
    return {"/subjects/t-value/versions/latest": found(4)}


def found(id: int, schema: Any = None, type: str = "JSON") -> dict[str, Any]:
    text = json.dumps(SCHEMA if schema is None else schema)
    return {"id": id, "version": 1, "subject": "t-value", "schema": text, "schemaType": type}


@pytest.fixture
def served(answers: dict[str, Any]) -> Iterator[Served]:
    def answer(asked: Asked) -> tuple[int, dict[str, str], Any]:
        content = answers.get(asked.path)
        return (200, {}, content) if content else (404, {}, {"error_code": 40401, "message": "none"})

    with serving(answer) as running:
        yield running


def settings(served: Served, **more: str) -> dict[str, str]:
    return {"registry.url": served.url, "topic": "t", "payload": "value", **more}


def binary(*rows: bytes | None) -> pa.Array:
    return pa.array(rows, pa.binary())


def test_a_read_takes_its_type_from_the_latest_version(served: Served) -> None:
    resolved = JSON.resolve_read(settings(served))
    assert resolved.type == KIND
    payloads = binary(
        frame_id(4) + b'{"id": 1}', None, frame_id(9) + b'{"id": 2, "x": 0}', b'{"id": 3}', frame_id(4)
    )
    decoded = JSON.decoder(KIND, resolved.settings).decode(payloads)
    assert decoded.array.to_pylist() == [{"id": 1}, None, {"id": 2}, None, None]
    assert decoded.bad.rows == (3,)
    assert served.paths == ["/subjects/t-value/versions/latest"]  # ids are not looked up


def test_a_read_of_a_known_type_does_not_ask(served: Served) -> None:
    assert JSON.resolve_read(settings(served, typed="true", topic="none")).type is None
    known = ColumnFormat("json", KIND, {"registry.url": served.url})
    decoder, kind = known.decoder("value", "none")
    assert kind == KIND
    assert decoder.decode(binary(frame_id(9) + b'{"id": 2}')).array.to_pylist() == [{"id": 2}]
    assert not served.asked


def test_a_read_under_another_version_subject_or_id(served: Served, answers: dict[str, Any]) -> None:
    answers["/subjects/t-value/versions/3"] = answers["/subjects/s/versions/latest"] = found(5)
    answers["/schemas/ids/6"] = found(6)
    for more in ({"schemaversion": "3"}, {"subject": "s"}, {"schemaid": "6", "subject": "s"}):
        assert JSON.resolve_read(settings(served, **more)).type == KIND
    assert served.paths == [
        "/subjects/t-value/versions/3", "/subjects/s/versions/latest", "/schemas/ids/6"
    ]  # fmt: skip


@pytest.mark.parametrize("id", [0, 2**31 - 1])
def test_a_read_under_the_least_or_the_largest_id(served: Served, answers: dict[str, Any], id: int) -> None:
    answers[f"/schemas/ids/{id}"] = found(id)
    assert JSON.resolve_read(settings(served, schemaid=str(id))).type == KIND
    assert served.paths == [f"/schemas/ids/{id}"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"subject": "none"}, "no latest version of subject 'none'"),
        ({"schemaversion": "0"}, "schemaVersion must be a whole number from 1"),
        ({"schemaversion": "newest"}, "schemaVersion must be"),
        ({"schemaid": "-1"}, "schemaId must be"),
        ({"schemaid": str(2**31)}, "schemaId must be"),
        ({"subjectstrategy": "record"}, "needs a name of a record"),
        ({"subjectstrategy": "topic-record"}, "needs a name of a record"),
        ({"subjectstrategy": "x"}, "must be topic, record or topic-record"),
        ({"subject": "avro"}, "is of type AVRO, not JSON"),
        ({"subject": "text"}, "schema 8 .*not that of an object"),
    ],
)
def test_reads_that_are_refused(
    served: Served, answers: dict[str, Any], more: dict[str, str], said: str
) -> None:
    answers["/subjects/avro/versions/latest"] = found(7, type="AVRO")
    answers["/subjects/text/versions/latest"] = found(8, {"type": "string"})
    with pytest.raises(FormatError, match=said):
        JSON.resolve_read(settings(served, **more))


def test_no_topic_and_no_subject(served: Served) -> None:
    with pytest.raises(FormatError, match=r"give value\.subject"):
        JSON.resolve_read({"registry.url": served.url})


def test_a_schema_as_text() -> None:
    assert JSON.resolve_read({"schema": json.dumps(SCHEMA)}).type == KIND
    assert JSON.resolve_read({}).type is None


def test_a_write_under_the_latest_version(served: Served) -> None:
    resolved = JSON.resolve_write(KIND, settings(served))
    encoded = JSON.encoder(KIND, resolved.settings).encode(pa.array([{"id": 1}, None], KIND))
    assert encoded.to_pylist() == [frame_id(4) + b'{"id":1}', None]


def test_a_write_that_registers(served: Served, answers: dict[str, Any]) -> None:
    answers["/subjects/t-value/versions"] = {"id": 11}
    answers["/schemas/ids/11"] = found(11)
    resolved = JSON.resolve_write(KIND, settings(served, **{"registry.register": "true"}))
    assert RegisteredSchema.from_json(resolved.settings["registered"]).subject == "t-value"
    sent = json.loads(served.asked[0].body)
    assert sent["schemaType"] == "JSON"
    assert json.loads(sent["schema"])["properties"] == {"id": {"type": "integer"}}
    encoded = JSON.encoder(KIND, resolved.settings).encode(pa.array([{"id": 1}], KIND))
    assert encoded.to_pylist() == [frame_id(11) + b'{"id":1}']
    own = json.dumps(SCHEMA | {"title": "own"})
    JSON.resolve_write(KIND, settings(served, schema=own, **{"registry.register": "true"}))
    assert json.loads(served.asked[-1].body)["schema"] == own


@pytest.mark.parametrize("registers", ["true", "false"])
def test_a_write_waits_for_the_schema_of_the_id_that_it_was_given(
    served: Served, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch, registers: str
) -> None:
    """The next request may be answered by a node that is behind."""
    answers["/subjects/t-value" + ("/versions" if registers == "true" else "")] = {"id": 13}
    pauses: list[float] = []

    def catch_up(pause_s: float) -> None:
        pauses.append(pause_s)
        answers["/schemas/ids/13"] = found(13)

    monkeypatch.setattr(schema_registry, "sleep", catch_up)
    own = settings(served, schema=json.dumps(SCHEMA), **{"registry.register": registers})
    assert RegisteredSchema.from_json(JSON.resolve_write(KIND, own).settings["registered"]).id == 13
    assert len(pauses) == 1


def test_a_write_under_a_schema_of_its_own_that_is_registered_or_not(
    served: Served, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers["/schemas/ids/12"] = found(12)
    own = settings(served, schema=json.dumps(SCHEMA))
    with pytest.raises(RegistryError, match=r"registry\.register=true"):
        JSON.resolve_write(KIND, own)
    with serving(lambda _: (503, {}, b"")) as away:
        monkeypatch.setattr(registry_client, "sleep", lambda _: None)
        for urls in (f"{served.url},{away.url}", f"{away.url},{served.url}"):
            with pytest.raises(RegistryError, match=r"status 503 .*registry\.register=true"):
                JSON.resolve_write(KIND, own | {"registry.url": urls})
    answers["/subjects/t-value"] = {"id": 12}
    resolved = JSON.resolve_write(KIND, own)
    assert JSON.encoder(KIND, resolved.settings).encode(pa.array([{}], KIND)).to_pylist() == [
        frame_id(12) + b"{}"
    ]


def test_rows_that_the_schema_excludes(served: Served, answers: dict[str, Any]) -> None:
    latest = "/subjects/t-value/versions/latest"
    answers[latest] = found(4, SCHEMA | {"required": ["id", "name"]})
    with pytest.raises(FormatError, match=r"requires the fields \['name'\]"):
        JSON.resolve_write(KIND, settings(served))
    more = pa.struct([("id", pa.int64()), ("x", pa.int64())])
    for allowed in ({}, {"additionalProperties": True}, {"additionalProperties": {"type": "integer"}}):
        answers[latest] = found(4, SCHEMA | allowed)
        JSON.resolve_write(more, settings(served))
    answers[latest] = found(4, SCHEMA | {"additionalProperties": False})
    JSON.resolve_write(KIND, settings(served))
    with pytest.raises(FormatError, match=r"has no fields \['x'\]"):
        JSON.resolve_write(pa.struct([("id", pa.int64()), ("x", pa.int64())]), settings(served))
    answers[latest] = found(4, SCHEMA | {"additionalProperties": False, "patternProperties": {"^x": {}}})
    JSON.resolve_write(pa.struct([("id", pa.int64()), ("x", pa.int64())]), settings(served))


def test_a_write_without_a_registry_is_as_before() -> None:
    resolved = JSON.resolve_write(KIND, {"topic": "t"})
    assert JSON.encoder(KIND, resolved.settings).encode(pa.array([{"id": 1}], KIND)).to_pylist() == [
        b'{"id":1}'
    ]
