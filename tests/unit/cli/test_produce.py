"""`produce`: lines as they come, and their keys and values in formats, many at once."""

import argparse
import datetime
import io
import itertools
import json
import os
import random
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support.http_server import serving

from spark_kafka_native.cli import produce
from spark_kafka_native.cli.main import Stopped, main
from spark_kafka_native.cli.produce import InputError, _NewRecord
from spark_kafka_native.cli.record_lines import ShownRecord, json_line
from spark_kafka_native.cli.typed_records import TypedInput, given_formats
from spark_kafka_native.formats import ColumnFormat, EncodeError
from spark_kafka_native.formats.json.json_text import JsonText
from spark_kafka_native.formats.protobuf.compile import compile_proto
from spark_kafka_native.kafka import Record
from spark_kafka_native.kafka.errors import ConfigError, NetworkError
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.testing import MockBroker

ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}
AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "e", "type": ENUM}]})
FORMATS = {
    "columns": ColumnFormat("json", "id bigint"),
    "one value": ColumnFormat("avro", '{"type": "array", "items": "int"}'),
    "symbols": ColumnFormat("avro", json.dumps({"type": "array", "items": ENUM})),
    "text": ColumnFormat("string"),
    "no schema": JsonText(),
    "avro": ColumnFormat("avro", AVRO),
}
TEXTS = [
    b'{"id": 1}',
    b'{"id": "x"}',
    b"",
    b"[1]",
    b'[1,"x"]',
    b'["A"]',
    b'["A","B"]',
    b"[]",
    b'{"e": "A"}',
    b'{"e": "B"}',
    b"\xff",
    b"1 2",
    None,
]


@pytest.mark.parametrize("name", FORMATS)
def test_many_at_once_are_encoded_as_each_alone(name: str) -> None:
    drawn, one = random.Random(3), TypedInput(FORMATS[name], "value", "t")
    alone = {text: one.encode([text]) for text in TEXTS}
    fit = [text for text in TEXTS if alone[text][1] is None]
    assert len(fit) >= 2
    for _ in range(200):
        texts = [drawn.choice(fit if drawn.random() < 0.8 else TEXTS) for _ in range(drawn.randrange(9))]
        good = list(itertools.takewhile(lambda text: alone[text][1] is None, texts))
        encoded, reason = one.encode(texts)
        assert encoded == [alone[text][0][0] for text in good]
        assert reason == (None if len(good) == len(texts) else alone[texts[len(good)]][1])


def test_of_keys_and_values_the_first_line_that_does_not_fit_is_named() -> None:
    typed = {name: TypedInput(FORMATS["columns"], name, "t") for name in ("key", "value")}
    fits, bad = b'{"id":1}', b'{"id":"x"}'

    def end_of(*pairs: tuple[bytes, bytes]) -> tuple[int, str]:
        records, why = produce._encoded([_NewRecord(*pair) for pair in pairs], typed)
        return len(records), (why or "").partition(":")[0]

    assert end_of((fits, fits), (fits, fits)) == (2, "")
    assert end_of((fits, fits), (fits, bad), (bad, fits)) == (1, "value does not fit")
    assert end_of((fits, fits), (bad, fits), (fits, bad)) == (1, "key does not fit")
    assert end_of((bad, bad)) == (0, "key does not fit")


class InHeader:
    """An encoder that has the id of its schema in a header."""

    header = b"\1new"

    def encode(self, rows: pa.Array) -> pa.Array:
        return pa.array([b"x"] * len(rows), pa.binary())


def test_a_copied_record_names_only_the_schema_under_which_it_is_written() -> None:
    """The first of several ids counts for readers: it would be that of the payload that was copied."""
    one = TypedInput(FORMATS["columns"], "value", "t")
    one._encoder = InHeader()
    others = (("a", b"1"), ("__key_schema_id", b"\1key"))
    copied = (others[0], ("__value_schema_id", b"\1old"), others[1])
    records = [_NewRecord(b"k", value, headers=copied) for value in (b'{"id": 1}', None)]
    written, _ = produce._encoded(records, {"value": one})
    assert [record.value for record in written] == [b"x", None]
    assert written[0].headers == (*others, ("__value_schema_id", b"\1new"))
    assert written[1].headers == copied  # a tombstone has no schema


class Faulty:
    """An encoder of another package that does not keep to the protocol."""

    def __init__(self, made: pa.Array | EncodeError) -> None:
        self.made = made

    def encode(self, _rows: pa.Array) -> pa.Array:
        if isinstance(self.made, EncodeError):
            raise self.made
        return self.made


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (pa.array([b"x"]), "gave 1 values of binary for 2 rows"),
        (pa.array([b"x", None]), "gave 1 nulls for 2 rows with 0"),
        (EncodeError(2, "too deep"), "can't write row 2 of 2: too deep"),
        (EncodeError(-1, "too deep"), "can't write row -1 of 2: too deep"),
    ],
    ids=["too few", "tombstones", "a row behind the end", "a row before the first"],
)
def test_a_format_that_would_lose_lines_is_refused(made: pa.Array | EncodeError, text: str) -> None:
    one = TypedInput(FORMATS["columns"], "value", "t")
    one._encoder = Faulty(made)
    with pytest.raises(ConfigError, match=f"value_format=.*: The format '.*' of the value {text}"):
        one.encode([b'{"id": 1}', b'{"id": 2}'])


class Typing(io.RawIOBase):
    """Standard input of a person: each read gives as much as was typed."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def read(self, _size: int = -1) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


@pytest.mark.parametrize(
    ("delimiter", "pieces", "found"),
    [
        (b"\n", [b"a\n", b"b\nc", b"d\n\n"], [[b"a"], [b"b"], [b"cd", b""]]),
        (b"\n", [b"a"], [[b"a"]]),
        (b"\n", [b"a\n \t"], [[b"a"], [b" \t"]]),
        (b"\n", [], []),
        (b"\r\n", [b"a\r", b"\nb\r", b"c\r\n"], [[b"a"], [b"b\rc"]]),
        (b"ab", [b"xa", b"b", b"aab", b"b"], [[b"x"], [b"a"], [b"b"]]),
    ],
)
def test_lines_go_on_as_soon_as_they_are_complete(
    delimiter: bytes, pieces: list[bytes], found: list[list[bytes]]
) -> None:
    lines: Any = produce._split(Typing(*pieces), delimiter)
    assert list(lines) == found


def test_a_line_without_end_is_refused_after_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "_MAX_LINE_BYTES", 10)
    for line in ([b"x" * 10, b"x"], [b"x" * 5, b"x" * 4, b"x" * 2, b"\n"]):
        lines = produce._split(Typing(b"a\n" + line[0], *line[1:]), b"\n")
        assert next(lines) == [b"a"]
        with pytest.raises(InputError, match="longer than 10 bytes"):
            next(lines)


@pytest.mark.parametrize(
    ("options", "found"),
    [((), [b"one", b"two", b"three"]), (("--whole",), [b"one\ntwo\nthree"])],
    ids=["lines", "whole"],
)
@pytest.mark.parametrize("before", [b"", b"one\nt"], ids=["nothing yet", "a part"])
def test_input_that_does_not_block_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], found: list[bytes], before: bytes
) -> None:
    """Standard input is shared: another process may have set it to non-blocking."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.write(writing, before)

    def write_the_rest() -> None:
        os.write(writing, b"one\ntwo\nthree"[len(before) :])
        os.close(writing)

    with MockBroker() as broker, open(reading, encoding="utf-8") as stdin:
        broker.create_topic("t")
        monkeypatch.setattr("sys.stdin", stdin)
        rest = threading.Timer(0.3, write_the_rest)
        rest.start()
        assert main(["produce", "t", *options, "-b", broker.bootstrap_servers]) == 0
        rest.join()
        assert [record.value for record in broker.records("t")] == found


def produced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: bytes, *arguments: str
) -> tuple[int, str]:
    """The exit code, and standard error."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    code = main(["produce", *arguments])
    return code, capsys.readouterr().err


def test_nothing_to_write_is_a_success_only_where_something_could_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script with a misspelt name would go on day after day as long as its input is empty."""
    with MockBroker() as broker:
        broker.create_topic("orders")
        servers = ("-b", broker.bootstrap_servers)
        assert produced(monkeypatch, capsys, b"", "orders", *servers) == (0, "0 records are in orders.\n")
        code, err = produced(monkeypatch, capsys, b"", "order", *servers)
        assert (code, "error: topic order: UNKNOWN_TOPIC_OR_PARTITION" in err) == (1, True)
        code, err = produced(
            monkeypatch, capsys, b"", "order", "-X", "allow.auto.create.topics=true", *servers
        )
        assert (code, err) == (0, "0 records are in order.\n")
    code, err = produced(monkeypatch, capsys, b"", "orders", "--timeout", "1", *servers)
    assert (code, "127.0.0.1" in err) == (1, True)


@pytest.mark.parametrize(("options", "empty"), [((), b""), (("-z",), None)], ids=["empty", "null"])
def test_an_empty_key_or_value_is_null_only_on_request(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    empty: bytes | None,
) -> None:
    """A null for a value would delete the records of its key from a compacted topic."""
    with MockBroker() as broker:
        broker.create_topic("orders")
        servers = ("orders", "-b", broker.bootstrap_servers, *options)
        assert produced(monkeypatch, capsys, b"k:\n:v\n:\nk:v:w\n", *servers, "-K", ":")[0] == 0
        assert produced(monkeypatch, capsys, b"\nv\n", *servers, "-k", "k")[0] == 0
        found = [(record.key, record.value) for record in broker.records("orders")]
    in_lines = [(b"k", empty), (empty, b"v"), (empty, empty), (b"k", b"v:w")]
    assert found == [*in_lines, (b"k", empty), (b"k", b"v")]


def test_with_acks_0_no_record_is_said_to_be_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker may have refused it, and says nothing."""
    with MockBroker() as broker:
        broker.create_topic("orders")
        servers = ("orders", "-X", "acks=0", "-X", "enable.idempotence=false", "-b", broker.bootstrap_servers)
        said = "2 records sent to orders; with acks=0 the broker confirms none, and may have refused some.\n"
        assert produced(monkeypatch, capsys, b"a\nb\n", *servers) == (0, said)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
        assert main(["produce", *servers, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["confirmed"], found["failed"]) == (0, 0)


@pytest.mark.parametrize(
    ("options", "key"), [((), None), (("-k", ""), b""), (("-k", "k"), b"k"), (("-z", "-k", ""), None)]
)
def test_only_records_without_a_key_have_none(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    key: bytes | None,
) -> None:
    with MockBroker() as broker:
        broker.create_topic("orders")
        servers = ("orders", "-b", broker.bootstrap_servers)
        assert produced(monkeypatch, capsys, b"v\n", *servers, *options)[0] == 0
        assert [(record.key, record.value) for record in broker.records("orders")] == [(key, b"v")]


def test_records_that_a_broker_refuses_are_counted_and_end_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockBroker() as broker:
        broker.create_topic("orders", partitions=2)
        broker.on("Produce", partition=1, times=None).fail("TOPIC_AUTHORIZATION_FAILED")
        lines = b"".join(b"%d:x\n" % number for number in range(20))
        code, err = produced(monkeypatch, capsys, lines, "orders", "-K", ":", "-b", broker.bootstrap_servers)
        written = len(broker.records("orders", 0))
    assert 0 < written < 19
    assert code == 1
    assert f"{written} records are in orders.\nerror: {20 - written} records are not; " in err
    assert "TOPIC_AUTHORIZATION_FAILED" in err


def test_a_record_that_a_signal_finds_accepted_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal comes before the call that took the record has returned."""
    calls, send = itertools.count(1), Producer.send

    def interrupted(self: Producer, *arguments: Any, **named: Any) -> Any:
        delivery = send(self, *arguments, **named)
        if next(calls) == 3:
            raise Stopped(signal.SIGINT)
        return delivery

    monkeypatch.setattr(Producer, "send", interrupted)
    with MockBroker() as broker:
        broker.create_topic("orders")
        code, err = produced(monkeypatch, capsys, b"a\nb\nc\nd\n", "orders", "-b", broker.bootstrap_servers)
        assert len(broker.records("orders")) == 3
    assert (code, err) == (130, "Ended early: 3 of 3 records are confirmed.\nStopped.\n")


def test_a_signal_does_not_wait_for_records_as_long_as_their_delivery_may_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With acks=0 none of them is said to be confirmed."""
    closed, close = list[Any](), Producer.close

    def interrupted(self: Producer, *_: Any, **__: Any) -> Any:
        raise Stopped(signal.SIGTERM)

    def closing(self: Producer, timeout: float | None = None) -> None:
        closed.append(timeout)
        close(self, timeout=timeout)

    monkeypatch.setattr(Producer, "send", interrupted)
    monkeypatch.setattr(Producer, "close", closing)
    with MockBroker() as broker:
        broker.create_topic("orders")
        for settings, done in (
            ((), "confirmed"),
            (("-X", "acks=0", "-X", "enable.idempotence=false"), "sent"),
        ):
            servers = ("orders", *settings, "-b", broker.bootstrap_servers)
            code, err = produced(monkeypatch, capsys, b"a\n", *servers)
            assert (code, err) == (143, f"Ended early: 0 of 0 records are {done}.\nStopped.\n")
    assert closed == [5.0, 5.0]


def test_standard_input_that_is_closed_is_an_error_and_not_an_empty_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockBroker() as broker:
        broker.create_topic("orders")
        monkeypatch.setattr("sys.stdin", None)
        assert main(["produce", "orders", "-b", broker.bootstrap_servers]) == 1
    assert "error: standard input is closed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("members", "of_all", "wanted"),
    [
        ("", None, None),
        ("", 7, 7),
        ("", 0, 0),
        (', "timestamp_ms": null', None, None),
        (', "timestamp_ms": null', 7, 7),
        (', "timestamp_ms": 0', None, 0),
        (', "timestamp_ms": 0', 7, 0),
        (', "timestamp_ms": 5', 7, 5),
        (', "timestamp_ms": 5', 0, 5),
    ],
)
def test_a_record_in_json_has_its_own_timestamp_before_that_of_all(
    members: str, of_all: int | None, wanted: int | None
) -> None:
    """Also if that is 0, when 1970 began: without one it would get the time of now."""
    given = argparse.Namespace(partition=None, timestamp=of_all)
    record = produce.record_from_json(f'{{"value": "a"{members}}}'.encode(), given, ())
    assert record.timestamp_ms == wanted


@pytest.mark.parametrize("wrong", ['"2024"', "true", "1.5", '""', "false", "0.0", "[]"])
def test_a_timestamp_that_is_no_whole_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    """As another one it would be written without a word: the text as two seconds after 1970 began."""
    with MockBroker() as broker:
        broker.create_topic("orders")
        lines = f'{{"value": "a", "timestamp_ms": 5}}\n{{"value": "b", "timestamp_ms": {wrong}}}\n'
        code, err = produced(
            monkeypatch, capsys, lines.encode(), "orders", "--input", "json", "-b", broker.bootstrap_servers
        )
        assert (code, f"timestamp_ms is a whole number, not {wrong}" in err) == (1, True)
        assert "1 record is in orders." in err


def test_json_without_a_format_is_written_as_utf_8(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text is its characters, and anything else the JSON that stands there."""
    with MockBroker() as broker:
        broker.create_topic("orders")
        lines = '{"key": {"a": "ä"}, "value": "ä"}\n{"key": [1, 2], "value": null}\n'
        servers = ("orders", "--input", "json", "--json", "-b", broker.bootstrap_servers)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        assert main(["produce", *servers]) == 0
        found = [(record.key, record.value) for record in broker.records("orders")]
    assert found == [('{"a": "ä"}'.encode(), "ä".encode()), (b"[1, 2]", None)]
    result = json.loads(capsys.readouterr().out)
    assert result == {"topic": "orders", "confirmed": 2, "failed": 0, "error": None}


@pytest.mark.parametrize(
    "text", ["1.0e400", "0.10000000000000000001", '{"a":1,"a":2}', '{"n": [1.50]}', "12345678901234567890.1"]
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_json_without_a_format_keeps_its_digits_and_members(text: str, encoding: str) -> None:
    line = f'{{"key": {text} , "value":{text}, "headers": [{{"name": "\\u00e4", "value": {text}}}]}}'
    given = argparse.Namespace(partition=None, timestamp=None)
    record = produce.record_from_json(line.encode(encoding), given, ())
    assert record[:2] == (text.encode(), text.encode())
    assert record.headers == (("ä", text.encode()),)


@pytest.mark.parametrize(("zone", "offset"), [("UTC", "Z"), ("Asia/Tokyo", "+09:00")])
def test_times_without_a_zone_are_of_the_one_that_the_format_has(zone: str, offset: str) -> None:
    given = ColumnFormat("json", "at timestamp", {"timeZone": zone})
    encoded, reason = TypedInput(given, "value", "t").encode([b'{"at":"2024-01-01T12:00:00"}'])
    assert reason is None
    (text,) = encoded
    assert text is not None
    moment = datetime.datetime.fromisoformat(json.loads(text)["at"])
    assert moment == datetime.datetime.fromisoformat(f"2024-01-01T12:00:00{offset}")


def test_records_go_to_the_partition_and_with_the_headers_that_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockBroker() as broker:
        broker.create_topic("orders", partitions=2)
        servers = ("orders", "-H", "token=a=b==", "-H", "empty=", "-b", broker.bootstrap_servers)
        for number in ("0", "1"):
            options = ("-p", number, "--timestamp", number)
            assert produced(monkeypatch, capsys, number.encode(), *servers, *options)[0] == 0
        found = [broker.records("orders", partition)[0] for partition in range(2)]
    assert [(one.value, one.timestamp_ms) for one in found] == [(b"0", 0), (b"1", 1)]
    assert [one.headers for one in found] == [(("token", b"a=b=="), ("empty", b""))] * 2


def test_a_member_that_no_record_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt value would be a null, which deletes the records of its key from a compacted topic."""
    with MockBroker() as broker:
        broker.create_topic("orders")
        code, err = produced(
            monkeypatch, capsys, b'{"key": "a", "vlaue": "b"}\n', "orders", "--input", "json", "-b",
            broker.bootstrap_servers,
        )  # fmt: skip
        assert (code, "unknown member 'vlaue' of a record" in err) == (1, True)
        assert broker.records("orders") == []


def test_only_null_is_null_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A null for an empty value would delete the records of its key from a compacted topic."""
    values = ['""', "0", "false", "{}", "[]", "null"]
    lines = "".join(f'{{"key": {one}, "value": {one}}}\n' for one in values)
    with MockBroker() as broker:
        broker.create_topic("orders")
        servers = ("orders", "--input", "json", "-b", broker.bootstrap_servers)
        assert produced(monkeypatch, capsys, lines.encode(), *servers)[0] == 0
        found = [(record.key, record.value) for record in broker.records("orders")]
    assert found == [(one, one) for one in (b"", b"0", b"false", b"{}", b"[]", None)]


@pytest.mark.parametrize("group", [(), ("-g", "g", "-c", "6")], ids=["tail", "group"])
@pytest.mark.parametrize("schema", [(), ("--value-schema", "a int")], ids=["no schema", "schema"])
@pytest.mark.parametrize("typed", [True, False], ids=["typed", "untyped"])
def test_a_null_in_json_is_no_tombstone_after_a_copy(
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    schema: tuple[str, ...],
    group: tuple[str, ...],
    typed: bool,
) -> None:
    """It would delete the records of its key from a compacted topic."""
    values = [b"", b" ", None, b'{"a":1}', *([b"{}"] * 2 if schema else [b"null", b" null\n"])]
    with MockBroker() as broker:
        broker.create_topic("orders")
        broker.create_topic("copy")
        broker.append("orders", [Record("", 0, 0, b"k", value) for value in values])
        formats, server = ("--value-format", "json", *schema), ("-b", broker.bootstrap_servers)
        start = ("-X", "auto.offset.reset=earliest")
        assert main(["tail", "orders", "--json", *formats, *group, *start, *server]) == 0
        lines = capfdbinary.readouterr().out
        assert b'"value": null' in lines  # the tombstone
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
        assert main(["produce", "copy", "--input", "json", *(formats if typed else ()), *server]) == 0
        assert [(record.key, record.value) for record in broker.records("copy")] == [
            (b"k", value) for value in values
        ]


def test_a_key_that_is_null_in_json_is_the_same_after_a_copy(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Without a key a record goes to any partition, and stays in a compacted topic for ever."""
    keys = [b"", b"null", None, b'{"a":1}']
    with MockBroker() as broker:
        broker.create_topic("orders")
        broker.create_topic("copy")
        broker.append("orders", [Record("", 0, 0, key, b"v") for key in keys])
        formats, server = ("--key-format", "json"), ("-b", broker.bootstrap_servers)
        assert main(["tail", "orders", "--json", *formats, "-X", "auto.offset.reset=earliest", *server]) == 0
        lines = capfdbinary.readouterr().out
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
        assert main(["produce", "copy", "--input", "json", *formats, *server]) == 0
        assert [(record.key, record.value) for record in broker.records("copy")] == [
            (key, b"v") for key in keys
        ]


def test_json_of_several_lines_is_one_line_in_json() -> None:
    value = b'{\r\n "a": 1.50,\n "b": "x\\ny"\n}'
    line = json_line(ShownRecord("t", 0, 0, 1, None, value, [], {"value": value}))
    assert (line.count(b"\n"), line.count(b"\r")) == (1, 0)
    assert json.loads(line)["value"] == json.loads(value)
    given = argparse.Namespace(partition=None, timestamp=None)
    written = produce.record_from_json(line[:-1], given, (), ["value"]).value
    assert written == value.replace(b"\r", b" ").replace(b"\n", b" ")


@pytest.mark.parametrize(
    ("schema", "text", "unknown"),
    [
        ("id bigint, name string", '{"id":1,"naem":"x"}', "`naem`"),
        ("id bigint, name string", '{"id":1,"Name":null}', "`Name`"),
        ("a struct<b: array<struct<c: int>>>", '{"a":{"b":[{"c":1},{"d":1}]}}', "`a.b[].d`"),
        ("a map<string, struct<c: int>>", '{"a":{"k":{"c":1},"l":{"e":1}}}', "`a.l.e`"),
        ("id bigint, name string", '{"name":"x"}', None),
        ("a map<string, int>", '{"a":{"any":1}}', None),
    ],
)
def test_members_that_the_schema_lacks_are_refused(schema: str, text: str, unknown: str | None) -> None:
    """A misspelt name wrote a null in its place."""
    given = ColumnFormat("json", schema, {})
    encoded, why = TypedInput(given, "value", "t").encode([b"{}", text.encode(), b"{}"])
    assert (len(encoded), why) == ((3, None) if unknown is None else (1, f"its schema has no {unknown}"))


def test_bytes_are_written_as_they_are_in_any_format() -> None:
    one = TypedInput(FORMATS["columns"], "value", "t")
    one._encoder = InHeader()
    headers = (("__value_schema_id", b"\1old"),)
    given = argparse.Namespace(partition=None, timestamp=None)
    record = produce.record_from_json(b'{"value_base64":"bnVsbA=="}', given, headers, ["value"])
    [written], why = produce._encoded([record], {"value": one})
    assert (written.value, written.headers, why) == (b"null", headers, None)


def test_json_in_a_format_is_written_as_it_stands_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But null is no value: it deletes the records of its key from a compacted topic."""
    with MockBroker() as broker:
        broker.create_topic("orders")
        lines = b'{"value": null, "key": {"id": 1.50}}\n{"value": {"b": 1.10, "a" : []}, "key": null}\n'
        formats = ("--input", "json", "--key-format", "json", "--value-format", "json")
        servers = ("orders", *formats, "-b", broker.bootstrap_servers)
        assert produced(monkeypatch, capsys, lines, *servers) == (0, "2 records are in orders.\n")
        found = [(record.key, record.value) for record in broker.records("orders")]
    assert found == [(b'{"id": 1.50}', None), (None, b'{"b": 1.10, "a" : []}')]


@pytest.mark.parametrize("value", ["NaN", "[1, -Infinity]", '{"a": {"b": Infinity, "c": ""}}'])
def test_a_number_that_is_not_json_takes_a_format(value: str) -> None:
    """In a format it is a number, or its text; without one the record would be no JSON that others read."""
    given = argparse.Namespace(partition=None, timestamp=None)
    for members in (f'"value": {value}', f'"key": {value}, "value": ""'):
        line = f"{{{members}}}".encode()
        with pytest.raises(InputError, match=r"no record in JSON \(-?(NaN|Infinity) is not JSON\)"):
            produce.record_from_json(line, given, ())
        record = produce.record_from_json(line, given, (), ["key", "value"])
        assert value.encode() in (record.key, record.value)
    headers = f'{{"value": 1, "headers": [{{"name": "a", "value": {value}}}]}}'.encode()
    with pytest.raises(InputError, match="is not JSON"):
        produce.record_from_json(headers, given, (), ["value"])
    text = json.dumps({"a": value, "b": 1.5})
    assert produce.record_from_json(f'{{"value": {text}}}'.encode(), given, ()).value == text.encode()


def test_a_number_keeps_all_its_digits() -> None:
    given, digits = argparse.Namespace(partition=None, timestamp=None), "1" * 5000
    for value in (digits, f'{{"a": [-{digits}]}}'):
        for formats in ([], ["value"]):
            line = f'{{"value": {value}, "timestamp_ms": 7}}'.encode()
            record = produce.record_from_json(line, given, (), formats)
            assert (record.value, record.timestamp_ms) == (value.encode(), 7)


def test_of_two_wrong_lines_at_once_the_first_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its error may be found later: values are encoded many at once."""
    with MockBroker() as broker:
        broker.create_topic("orders")
        lines = b'k={"id":1}\nk={"id":"x"}\nwithout\nk={"id":4}\n'
        formats = ("-K", "=", "--value-format", "json", "--value-schema", "id bigint")
        code, err = produced(monkeypatch, capsys, lines, "orders", *formats, "-b", broker.bootstrap_servers)
        assert [record.value for record in broker.records("orders")] == [b'{"id":1}']
    assert code == 1
    assert "error: line 2: the value does not fit: " in err
    assert err.count("""k={"id":"x"}""") == 1
    assert "separator" not in err


def test_a_text_that_is_not_utf_8_is_refused_where_the_format_is_text() -> None:
    encoded = TypedInput(FORMATS["text"], "value", "t").encode([b"a", None, b"x\xff", b"b"])
    assert encoded == ([b"a", None], "not UTF-8 at byte 1")


@pytest.mark.parametrize(
    ("delimiter", "data", "found"),
    [
        (r"\x1e", b"a\x1eb\x1ec\x1e", [b"a", b"b", b"c"]),
        (r"\n\n", b"a\nb\n\nc\n\n", [b"a\nb", b"c"]),
        (r"\\", b"a\\b", [b"a", b"b"]),
        ("\\", b"a\\b", [b"a", b"b"]),
        (r"+\r\x0A", b"a+\r\nb", [b"a", b"b"]),
    ],
)
def test_escapes_in_a_delimiter_are_those_of_a_format(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    delimiter: str,
    data: bytes,
    found: list[bytes],
) -> None:
    with MockBroker() as broker:
        broker.create_topic("orders")
        servers = ("-b", broker.bootstrap_servers)
        assert produced(monkeypatch, capsys, data, "orders", "-D", delimiter, *servers)[0] == 0
        assert [record.value for record in broker.records("orders")] == found
        assert produced(monkeypatch, capsys, b"a\x1fb", "orders", r"-K\x1f", *servers)[0] == 0
        assert broker.records("orders")[-1].key == b"a"


@pytest.mark.parametrize("option", ["-D", "-K"])
@pytest.mark.parametrize("escape", [r"\q", r"\xg0", r"a\|"])
def test_an_unknown_escape_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, escape: str
) -> None:
    """As it stands, it would be found nowhere, and all of the input be one record."""
    with pytest.raises(SystemExit) as ended:
        produced(monkeypatch, capsys, b"a\n", "orders", option, escape, "-b", "localhost:1")
    assert ended.value.code == 2
    assert "means nothing" in capsys.readouterr().err


@pytest.mark.parametrize("options", [("-k", "key"), ("-K", ":"), ("-z",)])
def test_options_for_lines_are_wrong_usage_with_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        produced(monkeypatch, capsys, b"", "orders", "--input", "json", *options, "-b", "localhost:1")
    assert ended.value.code == 2
    assert "--input json" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["-D", "-K"])
def test_nothing_can_not_stand_between_records_or_their_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    with MockBroker() as broker:
        broker.create_topic("orders")
        with pytest.raises(SystemExit) as ended:
            produced(monkeypatch, capsys, b"a\n", "orders", option, "", "-b", broker.bootstrap_servers)
        assert broker.records("orders") == []
    assert ended.value.code == 2
    assert "must not be empty" in capsys.readouterr().err


def test_records_before_one_that_is_too_large_are_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named, also where it is in the middle of those that are read at once."""
    with MockBroker() as broker:
        broker.create_topic("orders")
        lines = b"a\n" + b"x" * 2_000 + b"\nc\n"
        servers = ("orders", "-X", "max.request.size=1000", "-b", broker.bootstrap_servers)
        code, err = produced(monkeypatch, capsys, lines, *servers)
        assert [record.value for record in broker.records("orders")] == [b"a"]
    assert code == 1
    assert "1 record is in orders.\nerror: record 2 and what follows was not sent: " in err


@pytest.mark.parametrize("named", [(), ("-t",)], ids=["first word", "option"])
def test_files_are_written_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    named: tuple[str, ...],
) -> None:
    for name, text in (("a", "1\n2"), ("b", ""), ("c", "3\n")):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in "abc"]
    with MockBroker() as broker:
        broker.create_topic("orders")
        servers = ("-b", broker.bootstrap_servers)
        assert produced(monkeypatch, capsys, b"no", *named, "orders", *files, *servers)[0] == 0
        assert produced(monkeypatch, capsys, b"0\n", *named, "orders", "-", files[2], *servers)[0] == 0
        assert produced(monkeypatch, capsys, b"no", *named, "orders", "--whole", *files, *servers)[0] == 0
        found = [record.value for record in broker.records("orders")]
    assert found == [b"1", b"2", b"3", b"0", b"3", b"1\n2", b"", b"3\n"]


@pytest.mark.parametrize(("wrong", "reason"), [("missing", "No such file"), ("folder", "Is a directory")])
def test_lines_before_a_file_that_can_not_be_read_are_written(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    wrong: str,
    reason: str,
) -> None:
    (tmp_path / "good").write_text("1\n2")
    (tmp_path / "folder").mkdir()
    with MockBroker() as broker:
        broker.create_topic("orders")
        files = [str(tmp_path / name) for name in ("good", wrong, "good")]
        code, err = produced(monkeypatch, capsys, b"", "orders", *files, "-b", broker.bootstrap_servers)
        assert [record.value for record in broker.records("orders")] == [b"1", b"2"]
    assert (code, f"2 records are in orders.\nerror: {files[1]} can't be read: {reason}" in err) == (1, True)


def test_a_line_without_a_separator_is_an_error_after_the_records_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockBroker() as broker:
        broker.create_topic("orders")
        servers = ("orders", "-K", ":", "-b", broker.bootstrap_servers)
        code, err = produced(monkeypatch, capsys, b"k:v\nwithout\nk:w\n", *servers)
        assert [(record.key, record.value) for record in broker.records("orders")] == [(b"k", b"v")]
    assert (code, "error: line 2: it has no separator b':': b'without'" in err) == (1, True)


@pytest.mark.parametrize(
    "line",
    [
        b'{"value": "a\xff"}',
        b'{"value": "a", "key": "\xe4"}',
        b'{"value_base64": "dmFs!dWU="}',
        b'{"value_base64": "dmFsdWU"}',
        b'{"value": "a", "key_base64": "a2V5 a2V5"}',
        b'{"value": "a", "headers": [{"name": "n", "value_base64": "\\u00e4QQ="}]}',
    ],
)
def test_bytes_that_would_change_on_their_way_are_refused(line: bytes) -> None:
    given = argparse.Namespace(partition=None, timestamp=None)
    with pytest.raises(InputError, match="no record in JSON"):
        produce.record_from_json(line, given, ())


PROTO = """syntax = "proto3"; import "google/protobuf/duration.proto"; message M {
  map<int32, string> by_number = 1; map<bool, string> by_bool = 2; google.protobuf.Duration took = 3;
  map<uint64, google.protobuf.Duration> waits = 4; repeated google.protobuf.Duration laps = 5; }"""


def test_durations_and_keys_that_are_no_text_are_written_as_they_are_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.desc"
    file.write_bytes(compile_proto("m.proto", {"m.proto": PROTO}).SerializeToString())
    values: list[dict[str, Any]] = [
        {"by_number": {"7": "x", "-1": "y"}, "by_bool": {}, "took": -1_500_000, "waits": {}, "laps": []},
        {"by_number": {}, "by_bool": {"true": "x"}, "waits": {str(2**64 - 1): 2}, "laps": [1, 0]},
    ]
    lines = [json.dumps({"value": value}) for value in values]
    (tmp_path / "lines").write_text("\n".join([*lines, '{"value": {"by_number": {"x": "y"}}}', lines[0]]))
    settings = ["--value-format=protobuf", "-X", f"value.descriptorFile={file}", "-X", "value.message=M"]
    with MockBroker() as broker:
        broker.create_topic("t")
        command = ["produce", "t", "--input", "json", str(tmp_path / "lines"), *settings]
        assert main([*command, "-b", broker.bootstrap_servers]) == 1
        assert "a key of a map does not fit: Failed to parse string: 'x'" in capfd.readouterr().err
        assert main(["tail", "t", "--json", *settings, "-b", broker.bootstrap_servers]) == 0
    shown = [json.loads(line)["value"] for line in capfd.readouterr().out.splitlines()]
    assert shown == values


@pytest.mark.parametrize(
    "unfit",
    [
        b'{"by_bool": {"x": "y"}}',
        b'{"by_bool": {"true": "x", "1": "y"}}',
        b'{"by_number": {"1": "x", "01": "y"}}',
    ],
)
def test_of_many_lines_those_before_a_key_that_does_not_fit_are_written(tmp_path: Path, unfit: bytes) -> None:
    file = tmp_path / "m.desc"
    file.write_bytes(compile_proto("m.proto", {"m.proto": PROTO}).SerializeToString())
    settings = {"descriptorFile": str(file), "message": "M"}
    one = TypedInput(ColumnFormat("protobuf", settings=settings), "value", "t")
    texts: list[bytes | None] = [b'{"by_number": {"%d": "x"}}' % number for number in range(7)]
    encoded, reason = one.encode(texts)
    assert (len(encoded), reason) == (7, None)
    for place in range(8):
        found, reason = one.encode([*texts[:place], unfit, *texts[place:], b"{"])
        assert found == encoded[:place]
        assert reason is not None
        assert reason.startswith("a key of a map does not fit: ")
    found, reason = one.encode([*texts[:3], b"{", unfit])
    assert found == encoded[:3]
    assert reason is not None
    assert "a key" not in reason


def test_of_several_failures_the_first_is_named() -> None:
    counts = produce._Counts()
    errors = [None, NetworkError("cut"), None, NetworkError("later")]
    for error in errors:
        counts.ended(SimpleNamespace(exception=lambda _, error=error: error))
    assert (counts.confirmed, counts.first_error) == (2, "cut")


def test_an_element_that_does_not_fit_is_not_called_empty() -> None:
    one = TypedInput(FORMATS["one value"], "value", "t")
    assert one.encode([b"[1]", b"null"]) == (one.encode([b"[1]"])[0], "it is empty")
    encoded, reason = one.encode([b"[1]", b"5", b"null"])
    assert (len(encoded), reason is not None and "array" in reason) == (1, True)
    assert one.encode([b"[1]", b"null", b"5"]) == one.encode([b"[1]", b"null"])  # the first one counts


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("option", [None, "http://option"])
def test_a_registry_of_values_alone_comes_before_that_of_keys_and_values(
    swapped: bool, option: str | None
) -> None:
    """The one that stood later counted, and got the credentials of the other."""
    properties = [("registry.url", "http://both"), ("value.registry.url", "http://values")]
    given = argparse.Namespace(
        config=None, properties=properties[:: -1 if swapped else 1], bootstrap="x:1", registry=option,
        timeout=None, parser=None, key_format="avro", key_schema=None, value_format="avro", value_schema=None,
    )  # fmt: skip
    urls = {name: dict(one.settings)["registry.url"] for name, one in given_formats(given).items()}
    assert urls == {"key": option or "http://both", "value": "http://values"}


def test_a_schema_of_an_option_comes_before_one_of_a_property() -> None:
    given = argparse.Namespace(
        config=None, properties=[("value.schema", "a int"), ("key.schema", "b int")], bootstrap="x:1",
        registry=None, timeout=None, parser=None, key_format="json", key_schema=None, value_format="json",
        value_schema="c int",
    )  # fmt: skip
    types = {name: one.type for name, one in given_formats(given).items()}
    assert types == {"key": pa.struct([("b", pa.int32())]), "value": pa.struct([("c", pa.int32())])}


@pytest.mark.parametrize("registry", [None, "http://r"])
def test_json_without_a_schema_has_that_of_its_registry(registry: str | None) -> None:
    """As plain JSON it would be written without the id of the schema."""
    given = argparse.Namespace(
        config=None, properties=[], bootstrap="x:1", registry=registry, timeout=None, parser=None,
        key_format=None, key_schema=None, value_format="json", value_schema=None,
    )  # fmt: skip
    assert isinstance(given_formats(given)["value"], JsonText) is (registry is None)


@pytest.mark.parametrize("payload", ["key", "value"])
def test_the_schema_of_a_key_is_not_that_of_a_value(payload: str) -> None:
    answer = {"id": 7, "version": 1, "schema": '"long"'}
    with serving(lambda _: (200, {}, answer)) as served:
        one = TypedInput(ColumnFormat("avro", None, {"registry.url": served.url}), payload, "t")
        assert one.encode([b"1"]) == ([b"\0\0\0\0\7\2"], None)
        assert set(served.paths) == {f"/subjects/t-{payload}/versions/latest"}
    one._encoder = InHeader()
    ids = {name: (f"__{name}_schema_id", b"\1old") for name in ("key", "value")}
    (kept,) = (one for name, one in ids.items() if name != payload)
    assert one.headers(tuple(ids.values())) == (kept, (f"__{payload}_schema_id", b"\1new"))


def test_a_password_of_a_registry_is_looked_up_where_its_setting_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the name of its place would be sent as the password."""
    monkeypatch.delenv("NO_SUCH_PASSWORD", raising=False)
    settings = {
        "registry.url": "http://127.0.0.1:1",
        "registry.user": "me",
        "registry.password": "env:NO_SUCH_PASSWORD",
    }
    with pytest.raises(ConfigError, match="NO_SUCH_PASSWORD"):
        TypedInput(ColumnFormat("avro", None, settings), "value", "t")


def test_records_in_json_go_to_the_partition_that_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one in the line is where the record was read."""
    with MockBroker() as broker:
        broker.create_topic("orders", partitions=3)
        servers = ("orders", "--input", "json", "-b", broker.bootstrap_servers)
        lines = b'{"value": "a", "partition": 0}\n{"value": "a"}\n'
        for partition in range(3):
            assert produced(monkeypatch, capsys, lines, *servers, "-p", str(partition))[0] == 0
            written = [len(broker.records("orders", number)) for number in range(3)]
            assert written == [2] * (partition + 1) + [0] * (2 - partition)


def test_a_result_in_json_has_the_first_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockBroker() as broker:
        broker.create_topic("orders")
        broker.on("Produce", times=None).fail("TOPIC_AUTHORIZATION_FAILED")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
        assert main(["produce", "orders", "--json", "-b", broker.bootstrap_servers]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["confirmed"], result["failed"]) == (0, 2)
    assert "TOPIC_AUTHORIZATION_FAILED" in result["error"]
