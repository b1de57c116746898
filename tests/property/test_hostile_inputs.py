"""Texts and files that others wrote: answers of a login, settings, offsets, command lines, spilled batches.
Each is read, or refused with an error of ours, in bounded time and memory."""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import itertools
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.hooks.fresh_seeds import SECONDS, try_seeds
from support.hostile import Refusals, attempt, described_otherwise, spoil, spoil_text, watched
from support.record_batches import batch, record

from spark_kafka_native.cli.main import command_line_parser
from spark_kafka_native.cli.offsets import parse_offset_spec, parse_time_ms
from spark_kafka_native.cli.produce import InputError, record_from_json
from spark_kafka_native.cli.record_lines import parse_format
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig, ProducerConfig
from spark_kafka_native.kafka.config.jaas import parse_jaas
from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.errors import ConfigError, KafkaError, ProtocolError
from spark_kafka_native.kafka.group.assignors import (
    CooperativeStickyAssignor,
    StickyAssignor,
    SubscribedMember,
)
from spark_kafka_native.kafka.model import OffsetToCommit, TopicPartition
from spark_kafka_native.kafka.producer.spill_folder import NewEntry, SpillError, SpillFolder
from spark_kafka_native.kafka.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ProtocolTopicPartitions,
    read_versioned,
    write_versioned,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.security.config_providers import read_properties
from spark_kafka_native.kafka.security.oidc import _read_answer
from spark_kafka_native.kafka.security.sasl import OAuthBearer, Scram
from spark_kafka_native.kafka.security.tokens import TokenSource
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.options.table import OPTIONS, Scope
from spark_kafka_native.spark.read.driver.micro_batch import StreamOffset
from spark_kafka_native.spark.read.offset_range import parse_assignment, parse_offset_limit, parse_timestamps
from spark_kafka_native.spark.read.read_options import ReadOptions, StreamOptions
from spark_kafka_native.spark.write.commit_markers import BatchIntent, CommitMarker
from spark_kafka_native.spark.write.write_options import WriteOptions


class Case(NamedTuple):
    """How a text is read, good ones to begin with, and the errors that may say that it is none."""

    read: Callable[[str], Any]
    good: list[str]
    refusals: Refusals = (KafkaError,)
    cpu_s: float = 0.1
    rounds: int = 300


NONCE = "rOprNGfwEbeRWgbNEkqO"
SALT = base64.b64encode(b"0123456789abcdef").decode()


def scram(text: str) -> None:
    mechanism = Scram("SCRAM-SHA-256", "user", Secret("pencil"), nonce=lambda: NONCE)
    mechanism.start()
    first, _, last = text.partition("|")
    mechanism.step(first.encode(errors="surrogatepass"))
    mechanism.step(last.encode(errors="surrogatepass"))
    raise AssertionError("an impostor was believed")


def oauth(text: str) -> None:
    mechanism = OAuthBearer(Secret("abc"))
    mechanism.start()
    answer = mechanism.step(text.encode(errors="surrogatepass"))
    if answer is not None:
        mechanism.step(b"")


def oidc(text: str) -> None:
    for status in (200, 401, 503):
        with contextlib.suppress(KafkaError):
            token, lifetime_s = _read_answer(status, text.encode(errors="surrogatepass"))
            OAuthBearer(Secret(token))
            TokenSource(lambda _: (token, lifetime_s)).token(Deadline.after_ms(10_000))  # noqa: B023


def jwt(text: str) -> None:
    claims = base64.urlsafe_b64encode(text.encode(errors="surrogatepass")).decode().rstrip("=")
    for token in (f"a.{claims}.b", text):
        with contextlib.suppress(KafkaError):
            TokenSource(lambda _: (token, None)).token(Deadline.after_ms(10_000))  # noqa: B023


def properties(text: str) -> None:
    for content in (text, text.encode(errors="surrogatepass"), text.encode("utf-16", errors="surrogatepass")):
        with contextlib.suppress(ConfigError):
            found = read_properties(content, lambda _: True)
            for config in (ClientConfig, ConsumerConfig, ProducerConfig):
                with contextlib.suppress(ConfigError):
                    config.from_properties(found)


def checkpoint(text: str) -> None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return  # Spark has read it
    offset = StreamOffset.from_json(found)
    if offset.positions:
        again = StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))
        assert (again.positions, again.start, again.added) == (offset.positions, offset.start, offset.added)


def limits(text: str) -> None:
    for parse in (parse_offset_limit, parse_timestamps, parse_assignment):
        with contextlib.suppress(ConfigError):
            parse(text)


def markers(text: str) -> None:
    found = {TopicPartition("t", 0): OffsetToCommit(offset=3, metadata=text)}
    for kind in (CommitMarker, BatchIntent):
        with contextlib.suppress(KafkaError):
            kind.newest(found, "g")


def arguments_of(text: str) -> None:
    for parse in (parse_offset_spec, parse_time_ms, parse_format):
        with contextlib.suppress(argparse.ArgumentTypeError, ValueError):
            parse(text)
    words = text.split(" ")
    out = io.StringIO()
    with contextlib.redirect_stderr(out), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        command_line_parser(words).parse_args(words)


def json_record(text: str) -> None:
    given = argparse.Namespace(partition=None, timestamp=None)
    record_from_json(text.encode(errors="surrogatepass"), given, ())


OFFSETS = [
    '{"a":{"0":23,"1":345},"b":{"0":0}}',
    '{"a":{"0":5},"#id a 0123456789abcdef0123456789abcdef":{},"#start":{},"#start a 0:3":{},'
    '"#added b 1:7":{}}',
]

CASES = {
    "scram": Case(
        scram,
        [
            f"r={NONCE}3rfcNHYJY1ZVvWVs7j,s={SALT},i=4096|v={SALT}",
            f"r={NONCE}3rfc,s={SALT},i=4096|e=unknown-user",
        ],
        cpu_s=5,  # a million rounds of hashing are allowed
    ),
    "oauth": Case(oauth, ["", '{"status":"invalid_token","scope":"a"}']),
    "oidc": Case(oidc, ['{"access_token":"abc","expires_in":3600}', '{"error":"invalid_client"}']),
    "jwt": Case(jwt, ['{"exp":4000000000,"sub":"a"}', "a.b.c"]),
    "jaas": Case(
        parse_jaas,
        [
            "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"a\" password='b';",
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="b"'
            ' tokenauth="true";',
        ],
    ),
    "properties": Case(
        properties,
        [
            "bootstrap.servers=a:9092,b:9092\nsecurity.protocol = SASL_SSL\n# note\nclient.id : \\u00e9\\\nx",
            "acks=all\nlinger.ms=5\nmax.poll.records=7\nssl.truststore.location=/x\ncompression.type=zstd",
        ],
        cpu_s=1,
    ),
    "checkpoint": Case(checkpoint, OFFSETS),
    "limits": Case(limits, ["latest - 10", "@1700000000", *OFFSETS, '{"a":[0,1]}']),
    "markers": Case(
        markers,
        ['{"rows":3,"hash":"00ff"}', '{"tasks":2,"hash":"00ff","change":1,"topic":"t","complete":true}'],
    ),
    "arguments": Case(
        arguments_of,
        [
            "tail t -b host:9092 --offset -10 --json", "groups --reset g", "-5m", "2024-01-01T00:00:00Z",
            "%t %o\\n\\x41", "produce t --key k --header a=b --timestamp 5",
        ],
        cpu_s=1,
        rounds=60,
    ),
    "json record": Case(
        json_record, ['{"key":"a","value_base64":"AAE=","headers":[{"name":"h"}],"timestamp_ms":5}'],
        (InputError,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_texts_are_read_or_refused(name: str) -> None:
    case = CASES[name]
    with watched():
        for text in case.good:
            with contextlib.suppress(case.refusals):
                case.read(text)  # the first call builds and imports
        try_seeds(
            lambda seed: check_text(case, seed),
            f"hostile {name}",
            range(case.rounds),
            seconds=min(SECONDS, 0.5),
        )


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CASES)
def test_a_great_many_texts(name: str) -> None:
    with watched():
        try_seeds(lambda seed: check_text(CASES[name], seed), f"soak of {name}", range(100_000))


def check_text(case: Case, seed: int) -> None:
    rng = random.Random(seed)
    text = spoil_text(rng.choice(case.good), rng)
    attempt(lambda: case.read(text), len(text), case.refusals, cpu_s=case.cpu_s, cap=4 << 20)


def test_options_are_read_or_refused() -> None:
    def check(seed: int) -> None:
        rng = random.Random(seed)
        given = {"kafka.bootstrap.servers": "a:9092", "subscribe": "t", "topic": "t"}
        for option in rng.sample(OPTIONS, 3):
            good = rng.choice(["", "5", "true", "earliest", "1 day", "-1", "a=b", option.name])
            if option.name.startswith(("key.", "value.")):
                given[f"{option.name.partition('.')[0]}.format"] = rng.choice(
                    ["json", "avro", "csv", "protobuf"]
                )
            given[option.name] = spoil_text(good, rng) if rng.randrange(3) else good
        for scope in Scope:
            read = partial(read_options, given, scope)
            attempt(read, 2000, (KafkaError,), cpu_s=2, cap=4 << 20)

    with watched():
        try_seeds(check, "hostile options", range(60), seconds=min(SECONDS, 0.5))


def read_options(given: dict[str, str], scope: Scope) -> None:
    values = OptionValues.parse(given, scope)
    for parse in (
        lambda: ReadOptions.for_batch(values, now_ms=0),
        lambda: ReadOptions.for_stream(values, now_ms=0),
        lambda: StreamOptions.parse(values),
        lambda: WriteOptions.parse(values),
    ):
        with contextlib.suppress(KafkaError):
            parse()


# --- bytes of other members of a group ----------------------------------------------------------------------


def test_what_members_say_of_themselves_is_read_or_refused() -> None:
    with watched():
        try_seeds(check_members, "hostile members", range(400))


def check_members(seed: int) -> None:
    rng = random.Random(seed)
    owned = [ProtocolTopicPartitions(topic="t", partitions=[0, 1])]
    for message in (
        ConsumerProtocolSubscription(topics=["t", "u"], user_data=b"x", owned_partitions=owned),
        ConsumerProtocolAssignment(assigned_partitions=owned, user_data=None),
    ):
        data = bytearray(write_versioned(message))
        spoil(data, rng)
        attempt(lambda: read_versioned(type(message), bytes(data)), len(data), (ProtocolError,))  # noqa: B023
    for assignor in (StickyAssignor(), CooperativeStickyAssignor()):
        user_data = bytearray(assignor.user_data([TopicPartition("t", 0), TopicPartition("t", 1)], 4) or b"")
        spoil(user_data, rng)
        members = [
            SubscribedMember(member_id=name, topics=frozenset(["t"]), user_data=bytes(user_data))
            for name in "ab"
        ]
        found = attempt(lambda: assignor.assign(members, {"t": 3}), 100, ())  # noqa: B023
        assert isinstance(found, dict)
        assert sorted(itertools.chain(*found.values())) == [TopicPartition("t", n) for n in range(3)]


# --- spilled batches ----------------------------------------------------------------------------------------


def entries(count: int) -> list[NewEntry]:
    return [
        NewEntry(TopicPartition("t", n % 2), None, 1, n == 1, "late", batch([record(0, b"%d" % n)]))
        for n in range(count)
    ]


def spilled(folder: Path) -> Path:
    with contextlib.closing(SpillFolder(str(folder))) as spill:
        spill.keep(entries(3))
    (file,) = folder.glob("*.batches")
    return file


def test_spill_files_are_read_or_set_aside(tmp_path: Path) -> None:
    def check(seed: int) -> None:
        check_spill_file(tmp_path / f"{seed}", random.Random(seed))

    with watched():
        try_seeds(check, "hostile spill files", range(100))


def check_spill_file(folder: Path, rng: random.Random) -> None:
    file = spilled(folder)
    good = file.read_bytes()
    if rng.randrange(2):
        file.write_bytes(described_otherwise(good, lambda meta: spoil_text(meta, rng)))
    else:
        data = bytearray(good)
        spoil(data, rng)
        file.write_bytes(data)
    name = rng.choice(["0000000001.done", "0000000001.delivered"])
    (folder / name).write_bytes(rng.randbytes(rng.choice([0, 3, 4, 9, 16])))
    changed = file.read_bytes()

    def read() -> list[tuple[TopicPartition, bytes]]:
        with contextlib.closing(SpillFolder(str(folder))) as spill:
            return [(one.topic_partition, bytes(one.read())) for one in spill.entries]

    found = attempt(read, len(changed), (ConfigError, SpillError))
    kept = {(one.topic_partition, bytes(one.data)) for one in entries(3)}
    if isinstance(found, list) and {data for _, data in found} != {data for _, data in kept}:
        # What could not be read is still there, under its name or another.
        left = [path.read_bytes() for path in folder.iterdir() if path.suffix in (".batches", ".damaged")]
        assert changed in left or len(changed) < len(good)
