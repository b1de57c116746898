"""The registry of the tests, as ours sees it."""

import json

import pytest

from spark_kafka_native.formats.registry import RegistryError, SchemaRegistry, UnknownSchemaError
from spark_kafka_native.testing import EmbeddedRegistry

OLD = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
NEW = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 1}],
    }
)


@pytest.fixture
def ours(registry: EmbeddedRegistry) -> SchemaRegistry:
    found = SchemaRegistry.from_settings({"registry.url": registry.url})
    assert found is not None
    return found


def test_versions_of_a_subject(ours: SchemaRegistry) -> None:
    first, second = ours.register("versions-value", OLD, "AVRO"), ours.register("versions-value", NEW, "AVRO")
    assert first != second == ours.register("versions-value", NEW, "AVRO")
    assert ours.lookup("versions-value", OLD, "AVRO") == first
    assert json.loads(ours.schema(first).text) == json.loads(OLD)
    latest = ours.latest("versions-value")
    assert (latest.id, latest.version, latest.type) == (second, 2, "AVRO")
    assert ours.version("versions-value", 1).id == first


def test_references(ours: SchemaRegistry) -> None:
    ours.register("inner", OLD, "AVRO")
    outer = json.dumps({"type": "record", "name": "O", "fields": [{"name": "r", "type": "R"}]})
    id = ours.register("outer", outer, "AVRO", [{"name": "R", "subject": "inner", "version": 1}])
    (found,) = ours.schema(id).references
    assert (found.name, json.loads(found.schema.text)) == ("R", json.loads(OLD))


def test_everything_that_does_not_exist(ours: SchemaRegistry) -> None:
    ours.register("there-value", OLD, "AVRO")
    for ask in (
        lambda: ours.schema(99_999),
        lambda: ours.schema(0),
        lambda: ours.latest("nowhere"),
        lambda: ours.version("there-value", 9),
        lambda: ours.lookup("there-value", NEW, "AVRO"),
        lambda: ours.lookup("nowhere", NEW, "AVRO"),
    ):
        with pytest.raises(UnknownSchemaError):
            ask()


def test_a_url_that_is_not_the_registrys(registry: EmbeddedRegistry) -> None:
    wrong = SchemaRegistry.from_settings({"registry.url": registry.url.replace("/apis/ccompat/v7", "")})
    assert wrong is not None
    with pytest.raises(RegistryError, match="is the URL that of a schema registry") as raised:
        wrong.schema(1)
    assert not isinstance(raised.value, UnknownSchemaError)


def test_nonsense_is_refused(ours: SchemaRegistry) -> None:
    with pytest.raises(RegistryError, match="'bad-value'"):
        ours.register("bad-value", "{", "AVRO")


def test_a_name_with_anything_in_it(ours: SchemaRegistry) -> None:
    subject = "some name/with ümlaut?#&-value"
    id = ours.register(subject, OLD, "AVRO")
    assert ours.latest(subject).id == id


def test_its_states() -> None:
    stopped = EmbeddedRegistry()
    assert "not running" in repr(stopped)
    with pytest.raises(RuntimeError, match="not running"):
        _ = stopped.url
    stopped.close()
