"""Looking up schemas: the requests, how often they are sent, and answers that are no help."""

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from support.forked_child import holds_in_forked_child
from support.http_server import Asked, Served, serving

from spark_kafka_native.formats.registry import (
    CredentialsError,
    RegistryError,
    SchemaRegistry,
    UnknownSchemaError,
    registry_client,
    schema_registry,
)
from spark_kafka_native.formats.registry.registered_schema import RegisteredSchema, json_depth
from spark_kafka_native.http_request import Answer, RequestError

NOT_FOUND = (404, {}, {"error_code": 40403, "message": "Schema not found"})
LONG = json.dumps("long")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(registry_client, "sleep", pauses.append)
    return pauses


@contextmanager
def registry(answers: Mapping[str, Any], **settings: str) -> Iterator[tuple[SchemaRegistry, Served]]:
    def answer(asked: Asked) -> tuple[int, dict[str, str], Any]:
        found = answers.get(asked.path, NOT_FOUND)
        if isinstance(found, list):
            found = found.pop(0)
        return found if isinstance(found, tuple) else (200, {}, found)

    with serving(answer) as served:
        given = {"registry.url": served.url} | {f"registry.{name}": text for name, text in settings.items()}
        found = SchemaRegistry.from_settings(given)
        assert found is not None
        yield found, served


def version(id: int, text: str = LONG, **more: Any) -> dict[str, Any]:
    return {"id": id, "version": 1, "subject": "s", "schema": text, **more}


def test_there_is_none_without_a_url() -> None:
    assert SchemaRegistry.from_settings({"registry.user": "x", "topic": "t"}) is None


def test_a_schema_is_asked_for_once() -> None:
    with registry({"/schemas/ids/7": {"schema": LONG}}) as (asked, served):
        assert (asked.schema(7).id, asked.schema(7).type, asked.schema(7).text) == (7, "AVRO", LONG)
        again = SchemaRegistry.from_settings({"registry.url": served.url})
        assert again is asked
        assert served.paths == ["/schemas/ids/7"]


def test_the_registries_that_are_kept_have_a_limit() -> None:
    def of(number: int) -> SchemaRegistry | None:
        return SchemaRegistry.from_settings({"registry.url": f"http://127.0.0.1:1/{number}"})

    found = [of(number) for number in range(schema_registry._MAX_REGISTRIES + 1)]
    assert len(schema_registry._registries) == schema_registry._MAX_REGISTRIES
    assert all(of(number) is one for number, one in enumerate(found) if number)
    assert of(0) is not found[0]


def test_by_guid_by_version_and_the_latest() -> None:
    guid = "00112233-4455-6677-8899-aabbccddeeff"
    answers = {
        f"/schemas/guids/{guid}": {"schema": "syntax", "schemaType": "PROTOBUF"},
        "/subjects/a%2Fb/versions/2": version(5, version=2, guid=guid),
        "/subjects/a%2Fb/versions/latest": version(6, version=3, schemaType="JSON"),
    }
    with registry(answers) as (asked, served):
        assert (asked.schema_of_guid(guid).type, asked.schema_of_guid(guid).guid) == ("PROTOBUF", guid)
        second = asked.version("a/b", 2)
        assert (second.id, second.version, second.subject, second.guid) == (5, 2, "a/b", guid)
        assert (asked.latest("a/b").id, asked.latest("a/b").version) == (6, 3)
        assert (asked.schema_of_guid(guid).guid, len(served.paths)) == (guid, 4)


def test_a_subject_that_is_registered_again_has_other_versions() -> None:
    """A write under a version that had been deleted for good went on under its id, which no reader knows."""
    path = "/subjects/s/versions/"
    answers = {f"{path}1": version(5), f"{path}latest": version(5)}
    with registry(answers) as (asked, _):
        assert (asked.version("s", 1).id, asked.latest("s").id) == (5, 5)
        answers |= {f"{path}1": version(6), f"{path}latest": version(6)}
        assert (asked.version("s", 1).id, asked.latest("s").id) == (6, 6)


def test_what_a_schema_refers_to_is_that_of_now() -> None:
    """Rows were written under a new schema with the former one's references."""
    refer = [{"name": "n.b", "subject": "b", "version": 1}]
    answers = {
        "/subjects/s/versions/1": version(1, references=refer),
        "/subjects/b/versions/1": version(2, '"int"'),
    }
    with registry(answers) as (asked, _):
        assert asked.version("s", 1).references[0].schema.text == '"int"'
        answers |= {
            "/subjects/s/versions/1": version(3, references=refer),
            "/subjects/b/versions/1": version(4, '"string"'),
        }
        assert asked.version("s", 1).references[0].schema.text == '"string"'


def test_schemas_of_a_time_share_what_they_refer_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty ids with fifty references each took two thousand requests."""
    refer = [{"name": "n.b", "subject": "b", "version": 1}]
    answers = {f"/schemas/ids/{id}": {"schema": LONG, "references": refer} for id in (1, 2, 3)}
    answers["/subjects/b/versions/1"] = version(9, '"int"')
    with registry(answers) as (asked, served):
        asked.schemas_of_records([1, 2])
        assert sorted(served.paths) == sorted(["/schemas/ids/1", "/schemas/ids/2", "/subjects/b/versions/1"])
        monkeypatch.setattr(schema_registry, "_VERSION_KEPT_S", -1.0)
        assert asked.schema(3).references[0].schema.id == 9
        assert served.paths.count("/subjects/b/versions/1") == 2


def test_references_are_looked_up_too() -> None:
    refer = lambda *names: [{"name": f"n.{one}", "subject": one, "version": 1} for one in names]  # noqa: E731
    answers = {
        "/schemas/ids/1": {"schema": LONG, "references": refer("b", "c")},
        "/subjects/b/versions/1": version(2, references=refer("c")),
        "/subjects/c/versions/1": version(3, '"int"'),
    }
    with registry(answers) as (asked, served):
        found = asked.schema(1)
        assert [one.name for one in found.all_references()] == ["n.c", "n.b"]
        assert found.reference_count == 3
        assert len(served.paths) == 3
        again = RegisteredSchema.from_json(found.to_json())
        assert again.to_json() == found.to_json()
        assert again.references[0].schema.references[0].schema.text == '"int"'


def test_ids_of_a_context_are_asked_for_in_that_context() -> None:
    """Each context counts its own: another schema was read and written without a word."""
    refer = [{"name": "n", "subject": "b", "version": 1}, {"name": "m", "subject": ":.x:c", "version": 1}]
    answers = {
        "/schemas/ids/1": {"schema": LONG},
        "/schemas/ids/1?subject=%3A.stg%3A": {"schema": '"int"', "references": refer},
        "/subjects/%3A.stg%3Ab/versions/1": version(2, '"float"'),
        "/subjects/%3A.x%3Ac/versions/1": version(
            3, '"bytes"', references=[{"name": "o", "subject": "d", "version": 1}]
        ),
        "/subjects/%3A.x%3Ad/versions/1": version(4, '"string"'),
    }
    with registry(answers) as (default, served):
        of = lambda subject: SchemaRegistry.from_settings({"registry.url": served.url, "subject": subject})  # noqa: E731
        staged = of(" :.stg:orders-value ")
        assert staged is not None
        assert (default.schema(1).text, staged.schema(1).text) == (LONG, '"int"')
        assert staged.schema_just_given(1).text == '"int"'
        assert [one.schema.text for one in staged.schema(1).all_references()] == [
            '"float"', '"string"', '"bytes"'
        ]  # fmt: skip
        assert of(":.stg:other") is staged
        assert of("orders-value") is of(":orders") is default
        with pytest.raises(UnknownSchemaError):
            staged.schema(7)
        assert served.paths[-1] == "/schemas/ids/7?subject=%3A.stg%3A"


def test_references_in_a_circle() -> None:
    refer = [{"name": "x", "subject": "b", "version": 1}]
    with (
        registry({"/schemas/ids/1": {"schema": LONG, "references": refer},
                  "/subjects/b/versions/1": version(2, references=refer)}) as (asked, _),
        pytest.raises(RegistryError, match="circle, by way of subject 'b'"),
    ):  # fmt: skip
        asked.schema(1)


def test_references_without_end_cost_few_requests() -> None:
    def answer(asked: Asked) -> tuple[int, dict[str, str], Any]:
        name = asked.path.split("/")[2]
        refer = [{"name": f"{name}{i}", "subject": f"{name}{i}", "version": 1} for i in range(150)]
        return 200, {}, version(1, references=refer)

    with serving(answer) as served:
        asked = SchemaRegistry.from_settings({"registry.url": served.url})
        assert asked is not None
        with pytest.raises(RegistryError, match="nested too deep"):
            asked.version("s", 1)
        assert len(served.asked) <= 25


def test_more_references_than_allowed() -> None:
    refer = [{"name": f"r{i}", "subject": f"r{i}", "version": 1} for i in range(300)]
    answers = {f"/subjects/r{i}/versions/1": version(i) for i in range(300)}
    answers |= {f"/schemas/ids/{id}": {"schema": LONG, "references": refer[:id]} for id in (300, 201, 200)}
    with registry(answers) as (asked, served):
        with pytest.raises(RegistryError, match="more than 200 references"):
            asked.schema(300)
        assert len(served.asked) <= 202
        with pytest.raises(RegistryError, match="more than 200 references"):
            asked.schema(201)
        assert asked.schema(200).reference_count == 200


@pytest.mark.parametrize(("levels", "allowed"), [(6, True), (7, False), (12, False)])
def test_references_of_references_count_wherever_they_are_used(levels: int, allowed: bool) -> None:
    """Each schema uses the next one twice: a few answers, and twice as many references with each level."""
    answers: dict[str, Any] = {
        f"/subjects/r{i}/versions/1": version(
            i, references=[{"name": f"{half}{i}", "subject": f"r{i + 1}", "version": 1} for half in "ab"]
        )
        for i in range(levels)
    }
    answers[f"/subjects/r{levels}/versions/1"] = version(levels)
    with registry(answers) as (asked, served):
        if allowed:
            assert asked.version("r0", 1).reference_count == 2 ** (levels + 1) - 2
        else:
            with pytest.raises(RegistryError, match="more than 200 references"):
                asked.version("r0", 1)
        assert len(served.asked) == levels + 1


def test_a_reference_that_does_not_exist_is_no_unknown_schema() -> None:
    refer = [{"name": "x", "subject": "b", "version": 1}]
    with registry({"/schemas/ids/1": {"schema": LONG, "references": refer}}) as (asked, _):
        with pytest.raises(RegistryError, match=r"subject 'b'.*schema with id 1") as raised:
            asked.schema(1)
        assert not isinstance(raised.value, UnknownSchemaError)


def test_the_schemas_that_are_kept_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "_MAX_KEPT_BYTES", 3_000)
    texts = [*[LONG.ljust(1_000)] * 5, *[LONG] * 4]
    with registry({f"/schemas/ids/{id}": {"schema": text} for id, text in enumerate(texts)}) as (
        asked,
        served,
    ):
        for id in (0, 1, 2, 3, 3, 2, 1, 0):
            asked.schema(id)
        assert served.paths == [f"/schemas/ids/{id}" for id in (0, 1, 2, 3, 0)]
        for id in (5, 6, 7, 8, 5, 6, 7, 8):  # all of them in the place of one that is long
            asked.schema(id)
        assert served.paths[5:] == [f"/schemas/ids/{id}" for id in (5, 6, 7, 8)]


def test_the_unknown_ids_that_are_kept_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "_MAX_KEPT_UNKNOWN", 2)
    with registry({}) as (asked, served):
        for id in (1, 2, 1, 3, 1):
            with pytest.raises(UnknownSchemaError):
                asked.schema(id)
        assert served.paths == [f"/schemas/ids/{id}" for id in (1, 2, 3, 1)]


def test_an_unknown_id_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with registry({}) as (asked, served):
        for _ in range(3):
            with pytest.raises(UnknownSchemaError, match=f"no schema with id 9 .*{served.url}.*not found"):
                asked.schema(9)
        assert len(served.asked) == 1
        later = schema_registry.monotonic() + 6
        monkeypatch.setattr(schema_registry, "monotonic", lambda: later)
        with pytest.raises(UnknownSchemaError):
            asked.schema(9)
        assert len(served.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        (404, {}, b"<html>no such page</html>"),
        (404, {}, {"detail": "no such route"}),
        (200, {}, b"<html>log in</html>"),
        (200, {}, b"[" * 100_000),
        (200, {}, [1]),
        (200, {}, {"schema": 5}),
        (200, {}, {"schema": None}),
        (200, {}, {"schema": LONG, "schemaType": "XML"}),
        (200, {}, {"schema": LONG, "schemaType": ["AVRO"]}),
        (200, {}, {"schema": LONG, "references": {"a": 1}}),
        (200, {}, {"schema": LONG, "references": [1]}),
        (200, {}, {"schema": LONG, "references": [{"name": "x", "subject": "y", "version": True}]}),
        (200, {}, {"schema": "[" * 500 + "]" * 500}),
        (200, {}, {"schema": "[" * 500 + "]" * 500, "schemaType": "JSON"}),
        (200, {}, b'{"schema": "' + b"x" * registry_client.MAX_BODY_BYTES + b'"}'),
        (409, {}, {"error_code": 409, "message": "incompatible"}),
        (204, {}, b""),
    ],
)  # fmt: skip
def test_answers_that_make_no_sense_are_errors_that_are_not_tried_again(answer: Any) -> None:
    with registry({"/schemas/ids/1": answer}) as (asked, served):
        with pytest.raises(RegistryError, match=r"127\.0\.0\.1") as raised:
            asked.schema(1)
        assert not isinstance(raised.value, UnknownSchemaError)
        assert len(served.asked) == 1


@pytest.mark.parametrize(
    ("status", "code", "is_unknown"),
    [
        (404, 40401, True),  # no subject
        (404, 40402, True),  # no version
        (404, 40403, True),  # no schema
        (404, 40400, False),
        (404, "40403", False),
        (409, 40403, False),
        (422, 40402, False),
    ],
)
def test_an_unknown_schema_is_one_of_which_the_registry_says_so(
    status: int, code: Any, is_unknown: bool
) -> None:
    """Records of an unknown schema are bad ones, and a write registers it; other errors end the task."""
    with registry({"/schemas/ids/1": (status, {}, {"error_code": code, "message": "no"})}) as (asked, _):
        with pytest.raises(RegistryError, match="schema with id 1") as raised:
            asked.schema(1)
        assert isinstance(raised.value, UnknownSchemaError) is is_unknown


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_registry_in_trouble_is_asked_again(status: int, no_pauses: list[float]) -> None:
    busy = (status, {"Retry-After": "3"}, b"later")
    with registry({"/schemas/ids/1": [busy, busy, {"schema": LONG}]}) as (asked, _):
        assert asked.schema(1).text == LONG
    assert [2.4 <= pause <= 3.6 for pause in no_pauses] == [True, True]


@pytest.mark.parametrize("wait", ["1e9", "inf", "nan", "-5", "Wed, 21 Oct 2015 07:28:00 GMT", ""])
def test_retry_after_is_capped(wait: str, no_pauses: list[float]) -> None:
    with registry({"/schemas/ids/1": [(503, {"Retry-After": wait}, b""), {"schema": LONG}]}) as (asked, _):
        assert asked.schema(1).text == LONG
    assert len(no_pauses) == 1
    assert 0 < no_pauses[0] <= 24


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    whole = json.dumps({"schema": LONG}).encode()
    short = (200, {"Content-Length": str(len(whole) + 1)}, whole)
    with registry({"/schemas/ids/1": [short, {"schema": '"int"'}]}) as (asked, _):
        assert asked.schema(1).text == '"int"'


def test_attempts_end(no_pauses: list[float]) -> None:
    with registry({"/schemas/ids/1": (503, {}, b"")}) as (asked, served):
        with pytest.raises(RegistryError, match=r"schema with id 1 .*HTTP status 503.*6 attempts"):
            asked.schema(1)
        assert len(served.asked) == 6
    assert no_pauses == sorted(no_pauses)


def test_a_round_of_several_urls_has_one_pause(no_pauses: list[float]) -> None:
    asked = SchemaRegistry.from_settings({"registry.url": "http://127.0.0.1:1/x, http://127.0.0.1:1/y"})
    assert asked is not None
    with pytest.raises(RegistryError, match=r"127.0.0.1:1/x: .*127.0.0.1:1/y: .*12 attempts"):
        asked.schema(1)
    assert no_pauses[::2] == [0.0] * 6
    assert [0.8 * 0.2 * 2**n < pause < 1.2 * 0.2 * 2**n for n, pause in enumerate(no_pauses[1::2], 1)] == [
        True
    ] * 5


def test_attempts_end_with_the_time_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch, no_pauses: list[float]
) -> None:
    monkeypatch.setattr(registry_client, "OPERATION_S", 10.0)
    monkeypatch.setattr(schema_registry, "OPERATION_S", 10.0)
    with registry({"/schemas/ids/1": (503, {"Retry-After": "15"}, b"")}) as (asked, served):
        with pytest.raises(RegistryError, match="1 attempts"):
            asked.schema(1)
        assert len(served.asked) == 1
    assert not no_pauses


def test_a_schema_and_those_that_it_refers_to_have_one_time_together() -> None:
    """With a time for each a task would wait for hours: a schema may have 200 references."""
    refer = lambda name: [{"name": name, "subject": name, "version": 1}]  # noqa: E731
    answers = {
        "/schemas/ids/1": {"schema": LONG, "references": refer("b")},
        "/subjects/b/versions/1": version(2, references=refer("c")),
        "/subjects/c/versions/1": version(3),
        "/subjects/s/versions/latest": version(4, references=refer("d")),
        "/subjects/d/versions/1": version(5),
    }
    ends: list[float | None] = []

    class Client:
        shown = "http://registry"

        def ask(self, _what: str, path: str, *, until: float | None = None) -> Any:
            ends.append(until)
            return answers[path]

    client: Any = Client()
    asked = SchemaRegistry(client)
    asked.schema(1)
    asked.latest("s")
    assert None not in ends
    assert (len(set(ends[:3])), len(set(ends[3:])), len(ends)) == (1, 1, 5)


def test_the_next_url_is_asked_where_one_is_down(no_pauses: list[float]) -> None:
    with registry({"/schemas/ids/1": {"schema": LONG}}) as (_, served):
        both = SchemaRegistry.from_settings({"registry.url": f"http://127.0.0.1:1/x, {served.url}/"})
        assert both is not None
        assert both.schema(1).text == LONG
        assert no_pauses == [0.0]  # only after all of them


def test_the_url_that_answered_is_asked_first_from_then_on() -> None:
    """A hanging one would cost 10 s for each id and each reference."""
    first: list[str] = []

    def answer(url: str, status: int) -> Callable[[Asked], tuple[int, dict[str, str], Any]]:
        def answered(asked: Asked) -> tuple[int, dict[str, str], Any]:
            first.append(url)
            return status, {}, {"schema": LONG}

        return answered

    a, b = answer("a", 503), answer("b", 200)
    with serving(a) as one, serving(b) as other:
        asked = SchemaRegistry.from_settings({"registry.url": f"{one.url},{other.url}"})
        assert asked is not None
        asked.schema(1)
        asked.schema(2)
        assert first == ["a", "b", "b"]
        other.answer, one.answer = answer("b", 503), answer("a", 200)
        asked.schema(3)
        asked.schema(4)
        assert first[3:] == ["b", "a", "a"]


def test_a_url_that_does_not_answer_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    ends: list[tuple[str, float]] = []

    def send(url: str, request: Any, tls: Any, until: float, **_: Any) -> Answer:
        ends.append((url, until))
        now[0] = until
        raise RequestError("timed out")

    monkeypatch.setattr(registry_client, "send", send)
    monkeypatch.setattr(registry_client, "monotonic", lambda: now[0])
    client = registry_client.RegistryClient(urls=("http://a", "http://b", "http://c"))
    with pytest.raises(RegistryError, match="3 attempts"):
        client.ask("schema", "/", until=106.0)
    assert ends == [("http://a", 102.0), ("http://b", 104.0), ("http://c", 106.0)]


def test_credentials_are_sent_and_never_shown() -> None:
    with registry(
        {"/schemas/ids/1": (401, {}, {"error_code": 401, "message": "no"})}, user="me", password="s3cr3t"
    ) as (
        asked,
        served,
    ):
        with pytest.raises(RegistryError, match="credentials") as raised:
            asked.schema(1)
        assert "s3cr3t" not in str(raised.value) + repr(asked._client)
        assert served.asked[0].headers["Authorization"] == "Basic " + base64.b64encode(b"me:s3cr3t").decode()
    with registry({"/schemas/ids/1": {"schema": LONG}}, token="abc.def") as (asked, served):
        asked.schema(1)
        assert served.asked[0].headers["Authorization"] == "Bearer abc.def"
        assert "abc.def" not in repr(asked._client)
    login = {"registry.user": "ő", "registry.password": "jelszó €"}
    given = registry_client.parse_client({"registry.url": "https://h", **login}).authorization
    assert given == "Basic " + base64.b64encode("ő:jelszó €".encode()).decode()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "http://me:s3cr3t@h/"}, "user and password in it"),
        ({"url": "https://s3cr3t@h/"}, "user and password in it"),
        ({"url": "https://:s3cr3t@h/"}, "user and password in it"),
        ({"url": "ftp://h/"}, "must be https"),
        ({"url": "https:///x"}, "must be https"),
        ({"url": "https://h:99999/"}, "no URL"),
        ({"url": "https://h/?a=b"}, "must be https"),
        ({"url": "https://h/#a"}, "must be https"),
        ({"url": "https://h:0/"}, "must be https"),
        ({"url": "http://h/\r\nX: y"}, "white space"),
        ({"url": "http://h/\x01"}, "white space"),
        ({"url": "http://hő/"}, "must be ASCII"),
        ({"url": " , "}, "empty"),
        ({"url": "http://h", "user": "me", "password": "s3cr3t"}, "in clear to h"),
        ({"url": "http://h", "token": "s3cr3t"}, "in clear to h"),
        ({"url": "http://h", "token": "s3cr3t", "allowhttp": "yes"}, "in clear to h"),
        ({"url": "http://localhost.example.com", "token": "s3cr3t"}, "in clear to localhost.example.com"),
        ({"url": "http://127.0.0.1.example.com", "token": "s3cr3t"}, "in clear to 127.0.0.1.example.com"),
        ({"url": "https://h", "user": "me"}, "need each other"),
        ({"url": "https://h", "password": "s3cr3t"}, "need each other"),
        ({"url": "https://h", "user": "a:s3cr3t", "password": "s3cr3t"}, "no colon"),
        ({"url": "https://h", "user": "me", "password": "s3cr3t", "token": "s3cr3t"}, "exclude each other"),
        ({"url": "https://h", "user": "", "password": "", "token": "s3cr3t"}, "exclude each other"),
        ({"url": "https://h", "token": "s3cr3t\r\nX: y"}, "characters"),
        ({"url": "https://h,http://other", "token": "s3cr3t"}, "in clear to other"),
        ({"url": "https://h", "ssl.ca": "s3cr3t"}, "no PEM certificate"),
        ({"url": "https://h", "ssl.key": "s3cr3t"}, "must be PEM"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(RegistryError, match=said) as raised:
        SchemaRegistry.from_settings({f"registry.{name}": text for name, text in settings.items()})
    assert "s3cr3t" not in str(raised.value)


def test_credentials_over_http_only_to_this_machine_or_on_request() -> None:
    login = {"registry.user": "a", "registry.password": "b"}
    for host in ("localhost", "127.0.0.1", "[::1]"):
        assert SchemaRegistry.from_settings({"registry.url": f"http://{host}:1/", **login})
    assert SchemaRegistry.from_settings({"registry.url": "http://h/", **login, "registry.allowhttp": "true"})
    assert SchemaRegistry.from_settings({"registry.url": "http://h/"})


def test_redirects_on_the_same_host_are_followed_and_no_others() -> None:
    answers = {
        "/schemas/ids/1": (307, {"Location": "/v2/1"}, b""),
        "/v2/1": {"schema": LONG},
        "/schemas/ids/2": (302, {"Location": "http://127.0.0.2:1/"}, b""),
        "/schemas/ids/3": (302, {"Location": "/schemas/ids/3"}, b""),
        "/schemas/ids/4": (302, {"Location": "http://[/"}, b""),
    }
    with registry(answers, token="s3cr3t") as (asked, served):
        assert asked.schema(1).text == LONG
        with pytest.raises(RegistryError, match="another host"):
            asked.schema(2)
        with pytest.raises(RegistryError, match="again and again"):
            asked.schema(3)
        with pytest.raises(RegistryError, match="another host"):
            asked.schema(4)
        assert served.paths.count("/schemas/ids/3") == 4


def test_a_schema_is_not_sent_after_a_redirect_that_would_make_it_a_get() -> None:
    answers = {
        "/subjects/s/versions": [(302, {"Location": "/x"}, {}), (307, {"Location": "/y"}, b"")],
        "/x": {"id": 1},
        "/y": {"id": 2},
    }
    with registry(answers) as (asked, served):
        with pytest.raises(RegistryError, match="HTTP status 302"):
            asked.register("s", LONG, "AVRO")
        assert asked.register("s", LONG, "AVRO") == 2
        assert served.paths == ["/subjects/s/versions", "/subjects/s/versions", "/y"]


def test_a_link_local_address_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = SchemaRegistry.from_settings({"registry.url": "http://169.254.169.254/"})
    assert asked is not None
    with pytest.raises(RegistryError, match="link-local"):
        asked.schema(1)


@pytest.mark.parametrize(
    ("scheme", "beginning"),
    [
        ("http", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"),
        ("http", b"HTTP/1.1 200 OK\r\n\r\n"),
        ("http", b"HTTP/1.1 200 OK\r\nX: "),
        ("http", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("https", b"\x16\x03\x03\x40\x00"),
    ],
)
def test_an_answer_byte_by_byte_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, scheme: str, beginning: bytes
) -> None:
    monkeypatch.setattr(registry_client, "REQUEST_S", 0.3)
    monkeypatch.setattr(registry_client, "_ROUNDS", 1)
    stop = threading.Event()

    def drip(sock: socket.socket) -> None:
        with sock, suppress(OSError):
            sock.recv(4096)
            sock.sendall(beginning)
            while not stop.wait(0.05):
                sock.sendall(b"0")

    with _tcp_server(drip) as port:
        asked = SchemaRegistry.from_settings({"registry.url": f"{scheme}://127.0.0.1:{port}"})
        assert asked is not None
        try:
            with pytest.raises(RegistryError, match="no answer in time"):
                asked.schema(1)
        finally:
            stop.set()


@contextmanager
def _tcp_server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: serve(server.accept()[0]))
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            thread.join()


def test_many_threads_ask_once() -> None:
    with registry({f"/schemas/ids/{id}": {"schema": LONG} for id in range(5)}) as (asked, served):
        start = threading.Barrier(8)

        def ask() -> None:
            start.wait()
            for id in range(5):
                asked.schema(id)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert sorted(served.paths) == [f"/schemas/ids/{id}" for id in range(5)]


def test_a_child_that_was_forked_in_the_middle_of_a_look_up() -> None:
    # The lock is held as by another thread of the parent.
    with registry({"/schemas/ids/1": {"schema": LONG}}) as (asked, _), asked._alone():
        assert holds_in_forked_child(lambda: asked.schema(1).text == LONG)


def test_registering_and_looking_up() -> None:
    answers = {
        "/subjects/s/versions": {"id": 12},
        "/subjects/s": [{"id": 11, "version": 1}, (404, {}, {"error_code": 40403, "message": "none"})],
        "/subjects/t/versions": (409, {}, {"error_code": 409, "message": "READER_FIELD_MISSING\x1b[31m"}),
    }
    with registry(answers) as (asked, served):
        assert asked.register("s", "syntax", "PROTOBUF", [{"name": "a", "subject": "b", "version": 1}]) == 12
        body = json.loads(served.asked[0].body)
        assert body["schemaType"] == "PROTOBUF"
        assert body["references"] == [{"name": "a", "subject": "b", "version": 1}]
        assert asked.lookup("s", LONG, "AVRO") == 11
        assert json.loads(served.asked[1].body) == {"schema": LONG}
        with pytest.raises(UnknownSchemaError, match="subject 's'"):
            asked.lookup("s", LONG, "AVRO")
        with pytest.raises(RegistryError, match=r"subject 't'.*409.*READER_FIELD_MISSING") as raised:
            asked.register("t", LONG, "AVRO")
        assert "\x1b" not in str(raised.value)


def test_an_id_that_was_just_given_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that is asked may be behind the one that gave it."""
    pauses: list[float] = []
    monkeypatch.setattr(schema_registry, "sleep", pauses.append)
    later: list[Any] = [NOT_FOUND, NOT_FOUND, {"schema": LONG}]
    with registry({"/schemas/ids/7": later}) as (asked, served):
        assert asked.schema_just_given(7).text == LONG
        assert (len(served.asked), pauses) == (3, sorted(pauses))
    with registry({"/schemas/ids/7": [NOT_FOUND, {"schema": LONG}]}) as (asked, _):
        with pytest.raises(UnknownSchemaError):
            asked.schema(7)  # of a record, before
        assert asked.schema_just_given(7).text == LONG
    with registry({}) as (asked, served):
        with pytest.raises(UnknownSchemaError):
            asked.schema_just_given(7)
        assert len(served.asked) == 7
        assert sum(pauses) < 20


class FakeTime:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = schema_registry.monotonic()
        self.pauses: list[float] = []
        monkeypatch.setattr(schema_registry, "sleep", self.sleep)
        monkeypatch.setattr(schema_registry, "monotonic", lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


def test_the_schemas_that_records_name_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer has them of a node that is ahead: their records counted as bad. Also where others stay
    unknown: once one did, new ones were not waited for."""
    time = FakeTime(monkeypatch)
    late = [NOT_FOUND, NOT_FOUND, {"schema": LONG}]
    paths = ("ids/7", "guids/a", "ids/10", "ids/11", "ids/12")
    with registry({f"/schemas/{path}": list(late) for path in paths}) as (asked, served):
        found = asked.schemas_of_records([7, "a"])
        assert [getattr(one, "text", None) for one in found.values()] == [LONG, LONG]
        assert (len(served.asked), time.pauses) == (6, [0.1, 0.2])
        for known, waits in (10, 6), (11, 5), (12, 4):
            time.pauses.clear()
            found = asked.schemas_of_records([known + 100, known, known + 200])
            strays = [found.pop(known + 100), found.pop(known + 200)]
            assert [str(stray)[:30] for stray in strays] == [
                f"There is no schema with id {known + i}" for i in (100, 200)
            ]
            assert [getattr(one, "text", None) for one in found.values()] == [LONG]
            assert len(time.pauses) == waits  # for all of them together
        time.pauses.clear()
        time.now += 60
        asked.schemas_of_records([400])
        assert len(time.pauses) == 6
        for id in range(401, 410):
            time.pauses.clear()
            asked.schemas_of_records([id])
        assert time.pauses == [0.1, 0.2]
        time.pauses.clear()
        time.now += 60
        asked.schemas_of_records(range(1_000, 1_101))
        assert time.pauses == [0.1, 0.2]


def test_new_schemas_are_not_waited_for_without_end_where_asking_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pauses alone are some seconds. A batch with many schemas held a task for minutes."""
    time = FakeTime(monkeypatch)

    def answer(_: Asked) -> tuple[int, dict[str, str], Any]:
        time.now += 6.0
        return NOT_FOUND

    with serving(answer) as served:
        asked = SchemaRegistry.from_settings({"registry.url": served.url})
        assert asked is not None
        asked.schemas_of_records([7])
        assert (time.pauses, len(served.asked)) == ([0.1, 0.2], 3)


def test_a_schema_that_stays_unknown_is_asked_for_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it takes more than a second to ask for all of them, each batch of records asked for each."""
    time = FakeTime(monkeypatch)
    strays = range(5, 10)
    answers: dict[str, Any] = {}
    with registry(answers) as (asked, served):
        asked.schemas_of_records(strays)
        seen, asks = len(served.asked), []
        for _ in range(1000):
            time.now += 1
            asked.schemas_of_records(strays)
            asks.append((len(served.asked) - seen) // len(strays))
            seen = len(served.asked)
        assert (sum(asks[:100]), sum(asks[100:])) == (7, 15)
        answers["/schemas/ids/7"] = {"schema": LONG}
        time.now += 60
        assert isinstance(asked.schemas_of_records([7, 8])[7], RegisteredSchema)


def test_a_thread_that_waits_for_a_schema_does_not_make_it_unknown_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner: list[Any] = []
    with registry({"/schemas/ids/7": [NOT_FOUND, NOT_FOUND, {"schema": LONG}]}) as (asked, _):

        def sleep(_: float) -> None:
            if not inner:
                inner.append(None)
                inner.append(asked.schemas_of_records([7])[7])

        monkeypatch.setattr(schema_registry, "sleep", sleep)
        assert isinstance(asked.schemas_of_records([7])[7], RegisteredSchema)
        assert isinstance(inner[1], RegisteredSchema)


def test_a_column_of_nonsense_does_not_become_a_flood_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "MAX_UNKNOWN", 10)
    time = FakeTime(monkeypatch)
    with registry({}) as (asked, served):
        for _ in range(2):
            with pytest.raises(RegistryError, match=r"More than 10 schemas .*another registry") as raised:
                asked.schemas_of_records(range(100_000))
            assert not isinstance(raised.value, UnknownSchemaError)
        assert (len(served.asked), time.pauses) == (11, [])


def test_each_node_of_a_registry_is_asked_for_a_schema() -> None:
    answers: dict[str, Any] = {"/schemas/ids/7": {"schema": LONG}}
    with registry({}) as (_, behind), registry(answers) as (_, ahead):
        asked = SchemaRegistry.from_settings({"registry.url": f"{behind.url},{ahead.url}"})
        assert asked is not None
        assert asked.schema(7).text == LONG
        with pytest.raises(UnknownSchemaError, match="no schema with id 8"):
            asked.schema(8)
        assert (behind.paths, ahead.paths) == (["/schemas/ids/7", "/schemas/ids/8"],) * 2


def test_a_schema_is_not_unknown_while_a_node_can_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records counted as bad while the node that has it was started again."""
    monkeypatch.setattr(registry_client, "sleep", lambda _: None)
    answers: dict[str, Any] = {"/schemas/ids/7": [(503, {}, b""), (503, {}, b""), {"schema": LONG}]}
    answers["/schemas/ids/8"] = (503, {}, b"")
    with registry({}) as (_, behind), registry(answers) as (_, ahead):
        asked = SchemaRegistry.from_settings({"registry.url": f"{behind.url},{ahead.url}"})
        assert asked is not None
        assert asked.schema(7).text == LONG
        says = rf"{ahead.url}: HTTP status 503 \(.*There is no schema with id 8 .*{behind.url}.*, but another"
        with pytest.raises(RegistryError, match=says) as raised:
            asked.schema(8)
        assert not isinstance(raised.value, UnknownSchemaError)


def test_a_name_that_is_no_unicode() -> None:
    refer = b'{"schema": "1", "references": [{"name": "x", "subject": "\\ud800", "version": 1}]}'
    with (
        registry({"/schemas/ids/1": (200, {}, refer)}) as (asked, _),
        pytest.raises(RegistryError, match=r"subject '\\ud800'"),
    ):
        asked.schema(1)


def test_depth_of_json() -> None:
    # In linear time: a search for the end from each quote would not end here.
    assert json_depth('["' + '\\"' * 1_000_000) == 1
    assert [json_depth(text) for text in ('"["', "[]", '{"a": [1, {"\\"[[[": 2}]}', "[[[[")] == [0, 1, 3, 4]


def test_an_attempt_ends_no_later_than_the_time_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[float] = []

    def send(url: str, request: Any, tls: Any, until: float, **_: Any) -> Answer:
        ends.append(until)
        return Answer(200, {}, b"{}")

    monkeypatch.setattr(registry_client, "send", send)
    monkeypatch.setattr(registry_client, "monotonic", lambda: 100.0)
    client = registry_client.RegistryClient(urls=("http://localhost",))
    for until in (103.0, 1_000.0, None):
        client.ask("schema", "/", until=until)
    assert ends == [103.0, 100.0 + registry_client.REQUEST_S, 100.0 + registry_client.REQUEST_S]


@pytest.mark.parametrize("status", [401, 403])
def test_a_registry_that_refuses_the_credentials_is_not_asked_again(status: int) -> None:
    """Each attempt with a wrong password may lock the account."""
    refused = (status, {}, {"error_code": status, "message": "no"})
    with registry({"/schemas/ids/1": refused}, user="me", password="wrong") as (asked, served):
        with pytest.raises(CredentialsError, match=rf"{status}: the credentials .* not allowed"):
            asked.schema(1)
        assert len(served.asked) == 1


def test_a_registry_with_other_credentials_is_that_of_these_alone() -> None:
    """A query that still has the former ones would be one with the rights of another user."""
    with registry({"/schemas/ids/1": {"schema": LONG}}, token="old") as (asked, served):
        old = {"registry.url": served.url, "registry.token": "old"}
        new = old | {"registry.token": "new"}
        assert not asked.renew(old)
        assert asked.renew(new)
        assert SchemaRegistry.from_settings(new) is asked
        assert SchemaRegistry.from_settings(old) is not asked
        assert not asked.renew(new)
        asked.schema(1)
        assert served.asked[0].headers["Authorization"] == "Bearer new"


@pytest.mark.parametrize("answer", [{"schema": LONG}, version(1) | {"id": "1"}, version(1) | {"id": True}])
def test_a_version_without_an_id_makes_no_sense(answer: dict[str, Any]) -> None:
    """Records that are written under it would have no id, or none that a reader knows."""
    with registry(dict.fromkeys(("/subjects/s/versions/1", "/subjects/s/versions/latest"), answer)) as (
        asked,
        _,
    ):
        for ask in (lambda: asked.version("s", 1), lambda: asked.latest("s")):
            with pytest.raises(RegistryError, match="makes no sense: it has no id"):
                ask()
