"""Each command of the command line against a real broker, in a pipe and on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import Run, runner
from support.consumer.reading import wait_until

from spark_kafka_native.cli.main import main
from spark_kafka_native.kafka import Admin, NewTopic, OffsetAt, TopicPartition, TransactionalProducer

pytestmark = pytest.mark.broker

HEADERS = b'[{"name":"a","value":"1"},{"name":"a","value":null}]'
ODD = b'{"topic":"x","key_base64":"//4=","value":null,"headers":' + HEADERS + b"}\n"


@pytest.fixture
def name() -> str:
    return f"cli-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def admin(kafka: Any) -> Iterator[Admin]:
    with Admin(kafka.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def run(kafka: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command as in a pipe: its exit code, standard output and standard error."""
    # A broker that takes its time would be one more line.
    monkeypatch.setattr("spark_kafka_native.kafka.cluster.retry_policy.SAY_AFTER_S", 600.0)
    return runner(kafka, capsys, monkeypatch)


@pytest.fixture
def on_terminal(kafka: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command that writes to a terminal: what stands there."""

    def run(*arguments: str) -> str:
        master, slave = pty.openpty()
        shown: list[bytes] = []

        def read() -> None:
            try:
                while data := os.read(master, 65536):
                    shown.append(data)
            except OSError:  # the other end is closed
                pass

        reader = threading.Thread(target=read)
        reader.start()
        with monkeypatch.context() as patched, open(slave, "w") as terminal:
            patched.setattr(sys, "stdout", terminal)
            assert main([*arguments, "-b", kafka.bootstrap_servers]) == 0
        reader.join(60)
        os.close(master)
        return b"".join(shown).decode().replace("\r\n", "\n")

    return run


@pytest.fixture
def filled(admin: Admin, run: Run, name: str) -> str:
    """A topic of two partitions with 20 records in the first: key k, values 0 to 19."""
    admin.create_topics([NewTopic(name=name, partitions=2)])
    lines = "".join(f"{number}\n" for number in range(20)).encode()
    code, _, err = run("produce", name, "-k", "k", "-H", "from=test", "-p", "0", stdin=lines)
    assert (code, err) == (0, f"20 records are in {name}.\n")
    return name


def test_topics_from_their_making_to_their_end(run: Run, name: str) -> None:
    made = run("topics", "create", name, "--partitions", "2", "--set", "retention.ms=-1")
    assert made == (0, "", f"{name}: created\n")
    assert run("topics", "create", name)[0] == 1
    assert run("topics", "create", name, "--if-not-exists")[0] == 0
    assert run("topics", "list", name) == (0, f"{name}\t2\t1\t0\t0\n", "")
    assert f"{name}\t2\t1\t0\t0\n" in run("topics")[1]
    (listed,) = json.loads(run("topics", "list", "--json", name)[1])
    assert (listed["topic"], listed["partitions"], listed["internal"]) == (name, 2, False)
    assert run("topics", "grow", name, "--partitions", "3")[0] == 0
    assert run("topics", "create", f"{name}-checked", "--dry-run")[2] == f"{name}-checked: would be created\n"
    assert run("topics", "delete", name)[2] == f"{name}: deleted\n"
    code, _, err = run("topics", "delete", f"{name}-never")
    assert (code, f"deleting topic {name}-never: UNKNOWN_TOPIC_OR_PARTITION" in err) == (1, True)
    assert run("topics", "delete", f"{name}-never", "--if-exists")[0] == 0


def test_all_that_were_refused_are_named(run: Run, name: str) -> None:
    assert run("topics", "create", name)[0] == 0
    code, _, err = run("topics", "delete", f"{name}-a", name, f"{name}-b")
    assert code == 1
    assert f"BrokerError: deleting topic {name}-a: UNKNOWN_TOPIC" in err
    assert f"BrokerError: deleting topic {name}-b: UNKNOWN_TOPIC" in err
    assert f"{name}: deleted" in err.splitlines()
    code, out, _ = run("topics", "create", name, f"{name}/", "--json")
    assert (code, [one["result"] for one in json.loads(out)]) == (1, ["created", "refused"])


def test_describe(run: Run, filled: str) -> None:
    assert run("describe", filled)[1].splitlines()[1] == f"{filled}\t1\t1\t0\t1\t1"
    (told,) = json.loads(run("describe", filled, "--json")[1])
    assert told["partitions"][0]["in_sync"] == [1]
    cluster = json.loads(run("describe", "--disks", "--json")[1])
    assert cluster["brokers"][0]["broker"] == 1
    assert cluster["disks"][0]["size_bytes"] > 0


def test_offsets(run: Run, filled: str) -> None:
    assert run("offsets", filled)[1] == f"{filled}\t0\t0\t20\t20\n{filled}\t1\t0\t0\t0\n"
    assert run("offsets", filled, "-p", "0", "--at=-5")[1] == f"{filled}\t0\t15\n"
    assert run("offsets", filled, "-p", "0", "--at", "+3")[1] == f"{filled}\t0\t3\n"
    assert run("offsets", filled, "-p", "0", "--at", "1h")[1] == f"{filled}\t0\t0\n"
    assert json.loads(run("offsets", filled, "-p", "0", "--at", "2100-01-01", "--json")[1])[0]["offset"] == 20
    assert run("offsets", filled, "-p", "7")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("-n", "2"), ["18", "19"]),
        ((), [str(number) for number in range(10, 20)]),
        (("-n", "0"), []),
        (("--from", "earliest", "-c", "3"), ["0", "1", "2"]),
        (("--from", "5", "--until", "8"), ["5", "6", "7"]),
        (("--from=-3", "--until", "latest"), ["17", "18", "19"]),
        (("--from", "1h", "--until", "+2"), ["0", "1"]),
        (("--from", "18", "-f", "-c", "2"), ["18", "19"]),
    ],
)
def test_tail_shows_what_is_asked_for(
    run: Run, filled: str, arguments: tuple[str, ...], wanted: list[str]
) -> None:
    assert run("tail", filled, *arguments) == (0, "".join(f"{line}\n" for line in wanted), "")


def test_tail_in_every_form(run: Run, filled: str) -> None:
    one = ("tail", filled, "-n", "1")
    assert run(*one, "--format", r"%t %p %o %k=%s %K %S %h%%\n")[1] == f"{filled} 0 19 k=19 1 2 from=test%\n"
    told = json.loads(run(*one, "--json")[1])
    assert (told["offset"], told["key"], told["value"]) == (19, "k", "19")
    assert told["headers"] == [{"name": "from", "value": "test"}]
    assert "00000000  31 39" in run(*one, "-o", "hex")[1]
    assert re.fullmatch(rf"{filled}-0@19  20\S+Z  k  19  #  from=test\n", run(*one, "-o", "text")[1])
    assert run(*one, "--format", "%q")[0] == 2


def test_what_is_tailed_as_json_can_be_produced(run: Run, admin: Admin, name: str) -> None:
    admin.create_topics([name, f"{name}-copy"])
    assert run("produce", name, "--input", "json", stdin=ODD)[0] == 0
    first = run("tail", name, "--json")[1]
    assert run("produce", f"{name}-copy", "--input", "json", stdin=first.encode())[0] == 0
    copied, original = (json.loads(run("tail", one, "--json")[1]) for one in (f"{name}-copy", name))
    assert copied | {"topic": name} == original
    assert (copied["key_base64"], copied["value"], len(copied["headers"])) == ("//4=", None, 2)


def test_produce_takes_keys_files_and_delimiters(run: Run, admin: Admin, name: str, tmp_path: Path) -> None:
    admin.create_topics([name])
    (tmp_path / "a").write_bytes(b"k1:v1\0k2:\0:v3")
    (tmp_path / "b").write_bytes(b"two\nlines")
    code, out, _ = run("produce", name, str(tmp_path / "a"), "-K", ":", "-D", r"\0", "-z", "--json")
    assert (code, json.loads(out)["confirmed"]) == (0, 3)
    assert run("produce", name, str(tmp_path / "b"), "--whole")[0] == 0
    lines = run("tail", name, "--format", r"%k=%s/%S\n")[1]
    assert lines == "k1=v1/2\nk2=/-1\n=v3/2\n=two\nlines/9\n"


def test_a_line_that_is_no_record_ends_it_after_those_before(run: Run, admin: Admin, name: str) -> None:
    admin.create_topics([name])
    code, _, err = run("produce", name, "-K", ":", stdin=b"a:1\nb:2\nnothing\nc:3\n")
    assert code == 1
    assert err == f"2 records are in {name}.\nerror: line 3: it has no separator b':': b'nothing'\n"
    assert run("offsets", name)[1] == f"{name}\t0\t0\t2\t2\n"
    assert run("produce", name, "/nowhere/at/all")[0] == 1
    code, _, err = run("produce", f"{name}-never", "-X", "max.block.ms=1000", stdin=b"x\n")
    assert (code, "UNKNOWN_TOPIC_OR_PARTITION" in err or "not" in err) == (1, True)


@pytest.mark.parametrize("last", [b'"headers":[{"name":"\\udcff","value":null}]', b'"timestamp_ms":-5'])
def test_a_record_that_can_not_be_sent_ends_it_after_those_before(
    run: Run, admin: Admin, name: str, last: bytes
) -> None:
    admin.create_topics([name])
    code, out, err = run(
        "produce", name, "--input", "json", "--json", stdin=b'{"value":"a"}\n{"value":"b",' + last + b"}\n{}"
    )
    assert (code, json.loads(out)["confirmed"]) == (1, 1)
    assert "record 2 and what follows was not sent: " in err
    assert run("tail", name)[1] == "a\n"


def test_a_failure_counts_also_when_nobody_listens(kafka: Any, admin: Admin, name: str) -> None:
    admin.create_topics([name])
    writing = subprocess.Popen(
        command(kafka, "produce", name, "-K", ":", "--json"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert writing.stdin is not None
    assert writing.stdout is not None
    assert writing.stderr is not None
    writing.stdout.close()
    writing.stderr.close()
    writing.stdin.write(b"a:b\nnothing\n")
    writing.stdin.close()
    assert writing.wait(240) == 1


def test_what_was_accepted_is_written_when_it_is_told_to_stop(kafka: Any, run: Run, filled: str) -> None:
    writing = subprocess.Popen(
        command(kafka, "produce", filled, "-p", "1", "-X", "linger.ms=60000"),
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    assert writing.stdin is not None
    assert writing.stderr is not None
    writing.stdin.write("".join(f"{number}\n" for number in range(1000)))
    writing.stdin.flush()
    wait_until("everything is read", lambda: not unread(writing.stdin), 60)
    writing.send_signal(signal.SIGINT)
    writing.stdin.close()
    assert writing.wait(240) == 130
    told = re.search(r"Ended early: (\d+) of \1 records are confirmed.\nStopped.\n\Z", writing.stderr.read())
    writing.stderr.close()
    assert told is not None
    assert run("offsets", filled, "-p", "1")[1] == f"{filled}\t1\t0\t{told[1]}\t{told[1]}\n"


def unread(pipe: Any) -> int:
    """How many bytes the other end has not taken yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_new_partitions_are_followed(kafka: Any, admin: Admin, run: Run, name: str) -> None:
    admin.create_topics([name])
    run("produce", name, stdin=b"old\n")
    following = subprocess.Popen(
        command(kafka, "tail", name, "-f", "-X", "metadata.max.age.ms=100"), stdout=subprocess.PIPE, text=True
    )
    assert following.stdout is not None
    try:
        assert following.stdout.readline() == "old\n"
        admin.create_partitions({name: 3})
        for partition in ("2", "1", "0"):
            run("produce", name, "-p", partition, stdin=partition.encode())
            assert following.stdout.readline() == f"{partition}\n"
    finally:
        following.kill()
        following.communicate()


def test_offsets_that_are_not_there_are_told(run: Run, filled: str) -> None:
    code, out, err = run("offsets", filled, "--at", "1700000000000")
    assert (code, out) == (0, f"{filled}\t0\t20\n{filled}\t1\t0\n")
    assert err == (
        f"warning: there is no offset 1700000000000 in {filled}-0 (it has 0 to 20) and 1 more: "
        "the nearest is taken\n"
    )
    assert run("tail", filled, "-p", "0", "-p", "0", "--from", "20") == (0, "", "")


def test_a_group_is_placed_shown_and_deleted(run: Run, filled: str) -> None:
    group = f"{filled}-group"
    assert run("reset", group, "--to", "earliest")[0] == 1  # of what?
    code, out, err = run("reset", group, "--to", "12", "--topic", filled)
    assert (code, out) == (0, f"{filled}\t0\t-\t12\n{filled}\t1\t-\t0\n")
    assert "--execute" in err
    assert run("groups", group)[0] == 1
    assert run("reset", group, "--to", "12", "--topic", filled, "--execute")[0] == 0
    assert run("reset", group, "--shift-by=-2", "--execute")[1].splitlines()[0] == f"{filled}\t0\t12\t10"
    assert run("groups", group) == (0, f"{group}\tEmpty\tclassic\t-\n", "")
    assert run("groups", group, "--lag")[1].splitlines()[0] == f"{group}\t{filled}\t0\t10\t20\t10"
    assert json.loads(run("groups", group, "--lag", "--json")[1])[0]["lag"] == 10
    assert run("groups", group, "--members") == (0, "", "")
    assert run("groups", group, "--delete")[2] == f"{group}: deleted\n"


def test_an_unknown_group_or_state_is_an_error(run: Run, filled: str) -> None:
    group = f"{filled}-group"
    assert run("reset", group, "-t", filled, "--to", "earliest", "--execute")[0] == 0
    for options in (["--lag"], ["--members"], []):
        code, _, err = run("groups", group, f"{group}-never", *options)
        assert (code, f"group {group}-never: GROUP_ID_NOT_FOUND" in err) == (1, True)
    assert run("groups", group, "--state", "empty")[1] == f"{group}\tEmpty\tclassic\t-\n"
    assert run("groups", group, "--state", "Stable")[:2] == (0, "")
    code, _, err = run("groups", "--delete", f"{group}-never", group)
    assert (code, f"{group}-never: GROUP_ID_NOT_FOUND" in err, f"{group}: deleted" in err) == (1, True, True)
    with pytest.raises(SystemExit) as ended:
        main(["groups", "--state", "bogus", "-b", "h"])
    assert ended.value.code == 2


def test_topics_by_pattern_and_by_option(run: Run, filled: str) -> None:
    pattern = f"{filled[:-1]}?"
    assert run("offsets", pattern, "-p", "1")[1] == f"{filled}\t1\t0\t0\t0\n"
    assert run("offsets", "-t", f"^{filled}$", "-p", "1")[1] == f"{filled}\t1\t0\t0\t0\n"
    assert run("topics", "list", pattern)[1].split("\t")[0] == filled
    assert run("describe", "-t", pattern)[1].startswith(f"{filled}\t0\t")
    assert run("tail", pattern, "-n", "2")[1] == "18\n19\n"
    code, _, err = run("tail", "no-such-*")
    assert (code, "no topic matches 'no-such-*'" in err) == (1, True)
    code, _, err = run("tail", "^[")
    assert (code, "no regular expression" in err) == (1, True)
    assert run("topics", "delete", pattern)[0] == 2
    assert run("topics", "list", filled)[0] == 0


def test_tail_as_a_member_of_a_group_goes_on_where_it_ended(run: Run, filled: str) -> None:
    group = f"{filled}-group"
    assert run("reset", group, "-t", filled, "--to", "earliest", "--execute")[0] == 0
    assert run("tail", filled, "--group", group, "-c", "3")[:2] == (0, "0\n1\n2\n")
    assert run("groups", group, "--lag")[1].splitlines()[0] == f"{group}\t{filled}\t0\t3\t20\t17"
    assert run("tail", "-t", filled, "-g", group, "-c", "17")[1].splitlines() == [
        str(n) for n in range(3, 20)
    ]
    assert run("groups", group, "--lag")[1].splitlines()[0] == f"{group}\t{filled}\t0\t20\t20\t0"
    assert run("tail", filled, "-g", group, "--until", "latest")[0] == 2
    assert run("tail", f"{filled}-never", "-g", group)[0] == 1


def test_produce_takes_the_topic_as_an_option_and_a_codec(run: Run, filled: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("from a file\n")
    assert run("produce", "-t", filled, str(file), "-p", "1", "--compression", "zstd")[0] == 0
    assert run("tail", filled, "-p", "1", "-n", "1")[1] == "from a file\n"
    assert run("produce")[0] == 2


def test_the_cluster_may_come_before_the_command_and_from_the_environment(
    kafka: Any, run: Run, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    expected = f"{filled}\t1\t0\t0\t0\n"
    assert main(["-b", kafka.bootstrap_servers, "-v", "offsets", filled, "-p", "1"]) == 0
    assert capsys.readouterr().out == expected
    monkeypatch.setenv("PYKAFKA_BOOTSTRAP", kafka.bootstrap_servers)
    assert main(["offsets", filled, "-p", "1"]) == 0
    assert capsys.readouterr().out == expected
    monkeypatch.delenv("PYKAFKA_BOOTSTRAP")
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={kafka.bootstrap_servers}\n")
    monkeypatch.setenv("PYKAFKA_CONFIG", str(file))
    assert main(["offsets", filled, "-p", "1"]) == 0
    assert capsys.readouterr().out == expected


def test_records_before_a_place_are_deleted(run: Run, filled: str) -> None:
    shown = f"{filled}\t0\t0\t15\t15\n{filled}\t1\t0\t0\t0\n"
    code, out, err = run("delete-records", filled, "--before=-5")
    assert (code, out, err) == (0, shown, "Nothing was deleted: --execute does it.\n")
    assert run("offsets", filled, "-p", "0")[1] == f"{filled}\t0\t0\t20\t20\n"
    assert run("delete-records", "-t", filled, "--before=-5", "--execute")[:2] == (0, shown)
    assert run("offsets", filled, "-p", "0")[1] == f"{filled}\t0\t15\t20\t5\n"
    assert run("delete-records", filled[:-1] + "?", "--before", "latest", "--execute")[0] == 2
    assert run("offsets", filled, "-p", "0")[1] == f"{filled}\t0\t15\t20\t5\n"


def test_scram_users(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_PASSWORD", "geheim")
    assert run("users", "set", name, "--password", "env:A_PASSWORD")[::2] == (0, f"{name}: set\n")
    line = f"{name}\tSCRAM-SHA-512\t8192\n"
    wait_until("the user is known", lambda: run("users", "list", name)[:2] == (0, line), 60)
    code, _, err = run("users", "delete", f"{name}-never", name)
    assert (code, f"{name}-never: RESOURCE_NOT_FOUND" in err, f"{name}: deleted" in err) == (1, True, True)
    wait_until("the user is gone", lambda: run("users", "list", name)[0] == 1, 60)
    code, _, err = run("users", "set", name, "--password", "geheim")
    assert (code, "geheim" in err) == (2, False)
    assert run("users", "set", name)[0] == 2
    assert run("users", "set", name, "--password", "env:A_PASSWORD", "--iterations", "9")[0] == 2


def test_quotas(run: Run, name: str) -> None:
    limits = ("--set", "producer_byte_rate=1e6", "--set", "consumer_byte_rate=2000000")
    assert run("quotas", "--user", name, "--client-id", "default", *limits, "--dry-run")[0] == 0
    assert run("quotas", "--user", name)[:2] == (0, "")
    assert run("quotas", "--user", name, "--client-id", "default", *limits)[0] == 0
    rows = [("consumer_byte_rate", 2e6), ("producer_byte_rate", 1e6)]
    expected = "".join(f"{name}\tdefault\t-\t{limit}\t{value}\n" for limit, value in rows)
    both = ("quotas", "--user", name, "--client-id", "default")
    wait_until("the quotas are known", lambda: run(*both)[1] == expected, 60)
    assert expected in run("quotas")[1]
    assert run("quotas", "--user", name)[1] == ""  # of this user with any client id there are none
    unset = ("--unset", "producer_byte_rate", "--unset", "consumer_byte_rate")
    assert run("quotas", "--user", name, "--client-id", "default", *unset)[0] == 0
    wait_until("the quotas are gone", lambda: run(*both)[1] == "", 60)
    code, _, err = run("quotas", "--user", name, "--set", "no_such_rate=1")
    assert (code, f"altering the quotas of user {name}: INVALID_REQUEST" in err) == (1, True)
    assert run("quotas", "--set", "producer_byte_rate=1")[0] == 2
    assert run("quotas", "--user", name, "--set", "producer_byte_rate=-1")[0] == 2


def test_transactions(run: Run, kafka: Any, filled: str) -> None:
    with TransactionalProducer(kafka.bootstrap_servers, filled) as producer:
        producer.begin()
        producer.send(filled, value=b"x", partition=1)
        producer.flush()
        code, out, _ = run("transactions", "list", filled, "--state", "Ongoing")
        assert (code, out.split("\t")[:2]) == (0, [filled, "Ongoing"])
        (described,) = json.loads(run("transactions", "describe", filled, "--json")[1])
        assert (described["state"], described["partitions"]) == ("Ongoing", [f"{filled}-1"])
        assert run("transactions", "hanging", filled) == (0, "", "")
        code, _, err = run("transactions", "abort", filled, "-p", "0", "--start-offset", "5")
        assert (code, err) == (1, f"error: no transaction is open in {filled}-0 that begins at offset 5\n")
        producer.commit()
    assert run("transactions", "abort", filled)[0] == 2
    code, _, err = run("transactions", "describe", f"{filled}-never")
    assert (code, "TRANSACTIONAL_ID_NOT_FOUND" in err) == (1, True)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "delete-records" in script
    assert "--key-separator" in script
    if shell == "bash":
        asked = 'COMP_WORDS=(pykafka del); COMP_CWORD=1; _shtab_pykafka; echo "${COMPREPLY[@]}"'
        ran = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, timeout=60)
        assert ran.stdout.split() == ["delete-records"]


def test_configs(run: Run, filled: str) -> None:
    assert run("configs", "topic", filled, "--set", "retention.ms=7", "--dry-run")[0] == 0
    assert run("configs", "topic", filled, "--set", "max.message.bytes=9999")[2].endswith("changed\n")
    deadline = time.monotonic() + 60
    while "max.message.bytes\t9999\ttopic\tno\n" not in run("configs", "topic", filled)[1]:
        assert time.monotonic() < deadline
    assert run("configs", "topic", filled, "--unset", "max.message.bytes")[0] == 0
    found = json.loads(run("configs", "broker", "1", "--all", "--json")[1])
    assert {"name": "node.id", "value": "1"}.items() <= next(
        x for x in found if x["name"] == "node.id"
    ).items()
    assert run("configs", "broker", "one")[0] == 2
    code, _, err = run("configs", "topic", filled, "--set", "retention.ms=soon")
    assert (code, f"altering configs of topic {filled}: INVALID_CONFIG" in err) == (1, True)


def test_top_and_bench_and_acls(run: Run, admin: Admin, filled: str) -> None:
    admin.reset_offsets(f"{filled}-group", {TopicPartition(filled, 0): OffsetAt.EARLIEST})
    code, out, _ = run("top", filled, "-c", "1", "-i", "0.1")
    assert (code, f"{filled}-group" in out, "20" in out) == (0, True, True)
    told = json.loads(run("top", filled, "-c", "1", "-i", "0.1", "--json")[1])
    assert {"group": f"{filled}-group", "lag": 20}.items() <= told["groups"][0].items()
    code, out, _ = run("bench", "--records", "1000", "--json")
    assert [row["records"] for row in json.loads(out)] == [1000, 1000]
    code, _, err = run("acls")
    assert (code, "SECURITY_DISABLED" in err) == (1, True)


def test_the_doctor_finds_a_well_cluster(run: Run, kafka: Any) -> None:
    code, out, _ = run("doctor", "--write", "--json")
    found = {one["check"]: one for one in json.loads(out)}
    assert code == 0, out
    assert found[f"Kafka {kafka.bootstrap_servers}"]["status"] == "ok"
    assert found[f"broker 1 advertises {kafka.bootstrap_servers}"]["status"] == "ok"
    assert found["clock"]["status"] == "ok"  # the broker's is ours
    assert {"Python", "Java", "Spark", "writing", "metadata"} <= set(found)


def test_the_doctor_names_what_is_wrong(run: Run, kafka: Any) -> None:
    found = run("doctor", "-X", "security.protocol=SSL", "-X", "ssl.truststore.location=/nowhere")[1]
    assert f"ERROR\tTLS {kafka.bootstrap_servers}" in found
    assert "ok\tTCP" in found


TABLES = [
    ("topics",),
    ("describe", "{}"),
    ("describe", "--disks"),
    ("offsets", "{}"),
    ("groups",),
    ("groups", "{}-group", "--lag"),
    ("configs", "topic", "{}", "--all"),
    ("reset", "{}-group", "--to", "latest"),
    ("top", "{}", "-c", "2", "-i", "0.1"),
    ("doctor",),
    ("topics", "--json"),
]


def test_tables_on_a_terminal(on_terminal: Callable[..., str], admin: Admin, filled: str) -> None:
    admin.reset_offsets(f"{filled}-group", {TopicPartition(filled, 0): 3})
    for arguments in TABLES:
        shown = on_terminal(*(one.format(filled) for one in arguments))
        if "--json" in arguments:
            assert f'    "topic": "{filled}"' in shown
        elif arguments[0] not in ("top", "doctor"):
            assert "\t" not in shown
            assert "\x1b[1m" in shown.splitlines()[0]
    assert "\x1b[?25h" in on_terminal("top", filled, "-c", "1", "-i", "0.1")  # the cursor is back


def test_records_do_not_control_a_terminal(
    on_terminal: Callable[..., str], run: Run, admin: Admin, name: str
) -> None:
    admin.create_topics([name])
    wicked = "\x1b]0;owned\x07\x1b[2J\r\u202eevil"
    assert run("produce", name, "-D", r"\0", stdin=wicked.encode())[0] == 0
    for form in ((), ("-o", "raw"), ("-o", "hex"), ("--format", r"%s\n"), ("--json",)):
        shown = on_terminal("tail", name, *form)
        assert not set(shown) & {"\x1b", "\x07", "\r", "\u202e"}, (form, shown)
    assert "\\x1b]0;owned\\x07" in on_terminal("tail", name)
    assert run("tail", name)[1] == f"{wicked}\n"  # a pipe gets the bytes as they are


def command(kafka: Any, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "spark_kafka_native", *arguments, "-b", kafka.bootstrap_servers]


def test_ctrl_c_ends_a_tail_that_follows(kafka: Any, filled: str) -> None:
    following = subprocess.Popen(
        command(kafka, "tail", filled, "-f"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert following.stdout is not None
    assert [following.stdout.readline() for _ in range(10)][-1] == "19\n"
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=240)
    assert (following.returncode, err.splitlines()[-1]) == (130, "Stopped.")


def test_a_reader_that_hangs_up_is_no_error(kafka: Any, admin: Admin, run: Run, name: str) -> None:
    admin.create_topics([name])
    assert run("produce", name, stdin=b"0123456789\n" * 100_000)[0] == 0
    tailing = subprocess.Popen(
        command(kafka, "tail", name, "--from", "earliest"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert tailing.stdout is not None
    assert tailing.stderr is not None
    assert tailing.stdout.readline() == b"0123456789\n"
    tailing.stdout.close()
    assert b"Error" not in tailing.stderr.read()
    assert tailing.wait(240) == 0
    tailing.stderr.close()
