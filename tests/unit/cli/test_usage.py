"""Wrong usage, and everything that needs no cluster."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_native.cli import options, output, produce, record_lines, top
from spark_kafka_native.cli.main import command_line_parser, main
from spark_kafka_native.cli.offsets import OffsetSpec, parse_offset_spec, parse_time_ms
from spark_kafka_native.cli.options import CommandParser, number
from spark_kafka_native.cli.record_lines import ShownRecord, parse_format
from spark_kafka_native.cli.typed_records import given_formats
from spark_kafka_native.formats.json.json_text import JsonText
from spark_kafka_native.kafka.cluster import retry_policy
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.model import OffsetAt
from spark_kafka_native.testing import MockBroker


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["topics"], "which cluster?"),
        (["topics", "create", "-b", "h"], "which topics?"),
        (["topics", "sing"], "invalid choice: 'sing'"),
        (["topics", "grow", "x", "-b", "h"], "--partitions N"),
        (["topics", "create", "x", "--replicas", "1,a", "-b", "h"], "not of the form 1:2,2:3"),
        (["tail", "x", "--from", "soon", "-b", "h"], "'soon' is none of"),
        (["tail", "x", "--follow", "--until", "5", "-b", "h"], "no --until"),
        (["tail", "x", "-g", "g", "--until", "5", "-b", "h"], "the group says which partitions"),
        (["tail", "x", "-g", "g", "-p", "3", "-b", "h"], "the group says which partitions"),
        (["tail", "x", "-g", "g", "--from", "earliest", "-b", "h"], "--from: not allowed with argument -g"),
        (["tail", "x", "-g", "g", "-n", "5", "-b", "h"], "-n/--lines: not allowed with argument -g"),
        (["tail", "x", "--format", "%q", "-b", "h"], "%q means nothing"),
        (["produce", "x", "-k", "a", "-K", ":", "-b", "h"], "nothing to separate"),
        (["reset", "g", "-b", "h"], "where to?"),
        (["reset", "g", "--to", "latest", "--shift-by", "1", "-b", "h"], "where to?"),
        (["groups", "--delete", "-b", "h"], "which groups?"),
        (["groups", "g", "--delete", "--state", "empty", "-b", "h"], "--delete deletes the groups that it"),
        (["groups", "g", "--markers", "-b", "h"], "--markers: only with --delete"),
        (["groups", "g", "--d", "-b", "h"], "unrecognized arguments: --d"),
        (["reset", "g", "--to", "latest", "--exec", "-b", "h"], "unrecognized arguments: --exec"),
        (["topics", "create", "", "-b", "h"], "not empty"),
        (["topics", "create", "x", "--replicas", "1:99999999999", "-b", "h"], "not of the form 1:2,2:3"),
        (["configs", "broker", "x", "-b", "h"], "a number, not 'x'"),
        (["acls", "add", "--topic", "x", "-b", "h"], "give --principal"),
        (["acls", "remove", "-b", "h"], "whose"),
        (["acls", "--operation", "raed", "-b", "h"], "the operation of an ACL is one of"),
        (["top", "-i", "0", "-b", "h"], "--interval"),
        (["offsets", "x", "-X", "no-equals-sign"], "NAME=VALUE"),
        (["groups", "--lag", "--delete", "g", "-b", "h"], "--delete: not allowed with argument --lag"),
        (["top", "-i", "often", "-b", "h"], "a number is wanted, not 'often'"),
        (["configs", "topic", "x", "--set", "a=1", "--unset", "a", "-b", "h"], "'a' is named twice"),
        (["configs", "topic", "x", "--set", "a=1", "--append", "a=2", "-b", "h"], "'a' is named twice"),
        (["configs", "topic", "x", "--append", "a=1", "--append", "a=2", "-b", "h"], "'a' is named twice"),
        (["topics", "create", "x", "--set", "a=1", "--set", "a=2", "-b", "h"], "'a' is named twice"),
        (["quotas", "--user", "x", "--set", "a=1", "--unset", "a", "-b", "h"], "'a' is named twice"),
        ([], "pykafka: which command?"),
        (["topisc"], "pykafka: no command 'topisc'; did you mean 'topics'?"),
        (["xyz"], "pykafka: no command 'xyz'"),
        (
            ["topics", "list", "--partition=3"],
            "topics: unrecognized arguments: --partition=3; did you mean --partitions?",
        ),
        (["topics", "--xyz"], "pykafka topics: unrecognized arguments: --xyz\n"),
        (["reset", "-b", "h", "--", "g", "-t"], "pykafka reset: unrecognized arguments: -t\n"),
        (["users", "delete", "-b", "h"], "pykafka users: delete: which users?"),
        (["tokens", "expire", "-b", "h"], "pykafka tokens: expire: which tokens?"),
        (["tokens", "renew", "-b", "h"], "pykafka tokens: renew: which tokens?"),
        (["tokens", "expire", "T", "--period", "7d"], "pykafka tokens: expire: --period is for renew"),
        (["tokens", "create", "--period", "7d"], "pykafka tokens: create: --period is for renew"),
        (["tokens", "renew", "T", "--owner", "User:a"], "renew: --owner is for create and describe"),
        (["tokens", "create", "--max-lifetime", "106751991168d", "-b", "h"], "a longer time than Kafka can"),
        (["tokens", "renew", "x", "--period", "9" * 5_000 + "s", "-b", "h"], "a longer time than Kafka can"),
        (["tokens", "create", "--max-lifetime", "00d", "-b", "h"], "a time such as 30m, 12h or 3d"),
        (["topics", "--partitions", "3", "-b", "h"], "list: --partitions is for create and grow"),
        (["topics", "create", "x", "--if-exists", "-b", "h"], "create: --if-exists is for delete"),
        (["topics", "delete", "x", "--dry-run", "-b", "h"], "delete: --dry-run is for create and grow"),
        (
            ["topics", "grow", "x", "--partitions", "2", "--set", "a=1", "-b", "h"],
            "grow: --set is for create",
        ),
        (["users", "--mechanism", "SCRAM-SHA-512", "-b", "h"], "list: --mechanism is for set and delete"),
        (["users", "delete", "x", "--iterations", "8192", "-b", "h"], "delete: --iterations is for set"),
        (["transactions", "-p", "0", "-b", "h"], "list: --partition is for abort"),
        (["transactions", "describe", "x", "--state", "Empty", "-b", "h"], "describe: --state is for list"),
        (["tail", "x", "--mode", "permissive", "-b", "h"], "--mode is for records with --value-format"),
        (["tail", "x", "--key-schema", "int", "-b", "h"], "--key-schema needs --key-format"),
        (["tail", "x", "--registry", "http://r", "-b", "h"], "--registry needs --value-format"),
        (["tail", "x", "-o", "hex", "--value-format", "string", "-b", "h"], "-o hex shows bytes"),
    ],
)
def test_wrong_usage_is_told_in_a_line_and_ends_with_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert says in err
    assert "--help" in err or "usage" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics"],
        ["acls"],
        ["acls", "add", "--principal", "User:a", "--operation", "read", "--topic", "x"],
        ["users", "set", "a", "--password", "env:HOME"],
        ["quotas", "--user", "a", "--set", "producer_byte_rate=1"],
        ["transactions", "abort", "x", "-p", "0", "--start-offset", "1"],
    ],
    ids=" ".join,
)
def test_a_certificate_that_cannot_be_read_is_no_wrong_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = ["-b", f"127.0.0.1:{server.getsockname()[1]}", "-X", "security.protocol=SSL"]
        assert main([*arguments, *at, "-X", "ssl.truststore.location=/nowhere.pem"]) == 1
    said = capsys.readouterr().err.removeprefix("user a: ")
    assert said.startswith("ConfigError: ssl.truststore.location: /nowhere.pem on ")


def test_names_and_options_may_come_in_any_order() -> None:
    parser = CommandParser()
    parser.add_argument("action", nargs="?", default="list", choices=("list", "create"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("-b")
    for words in (
        ["create", "x", "y", "-b", "h"],
        ["-b", "h", "create", "x", "y"],
        ["create", "-b", "h", "x", "y"],
    ):
        parsed = parser.parse_args(words)
        assert (parsed.action, parsed.names, parsed.b) == ("create", ["x", "y"], "h")
    assert parser.parse_args(["-b", "h"]).action == "list"


def given(**values: Any) -> argparse.Namespace:
    defaults = {
        "bootstrap": None,
        "config": None,
        "properties": [],
        "timeout": None,
        "parser": CommandParser(),
    }
    return argparse.Namespace(**defaults | values)


def test_options_take_precedence_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=a:1\nclient.id=x\nsasl.password=geheim\n# no\n")
    read = options.given_properties(given(config=file, properties=[("client.id", "y")], bootstrap="b:2"))
    assert (read["bootstrap.servers"], read["client.id"], read["sasl.password"]) == ("b:2", "y", "geheim")
    config = options.client_config(given(bootstrap="h"))
    assert (config.bootstrap_servers, config.client_id, config.default_api_timeout_ms) == (
        ("h:9092",),
        "pykafka",
        30_000,
    )
    with pytest.raises(ConfigError, match="nowhere can't be read"):
        options.given_properties(given(config=Path("/nowhere")))
    file.write_bytes("bootstrap.servers=a:1\nclient.id=zoë\n".encode("iso-8859-1"))
    assert options.given_properties(given(config=file))["client.id"] == "zoë"


def test_variables_of_a_file_are_read_for_properties_that_a_command_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    names = ("bootstrap.servers", "group.instance.id", "transactional.id", "basic.auth", "sasl.password")
    file.write_text("\n".join(f"{name}=${{env:V}}" for name in names))
    monkeypatch.setenv("V", "v")
    found = options.all_properties(given(config=file))
    assert [found[name] for name in names] == ["v", "v", "v", "env:V", "env:V"]


def test_what_java_needs_for_variables_of_a_file_causes_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    provider = "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider"
    file.write_text(f"bootstrap.servers=a:1\nconfig.providers=env\n{provider}\nclient.id=${{env:V}}\n")
    monkeypatch.setenv("V", "v")
    assert options.client_config(given(config=file)).client_id == "v"
    assert capsys.readouterr().err == ""
    file.write_text("bootstrap.servers=a:1\nconfig.provider=env\n")
    options.client_config(given(config=file))
    assert "unknown property 'config.provider'" in capsys.readouterr().err


def test_options_and_their_file_take_precedence_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, own = tmp_path / "client.properties", tmp_path / "own.properties"
    file.write_text("bootstrap.servers=file:1\nacks=1\n")
    own.write_text("acks=0\n")
    monkeypatch.setenv("PYKAFKA_CONFIG", str(file))
    servers = "bootstrap.servers"
    assert options.given_properties(given())[servers] == "file:1"
    monkeypatch.setenv("PYKAFKA_BOOTSTRAP", "environment:1")
    properties = options.given_properties(given())
    assert (properties[servers], properties["acks"]) == ("environment:1", "1")
    properties = options.given_properties(given(config=own))
    assert (properties[servers], properties["acks"]) == ("environment:1", "0")
    assert options.given_properties(given(config=file))[servers] == "file:1"
    assert options.given_properties(given(properties=[(servers, "x:1")]))[servers] == "x:1"
    assert options.given_properties(given(bootstrap="b:1"))[servers] == "b:1"
    assert options.given_properties(given(properties=[(servers, "x:1")], bootstrap="b:1"))[servers] == "b:1"
    alias = "metadata.broker.list"
    file.write_text(f"{alias}=file:1\n")
    assert options.given_properties(given())[servers] == "environment:1"
    assert options.given_properties(given(config=file))[alias] == "file:1"
    for more in ({"bootstrap": "b:1"}, {"properties": [(servers, "b:1")]}, {"properties": [(alias, "b:1")]}):
        properties = options.given_properties(given(config=file, **more))
        assert (properties[servers], alias in properties) == ("b:1", False)
    monkeypatch.setenv("PYKAFKA_CONFIG", "/nowhere")
    with pytest.raises(ConfigError, match="PYKAFKA_CONFIG: /nowhere can't be read"):
        options.given_properties(given())


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("sasl.mechanism", "sasl.mechanisms"),
        ("ssl.truststore.location", "ssl.ca.location"),
        ("ssl.keystore.key", "ssl.key.pem"),
        ("linger.ms", "queue.buffering.max.ms"),
    ],
)
def test_an_option_takes_precedence_over_the_other_name_in_the_file(
    tmp_path: Path, name: str, alias: str
) -> None:
    file = tmp_path / "client.properties"
    for in_file, as_option in ((name, alias), (alias, name), (alias, alias)):
        file.write_text(f"bootstrap.servers=a:1\n{in_file}=of the file\n")
        found = options.all_properties(given(config=file, properties=[(as_option, "typed")]))
        assert found == {"bootstrap.servers": "a:1", name: "typed"}


def test_settings_of_formats_and_registries_are_not_the_connections(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("registry.url=https://r\nvalue.timeZone=UTC\nkey.serializer=x\n")
    arguments = given(bootstrap="h", config=file, properties=[("registry.user", "me")])
    names = options.given_properties(arguments)
    assert {"registry.url", "registry.user", "value.timeZone"}.isdisjoint(names)
    assert "key.serializer" in names
    assert options.all_properties(arguments)["registry.user"] == "me"


def test_a_timeout_that_was_typed_is_the_one_that_counts(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("default.api.timeout.ms=60000\n")
    name = "default.api.timeout.ms"
    assert options.given_properties(given(bootstrap="h", config=file, timeout=5))[name] == "5000"
    assert options.given_properties(given(bootstrap="h", config=file))[name] == "60000"
    assert options.given_properties(given(bootstrap="h"))[name] == "30000"
    _, config = options.producer_configs(given(bootstrap="h", config=file, timeout=5))
    assert (config.delivery_timeout_ms, config.max_block_ms) == (5_000, 5_000)
    file.write_text("message.timeout.ms=60000\n")
    _, config = options.producer_configs(given(bootstrap="h", config=file, timeout=5))
    assert config.delivery_timeout_ms == 5_000
    _, config = options.producer_configs(given(bootstrap="h"))
    assert (config.delivery_timeout_ms, config.max_block_ms) == (120_000, 60_000)
    for timeout, limit_ms in ((5, 5_000), (None, 120_000)):
        client, consumer = options.consumer_configs(given(bootstrap="h", timeout=timeout))
        assert consumer.poll_timeout_ms == limit_ms, timeout
        assert consumer.poll_timeout_ms > client.request_timeout_ms or timeout, "time for a second attempt"


def test_options_of_a_command_take_precedence_over_properties(tmp_path: Path) -> None:
    """A member of a group that committed by itself would skip records that were not printed."""
    file = tmp_path / "client.properties"
    names = {"group.id": "x", "enable.auto.commit": "true", "compression.type": "gzip"}
    file.write_text("".join(f"{name}={text}\n" for name, text in names.items()))
    typed = [word for name, text in names.items() for word in ("-X", f"{name}={text}")]
    for more in (["--config", str(file)], typed):
        words = ["tail", "t", "-g", "g", "-b", "h", *more]
        _, group = options.group_configs(command_line_parser(words).parse_args(words), "g")
        assert (group.group_id, group.enable_auto_commit) == ("g", False)
        words = ["produce", "t", "--compression", "lz4", "-b", "h", *more]
        arguments = command_line_parser(words).parse_args(words)
        produce._check_usage(arguments)
        _, config = options.producer_configs(arguments)
        assert config.compression_type == "lz4"


def test_what_nobody_listens_to_changes_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as hung_up:
        monkeypatch.setattr(sys, "stderr", hung_up)
        output.note("x")
        monkeypatch.undo()
        with contextlib.suppress(BrokenPipeError):
            hung_up.close()


@pytest.mark.parametrize("line", [b'{"timestamp_ms":Infinity}', b"[" * 100_000, b"5", b'{"headers":[1]}'])
def test_a_line_that_is_no_record_is_an_error_of_the_input(line: bytes) -> None:
    with pytest.raises(produce.InputError, match="no record in JSON"):
        produce.record_from_json(line, argparse.Namespace(partition=None, timestamp=None), ())


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            b'{"key":"k","payload":"v","ts":1}',
            "unknown member 'payload' of a record, which has topic,",
        ),  # kcat's
        (b'{"value":"v","Key":"k"}', "unknown member 'Key'"),
        (b'{"key":"k"}', 'the record has no "value"'),
        (b'{"value":"v","headers":[{"name":"n"}]}', 'the header has no "value"'),
        (b'{"value":"v","headers":[{"name":"n","val":"v"}]}', "unknown member 'val' of a header"),
        (b'{"value":"v","headers":["n","v"]}', "a header is an object"),
        (b'{"value":"v","value_base64":"dg=="}', "contradict each other"),
        (b'{"key":null,"key_base64":"dg==","value":"v"}', "contradict each other"),
        (b'{"value":"v","headers":[{"name":null,"value":"x"}]}', "the name of a header is a text, not null"),
        (b'{"value":"v","headers":[{"value":"x"}]}', "the name of a header is a text, not null"),
        (b'{"value_base64":null}', '"value_base64" is a text, not null'),
    ],
)
def test_a_member_of_a_line_in_json_that_would_be_ignored_is_refused(line: bytes, complaint: str) -> None:
    with pytest.raises(produce.InputError) as caught:
        produce.record_from_json(line, argparse.Namespace(partition=None, timestamp=None), ())
    assert complaint in str(caught.value)


def test_headers_of_a_line_and_of_every_record() -> None:
    given = argparse.Namespace(partition=None, timestamp=None)
    every = (("from", b"test"), ("n", None))
    line = b'{"value":"v","headers":[{"name":"a","value":"x"},{"name":"b","value_base64":"/w=="}]}'
    record = produce.record_from_json(line, given, every)
    assert record.headers == (("a", b"x"), ("b", b"\xff"), *every)
    assert produce.record_from_json(b'{"value":"v"}', given, every).headers == every


def test_null_in_json_is_a_tombstone() -> None:
    line = b'{"topic":"x","partition":1,"offset":5,"timestamp_ms":null,"key":"k","value":null}'
    record = produce.record_from_json(line, argparse.Namespace(partition=None, timestamp=None), ())
    assert (record.key, record.value, record.headers) == (b"k", None, ())


def test_one_record_is_counted_as_one() -> None:
    assert [output.counted(count, "record") for count in (0, 1, 2)] == ["0 records", "1 record", "2 records"]


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_progress_fits_into_a_line_of_the_terminal(columns: int) -> None:
    shown = output.progress_bar("writing", 0.5, columns)
    assert len(shown) <= columns - 1
    assert shown.startswith("  writing [")
    assert shown.endswith("]  50%")
    assert shown.count("#") == min(15, (columns - 18) // 2)
    assert output.progress_bar("a title that is far too long", 1, columns)[:columns] == output.progress_bar(
        "a title that is far too long", 1, columns
    )


def test_headings_are_cut_to_the_terminal() -> None:
    heading = f"{output.BOLD}GROUP  STATE{output.PLAIN}"
    assert top.cut_line(heading, 8) == f"{output.BOLD}GROUP  S{output.PLAIN}"
    assert (top.cut_line("row", 2), top.cut_line(heading, 80)) == ("ro", heading)


def test_unknown_properties_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    options.consumer_configs(given(bootstrap="h", properties=[("isolation.levle", "read_committed")]))
    assert "did you mean 'isolation.level'" in capsys.readouterr().err


def test_a_secret_is_in_no_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_policy, "UNREACHABLE_WAIT_MS", 100)
    file = tmp_path / "client.properties"
    file.write_text("sasl.password=geheim\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAN\n")
    assert main(["topics", "-b", "localhost:1", "--config", str(file)]) == 1
    assert main(["topics", "-b", "localhost:1", "-X", "ssl.key.password=geheim", "-X", "acks=9"]) == 1
    with pytest.raises(SystemExit):
        main(["topics", "-X", "geheim"])
    captured = capsys.readouterr()
    assert "geheim" not in captured.out + captured.err.replace("-X", "")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("earliest", OffsetSpec(at=OffsetAt.EARLIEST)),
        ("END", OffsetSpec(at=OffsetAt.LATEST)),
        ("42", OffsetSpec(shift=42)),
        ("+3", OffsetSpec(at=OffsetAt.EARLIEST, shift=3)),
        ("-10", OffsetSpec(at=OffsetAt.LATEST, shift=-10)),
        ("@1700000000000", OffsetSpec(at=OffsetAt.timestamp(1_700_000_000_000))),
        ("2026-05-01T12:00:00Z", OffsetSpec(at=OffsetAt.timestamp(1_777_636_800_000))),
        ("max-timestamp", OffsetSpec(at=OffsetAt.MAX_TIMESTAMP)),
    ],
)
def test_offset_specifications(text: str, spec: OffsetSpec) -> None:
    assert parse_offset_spec(text) == spec


def test_times_ago() -> None:
    assert parse_time_ms("1h") - parse_time_ms("2h") == pytest.approx(3_600_000, abs=60_000)
    assert parse_time_ms("15 minutes ago") < parse_time_ms("1s")
    for wrong in ("soon", "1y", "", "-"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_time_ms(wrong)


RECORD = ShownRecord("t", 1, 2, 1_700_000_000_123, b"\xff", None, [("h", b"\x1b"), ("n", None)])


def test_records_in_a_format_of_ones_own() -> None:
    assert parse_format(r"%t/%p/%o %T %K %S [%s] %%\x41\t")(RECORD) == b"t/1/2 1700000000123 1 -1 [] %A\t"
    assert parse_format(r"%k\xff\xe4")(RECORD) == b"\xff\xff\xe4"
    empty = RECORD._replace(key=None, value=b"", headers=[("nam\udcff", b"1"), ("e", None)])
    assert parse_format("%K %S %h")(empty) == b"-1 0 nam\xff=1,e="  # the bytes of the name
    for wrong in ("%q", r"\q"):
        with pytest.raises(ValueError, match="means nothing"):
            parse_format(wrong)


def test_records_for_people() -> None:
    line = record_lines.text_line(RECORD)
    assert line == b"t-1@2  2023-11-14T22:13:20.123Z  \\xff  null  #  h=\\x1b  n=null\n"
    assert record_lines.text_line(RECORD._replace(timestamp_ms=2**62)).startswith(b"t-1@2  @4611686")
    shown = json.loads(record_lines.json_line(RECORD._replace(timestamp_ms=-1)))
    assert (shown["timestamp_ms"], shown["key_base64"], shown["value"]) == (None, "/w==", None)
    assert b"  no time  " in record_lines.text_line(RECORD._replace(timestamp_ms=-1))
    for time_ms in (0, -86_400_005):  # a copy would have the present time
        assert (
            json.loads(record_lines.json_line(RECORD._replace(timestamp_ms=time_ms)))["timestamp_ms"]
            == time_ms
        )
    assert b"  1969-12-30T23:59:59.995Z  " in record_lines.text_line(
        RECORD._replace(timestamp_ms=-86_400_005)
    )
    empty = json.loads(record_lines.json_line(RECORD._replace(key=b"", value=b"", headers=[("h", b"")])))
    assert (empty["key"], empty["value"], empty["headers"]) == ("", "", [{"name": "h", "value": ""}])
    assert b"  null" in record_lines.hex_line(RECORD)
    for key, shown_key in ((None, b"null"), (b"", b"empty"), (b"foo", b"66 6f 6f")):
        line, _ = record_lines.hex_line(RECORD._replace(key=key)).splitlines()
        assert line == b"t-1@2  key " + shown_key
    assert record_lines.hex_line(RECORD._replace(value=bytes(range(32, 50)))).count(b"\n") == 3


@pytest.mark.parametrize(
    "letter", [*"\x00\x1b\x7f\x80\x9b\x9f\u200e\u200f\u2028\u202a\u202e\u2066\u2069", "\ud800"]
)
def test_nothing_that_controls_a_terminal_is_printed(letter: str) -> None:
    shown = output.printable(f"a{letter}b")
    assert shown.isascii()
    assert shown.isprintable()
    assert output.printable("ä€ 日本\t") == "ä€ 日本\\t"


def test_tables() -> None:
    rows = [{"name": "a", "count": 5}, {"name": "b\x1b", "count": 12, "more": 1}]
    assert output.table(("name", "count"), rows) == ["NAME   COUNT", "a          5", "b\\x1b     12"]
    assert output.table(("name",), []) == ["NAME"]
    assert [output.cell(value) for value in (None, "", True, 1.25, [1, 2], [])] == [
        "-",
        "-",
        "yes",
        "1.2",
        "1,2",
        "-",
    ]
    assert output.human_bytes(1536) == "1.5 KiB"


def test_numbers_of_options_have_bounds() -> None:
    assert number(1, 10)("5") == 5
    for wrong in ("0", "11", "x"):
        with pytest.raises(argparse.ArgumentTypeError):
            number(1, 10)(wrong)


def test_the_parser_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'pyarrow', 'pyspark', 'ssl'}"
    code = f"import sys, spark_kafka_native.cli.main; print({heavy} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_tail_imports_nothing_that_only_others_need() -> None:
    """It would be a third of the time until the first record."""
    others = (
        "pandas",
        "pyarrow.compute",
        "spark_kafka_native.kafka.security.tls",
        "spark_kafka_native.kafka.security",
    )
    with MockBroker() as broker:
        broker.create_topic("tailed")
        broker.append("tailed", ["first", None, "last"])
        code = "import sys; from spark_kafka_native.cli.main import main; main(sys.argv[1:]); "
        code += f"print(set({others}) & set(sys.modules))"
        command = [sys.executable, "-c", code, "tail", "tailed", "-b", broker.bootstrap_servers]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["first", "last", "set()"]


class ShortWrites(io.RawIOBase):
    """Standard output with PYTHONUNBUFFERED, on a disk with room for that many bytes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.written = b""

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "full")
        taken = bytes(data[: min(self.room, 7)])
        self.room -= len(taken)
        self.written += taken
        return len(taken)


def test_output_that_is_cut_short_is_completed_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (30, 10):
        raw = ShortWrites(room)
        monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(buffer=raw))
        with contextlib.nullcontext() if room == 30 else pytest.raises(OSError, match="full"):
            output.write_bytes(b"0123456789" * 3)
        assert raw.written == (b"0123456789" * 3)[:room]


class CountedWrites(io.FileIO):
    count = 0

    def write(self, data: Any) -> int:
        self.count += 1
        return super().write(data)


@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_does_not_block_waits_for_its_reader(
    monkeypatch: pytest.MonkeyPatch, buffered: bool
) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    data, found = bytes(range(256)) * 4096, bytearray()

    def read() -> None:
        time.sleep(0.2)
        while block := os.read(reading, 1 << 16):
            found.extend(block)

    reader = threading.Thread(target=read)
    reader.start()
    with CountedWrites(writing, "w") as raw:
        buffer = io.BufferedWriter(raw) if buffered else raw
        monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(buffer=buffer))
        output.write_bytes(data)
        monkeypatch.undo()
    reader.join()
    os.close(reading)
    assert found == data
    assert raw.count < 5_000  # without a wait they would be many more


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "UTF8"])
def test_json_is_json_in_any_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    output.print_json({"name": "ü\U0001f600"})
    stream.flush()
    monkeypatch.undo()
    assert json.loads(raw.getvalue().decode(encoding)) == {"name": "ü\U0001f600"}


def test_rows_in_a_pipe_are_tabs_and_lines_without_headings(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a", "more": "not shown", "size": 1}, {"name": "b\n"}]
    output.print_rows(("name", "size"), rows, as_json=False)
    assert capsys.readouterr().out == "a\t1\nb\\n\t-\n"


def formats(*words: str) -> dict[str, Any]:
    return given_formats(command_line_parser(["tail"]).parse_args(["tail", "t", "-b", "h", *words]))


def test_options_of_formats_take_precedence_over_properties() -> None:
    properties = [
        *(
            "-X",
            "value.schema=a int",
            "-X",
            "registry.url=https://property",
            "-X",
            "value.timeZone=Asia/Tokyo",
        ),
        *("-X", "key.schema=b int"),
    ]
    found = formats("--value-format", "json", *properties)["value"]
    assert [(one.name, str(one.type)) for one in found.type] == [("a", "int32")]
    assert dict(found.settings) == {"registry.url": "https://property", "timezone": "Asia/Tokyo"}
    options_of_value = (
        "--value-format",
        "json",
        "--value-schema",
        "c string",
        "--registry",
        "https://option",
    )
    found = formats(*options_of_value, *properties)["value"]
    assert [(one.name, str(one.type)) for one in found.type] == [("c", "string")]
    assert dict(found.settings)["registry.url"] == "https://option"


def test_json_without_a_schema_is_any_json_unless_a_registry_has_one() -> None:
    assert isinstance(formats("--value-format", "json")["value"], JsonText)
    for registry in (("--registry", "https://r"), ("-X", "registry.url=https://r")):
        found = formats("--value-format", "json", *registry)["value"]
        assert (isinstance(found, JsonText), dict(found.settings)) == (False, {"registry.url": "https://r"})


@pytest.mark.parametrize("words", [(), ("--value-schema", "at timestamp")])
def test_a_misspelt_setting_of_a_format_is_refused(words: tuple[str, ...]) -> None:
    wanted = "--value-format json: The format 'json' has no setting 'timeZne'; did you mean 'timeZone'"
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        formats("--value-format", "json", *words, "-X", "value.timeZne=Europe/Berlin")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("string", {}),
        ("csv", {"sep": ";", "timezone": "Asia/Tokyo"}),
        ("avro", {"registry.url": "https://r", "subject": "s"}),
    ],
)
def test_one_file_may_have_settings_of_several_formats_and_of_data_frames(
    tmp_path: Path, name: str, known: dict[str, str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "value.format=avro\nvalue.layout=columns\nvalue.Prefix=v_\nvalue.inferRecords=5\nvalue.sep=;\n"
        "value.timeZone=Asia/Tokyo\nregistry.url=https://r\nvalue.subject=s\n"
    )
    found = formats("--value-format", name, "--config", str(file))["value"]
    assert dict(found.settings) == known


@pytest.mark.parametrize(
    ("values", "environment", "named"),
    [
        ({}, {}, False),
        ({}, {"PYKAFKA_BOOTSTRAP": "", "PYKAFKA_CONFIG": ""}, False),
        ({"bootstrap": "h"}, {}, True),
        ({"config": Path("f")}, {}, True),
        ({"properties": [("bootstrap.servers", "h")]}, {}, True),
        ({}, {"PYKAFKA_BOOTSTRAP": "h"}, True),
        ({}, {"PYKAFKA_CONFIG": "f"}, True),
    ],
    ids=str,
)
def test_a_cluster_is_named_by_an_option_or_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], environment: dict[str, str], named: bool
) -> None:
    """`doctor` checks this machine alone without one, and succeeds."""
    for name in ("PYKAFKA_BOOTSTRAP", "PYKAFKA_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    assert options.names_a_cluster(given(**values)) is named


def test_rows_on_a_terminal_are_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda *_: True)
    monkeypatch.setenv("NO_COLOR", "1")
    output.print_rows(("name", "size"), [{"name": "a\x1b", "size": 1}], as_json=False)
    assert capsys.readouterr().out == "NAME   SIZE\na\\x1b     1\n"


def test_a_schema_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schema"
    file.write_text("id bigint, näme string", encoding="utf-8")
    found = formats("--value-format", "json", "--value-schema", f"file:{file}")["value"]
    assert [(one.name, str(one.type)) for one in found.type] == [("id", "int64"), ("näme", "string")]
    file.write_bytes(b"\xff bigint")
    for path, reason in ((file, "it is not UTF-8"), (tmp_path / "missing", "No such file")):
        with pytest.raises(ConfigError, match=f"the schema in {path} can't be read: {reason}"):
            formats("--value-format", "json", "--value-schema", f"file:{path}")
