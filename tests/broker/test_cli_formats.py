"""`pykafka tail` and `produce` with formats, against a real broker."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.commands import Run, runner

from spark_kafka_native.kafka import (
    ClientConfig,
    Consumer,
    Producer,
    Router,
    TopicPartition,
    committed_offsets,
)

pytestmark = pytest.mark.broker

ORDER = ("--value-format", "json", "--value-schema", "id bigint, amount decimal(20,2), tags array<string>")
LINES = b'{"id":1,"amount":12.50}\n{"id":2,"amount":"123456789012345678.25","tags":["a","b"]}\n'
BAD = b'{"id":"?","amount":1}'


@pytest.fixture
def run(kafka: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command as in a pipe: its exit code, standard output and standard error."""
    return runner(kafka, capsys, monkeypatch)


@pytest.fixture
def topic(kafka: Any) -> str:
    name = f"cli-formats-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 1)
    return name


def write(kafka: Any, topic: str, *values: bytes | None) -> None:
    with Producer(kafka.bootstrap_servers) as producer:
        producer.send_many(topic, [{"value": value, "key": b"k", "timestamp_ms": 5} for value in values])


def values_of(kafka: Any, topic: str) -> list[bytes | None]:
    with Consumer(kafka.bootstrap_servers, topic, start="earliest", stop_at_end=True) as consumer:
        return [record.value for record in consumer]


def test_lines_go_in_by_the_schema_and_come_out(kafka: Any, run: Run, topic: str) -> None:
    assert run("produce", topic, *ORDER, stdin=LINES) == (0, "", f"2 records are in {topic}.\n")
    assert values_of(kafka, topic) == [
        b'{"id":1,"amount":12.50}',
        b'{"id":2,"amount":123456789012345678.25,"tags":["a","b"]}',
    ]
    code, out, _ = run("tail", topic, *ORDER)
    assert (code, out.splitlines()[0]) == (0, '{"id":1,"amount":12.50}')
    code, out, _ = run("tail", topic, "--json", *ORDER)
    assert '"key": null, "value": {"id":2,"amount":123456789012345678.25,"tags":["a","b"]}}' in out
    assert run("tail", topic, "--format", "%o %s|", *ORDER)[1].startswith('0 {"id":1,"amount":12.50}|1 {')
    assert "@1  20" in run("tail", topic, "-o", "text", *ORDER)[1]


def test_what_tail_prints_produce_takes(kafka: Any, run: Run, topic: str) -> None:
    write(kafka, topic, *LINES.splitlines(), None)
    out = run("tail", topic, "--json", "--key-format", "string", *ORDER)[1]
    assert json.loads(out.splitlines()[2])["value"] is None
    kafka.create_topic(f"{topic}-copy", 1)
    code, _, err = run("produce", f"{topic}-copy", "--input", "json", *ORDER, stdin=out.encode())
    assert (code, err) == (0, f"3 records are in {topic}-copy.\n")
    assert values_of(kafka, f"{topic}-copy") == [
        b'{"id":1,"amount":12.50}',
        b'{"id":2,"amount":123456789012345678.25,"tags":["a","b"]}',
        None,
    ]
    again = run("tail", f"{topic}-copy", "--json", "--key-format", "string", *ORDER)[1]
    assert again.replace("-copy", "") == out


def test_a_line_that_does_not_fit_is_named_and_nothing_after_it_is_sent(
    kafka: Any, run: Run, topic: str
) -> None:
    code, _, err = run("produce", topic, *ORDER, stdin=LINES + BAD + b"\n" + LINES)
    assert code == 1
    assert "error: line 3: the value does not fit: `id` is not an integer of 64 bits" in err
    assert len(values_of(kafka, topic)) == 2
    for line, says in (
        (b"{", "line 1: the value does not fit: malformed JSON"),
        (b"", "line 1: the value does not fit: it is empty"),
        (b"null", "line 1: the value does not fit: not a JSON object"),
    ):
        assert says in run("produce", topic, *ORDER, stdin=line + b"\n")[2]
    assert run("produce", topic, "-z", *ORDER, stdin=b"\n")[0] == 0  # a tombstone
    assert values_of(kafka, topic)[2:] == [None]


def test_what_becomes_of_a_record_that_can_t_be_decoded(kafka: Any, run: Run, topic: str) -> None:
    good = b'{"id":1,"amount":1.00}'
    write(kafka, topic, good, b"\xff", BAD, good)
    code, out, err = run("tail", topic, *ORDER)
    assert (code, out) == (1, good.decode() + "\n")
    assert f"MalformedRecordError: {topic}-0 at offset 1: the value can't be decoded: not UTF-8" in err
    code, out, err = run("tail", topic, "--mode", "permissive", *ORDER)
    assert (code, out.splitlines()) == (0, [good.decode(), "{}", '{"amount":1.00}', good.decode()])
    assert [line.partition(": ")[0] for line in err.splitlines()] == [f"{topic}-0@1", f"{topic}-0@2"]
    code, out, err = run("tail", topic, "--mode", "permissive", "--json", *ORDER)
    shown = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert ["_error" in one for one in shown] == [False, True, True, False]
    assert shown[1]["_corrupt_record_base64"] == "/w=="
    assert shown[2]["_corrupt_record"] == BAD.decode()
    code, out, err = run("tail", topic, "--mode", "dropmalformed", *ORDER)
    assert (code, out) == (0, f"{good.decode()}\n" * 2)
    assert err == "2 records could not be decoded: left out.\n"
    assert run("tail", topic, "-c", "1", *ORDER)[0] == 0  # it ends before the bad one


def test_a_group_gets_no_further_than_a_bad_record(kafka: Any, run: Run, topic: str) -> None:
    write(kafka, topic, b'{"id":1}', BAD, b'{"id":3}')
    group = (f"group-{topic}", "-X", "auto.offset.reset=earliest")
    code, out, err = run("tail", topic, "--group", *group, "-c", "5", *ORDER)
    assert (code, out, "at offset 1" in err) == (1, '{"id":1}\n', True)
    partition = TopicPartition(topic, 0)
    router = Router(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,)))
    try:
        assert committed_offsets(router, group[0], [partition]) == {partition: 1}
        code, out, _ = run("tail", topic, "--group", *group, "--mode", "permissive", "-c", "1", *ORDER)
        assert (code, out) == (0, '{"amount":1.00}\n')
        assert committed_offsets(router, group[0], [partition]) == {partition: 2}
    finally:
        router.close()


def test_json_without_a_schema_is_checked_and_left_as_it_is(kafka: Any, run: Run, topic: str) -> None:
    odd = b'{"b": 1.10, "a" : [null]}'
    assert run("produce", topic, "--value-format", "json", stdin=odd + b"\n[1]\n")[0] == 0
    assert values_of(kafka, topic) == [odd, b"[1]"]
    code, _, err = run("produce", topic, "--value-format", "json", stdin=b"{x\n")
    assert (code, "line 1: the value does not fit: malformed JSON at character 1" in err) == (1, True)
    write(kafka, topic, None, b"{")
    code, out, err = run("tail", topic, "--json", "--value-format", "json")
    assert code == 1
    assert f'"value": {odd.decode()}' in out.splitlines()[0]
    assert "at offset 3: the value can't be decoded: malformed JSON" in err


def test_keys_strings_and_types_that_are_no_structs(kafka: Any, run: Run, topic: str, tmp_path: Path) -> None:
    schema = tmp_path / "order.ddl"
    schema.write_text("id bigint,\n  at timestamp\n")
    options = ("--key-format", "string", "--value-format", "json", "--value-schema", f"file:{schema}")
    berlin = ("-X", "value.timeZone=Europe/Berlin")
    line = 'ä;{"at":"2024-01-01T01:00:00"}\n'.encode()
    assert run("produce", topic, "-K", ";", *options, *berlin, stdin=line)[0] == 0
    assert values_of(kafka, topic) == [b'{"at":"2024-01-01T00:00:00.000000Z"}']
    out = run("tail", topic, "--json", *options)[1]
    assert json.loads(out)["key"] == "ä"
    assert '"value": {"at":"2024-01-01T00:00:00.000000Z"}' in out
    code, _, err = run("produce", topic, "-K", ";", *options, stdin=b"\xff;{}\n")
    assert (code, "line 1: the key does not fit: not UTF-8 at byte 0" in err) == (1, True)


@pytest.mark.parametrize("line", [b'1,"w":2', b'3,"v":4', b"5 6", b"7}{"])
def test_a_line_that_is_more_than_one_value_is_refused(run: Run, topic: str, line: bytes) -> None:
    options = ("--value-format", "avro", "--value-schema", '"long"')
    code, _, err = run("produce", topic, *options, stdin=b"0\n" + line + b"\n")
    assert code == 1
    assert "1 record is in" in err
    assert "line 2: the value does not fit: malformed JSON" in err


def test_a_schema_among_the_properties(kafka: Any, run: Run, topic: str) -> None:
    write(kafka, topic, b'{"id": 1, "other": 2}')
    given = ("--value-format", "json", "-X", "value.schema=id bigint")
    assert run("tail", topic, *given)[:2] == (0, '{"id":1}\n')


def test_what_can_be_wrong_with_the_formats(run: Run, topic: str) -> None:
    for arguments, says in (
        (("--value-format", "jsn"), "ConfigError: --value-format jsn: There is no format 'jsn'"),
        (("--value-format", "json", "--value-schema", "id bgint"), "'bgint' is no type"),
        (
            ("--value-format", "json", "--value-schema", "file:/nowhere"),
            "/nowhere can't be read",
        ),
    ):
        for command in ("tail", "produce"):
            code, _, err = run(command, topic, *arguments)
            assert (code, says in err) == (1, True), err
