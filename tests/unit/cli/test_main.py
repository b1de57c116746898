import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from spark_kafka_native.cli import broker, demo
from spark_kafka_native.cli.demo import step
from spark_kafka_native.cli.main import Stopped, _command_first, main, stopping_on_signals
from spark_kafka_native.testing import BrokerStartError, MockBroker, embedded_kafka


def test_commands_are_listed(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert {"demo", "broker", "zip"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["broker", "--listeners", "tls"], "no listener 'TLS'"),
        (["broker", "--property", "nothing"], "'nothing' is not of the form NAME=VALUE"),
        (["broker", "--user", "bob"], "'bob' is not of the form NAME:PASSWORD"),
        (["broker", "--properties-file", "/nowhere"], "No such file"),
        (["demo", "--records", "0"], "must be at least 1"),
    ],
)
def test_misuse_is_told(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("-b a:1 topics list -b b:1", "topics -b a:1 list -b b:1"),
        ("--timeout 5 -v produce t -- -x", "produce --timeout 5 -v t -- -x"),
        ("topics -b a:1", "topics -b a:1"),
        ("-b a:1", "-b a:1"),
        ("-b topics", "-b topics"),
    ],
)
def test_options_before_a_command_come_before_those_behind_it(given, read):
    """The last one counts: the records went to the other cluster."""
    assert _command_first(given.split()) == read.split()


def test_missing_java_is_a_message_and_no_traceback(tmp_path):
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "spark_kafka_native", "broker"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.startswith("JavaUnavailableError: No Java found")
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_with_blocks(number):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # Under nohup SIGHUP is ignored.
    given = {one: signal.signal(one, signal.default_int_handler) for one in numbers}
    cleaned = []

    def work():
        with stopping_on_signals():
            try:
                signal.raise_signal(number)  # to this thread: os.kill might choose another one of the process
            finally:
                for second in numbers:  # an impatient one of any kind does not keep us from cleaning up
                    signal.raise_signal(second)
                cleaned.append(True)

    try:
        with pytest.raises(Stopped) as raised:
            work()
        assert raised.value.signal == number
        assert cleaned == [True]
        assert all(signal.getsignal(one) is signal.default_int_handler for one in numbers)
    finally:
        for one, handler in given.items():
            signal.signal(one, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_so(number):
    """As SIGHUP of a command that was started with nohup."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with stopping_on_signals():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_destructor_is_not_lost(number):
    hook = sys.unraisablehook

    class Signalled:
        def __del__(self):
            signal.raise_signal(number)

    def work():
        with stopping_on_signals():
            for _ in range(2):  # the second one comes while the first is about to be sent again
                Signalled()  # Python drops what a destructor raises
            threading.Event().wait(60)

    with pytest.raises(Stopped) as raised:
        work()
    assert raised.value.signal == number
    assert sys.unraisablehook is hook


def test_a_signal_is_not_sent_again_into_the_hook_that_would_drop_it_too(monkeypatch):
    """The hook may take its time, on a busy machine."""
    start = threading.Thread.start

    def start_and_stall(thread):
        start(thread)
        time.sleep(0.1)

    class Signalled:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def work():
        with stopping_on_signals():
            monkeypatch.setattr(threading.Thread, "start", start_and_stall)
            Signalled()
            monkeypatch.undo()
            threading.Event().wait(30)

    with pytest.raises(Stopped):
        work()


def test_other_errors_of_destructors_are_shown(monkeypatch):
    class Broken:
        def __del__(self):
            raise ValueError("broken")

    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    with stopping_on_signals():
        Broken()
    assert [str(one.exc_value) for one in shown] == ["broken"]


def test_a_step_tells_how_it_ended(capsys):
    with step("counting") as say:
        say("3 sheep")
    assert capsys.readouterr().out.endswith("s  counting: 3 sheep\n")
    with pytest.raises(ValueError, match="lost"), step("counting"):
        raise ValueError("lost")
    assert capsys.readouterr().out == "  ... counting\n"


def test_a_failure_of_the_demo_ends_it_and_spark(monkeypatch, tmp_path, capsys):
    ended = []
    java = SimpleNamespace(stdin=SimpleNamespace(close=lambda: ended.append("java")), wait=lambda _: 0)
    context = SimpleNamespace(_gateway=SimpleNamespace(proc=java))
    session = SimpleNamespace(sparkContext=context, stop=lambda: ended.append("session"))
    monkeypatch.setattr(demo, "_set_environment", lambda _: None)
    monkeypatch.setattr(demo, "_build", lambda *_: session)
    (tmp_path / "spark.err").write_text("of a worker")
    with pytest.raises(ValueError, match="lost"), demo.local_spark(tmp_path):
        raise ValueError("lost")
    assert ended == ["session", "java"]
    assert capsys.readouterr().err == "of a worker\nlost\n"


def test_a_gateway_that_is_dead_hides_no_interrupt_and_keeps_no_jvm(monkeypatch, tmp_path):
    """A signal of the terminal may have reached the JVM, too."""

    def stop():
        raise ConnectionRefusedError("the gateway is dead")

    def wait(seconds):
        raise subprocess.TimeoutExpired("java", seconds)

    ended = []
    java = SimpleNamespace(
        stdin=SimpleNamespace(close=lambda: ended.append("asked")),
        wait=wait,
        kill=lambda: ended.append("killed"),
    )
    context = SimpleNamespace(_gateway=SimpleNamespace(proc=java))
    monkeypatch.setattr(demo, "_set_environment", lambda _: None)
    monkeypatch.setattr(demo, "_build", lambda *_: SimpleNamespace(sparkContext=context, stop=stop))
    with pytest.raises(KeyboardInterrupt), demo.local_spark(tmp_path):
        raise KeyboardInterrupt
    assert ended == ["asked", "killed"]


@pytest.mark.parametrize(
    ("hashes", "last_offset", "same"),
    [(4, 0, True), (5, 0, False), (4, 1, False)],
    ids=["same", "changed", "gap"],
)
def test_the_demo_fails_if_what_came_back_is_not_what_was_written(
    monkeypatch, capsys, hashes, last_offset, same
):
    read = [
        SimpleNamespace(records=1, hashes=3, first_offset=0, last_offset=0),
        SimpleNamespace(records=1, hashes=hashes, first_offset=0, last_offset=last_offset),
    ]
    trip = SimpleNamespace(
        share_done=None,
        write=lambda *_: None,
        read_all=lambda *_: None,
        sums_written=lambda _: demo.Sums(records=2, hashes=7),
        sums_read=lambda _: read,
    )
    kafka = SimpleNamespace(bootstrap_servers="", create_topic=lambda *_: None)
    monkeypatch.setattr(embedded_kafka, "EmbeddedKafka", lambda: nullcontext(kafka))
    monkeypatch.setattr(demo, "local_spark", lambda _: nullcontext(SimpleNamespace(version="4")))
    monkeypatch.setattr(demo, "_RoundTrip", lambda **_: trip)
    monkeypatch.setattr(demo, "_show", lambda *_: None)
    assert main(["demo", "--records", "2"]) == (0 if same else 1)
    assert ("all there, once, unchanged" in capsys.readouterr().out) is same


@pytest.mark.parametrize(
    ("given", "properties"),
    [
        (["a=1", " b = 2 "], {"a": "1", "b": "2"}),
        (["listener=x=1,y=2"], {"listener": "x=1,y=2"}),
        (["empty="], {"empty": ""}),
    ],
)
def test_properties_of_a_broker(given, properties):
    assert broker._properties(None, given) == properties


def test_each_repetition_of_an_option_of_a_broker_counts(monkeypatch):
    given = {}

    def start(*_, **settings):
        given.update(settings)
        raise BrokerStartError("it ended")

    monkeypatch.setattr(embedded_kafka, "EmbeddedKafka", start)
    properties = ["--property", "a=1", "--property", "b=2"]
    assert main(["broker", *properties, "--user", "x:1", "--user", "y:2"]) == 1
    assert given["properties"] == {"a": "1", "b": "2"}
    assert given["users"] == {"x": "1", "y": "2"}


@pytest.mark.parametrize("given", ["a", "=1"])
def test_what_is_no_property_of_a_broker(given):
    with pytest.raises(ValueError, match=f"'{given}' is not of the form NAME=VALUE"):
        broker._properties(None, [given])


@pytest.mark.parametrize("keep", [True, False])
def test_the_topic_of_a_benchmark_is_deleted_unless_it_is_to_be_kept(capsys, keep):
    options = ["--keep"] if keep else []
    with MockBroker() as running:
        command = ["bench", "--records", "10", "--partitions", "1", "--json", *options]
        assert main([*command, "-b", running.bootstrap_servers]) == 0
        found = [name for name in running.cluster.topics if name.startswith("pykafka-bench-")]
        records = sum(len(running.records(name)) for name in found)
    out, err = capsys.readouterr()
    assert [row["records"] for row in json.loads(out)] == [10, 10]
    assert records == (10 if keep else 0)
    assert [f"The records are in {name}." in err for name in found] == ([True] if keep else [])


def test_the_topic_of_a_benchmark_that_fails_is_deleted(capsys):
    with MockBroker() as running:
        running.on("Fetch", times=None).fail(29)  # TOPIC_AUTHORIZATION_FAILED
        command = ["bench", "--records", "10", "--partitions", "1", "-b", running.bootstrap_servers]
        assert main(command) == 1
        assert len(running.asked("CreateTopics")) == 1
        assert [name for name in running.cluster.topics if name.startswith("pykafka-bench-")] == []
    assert "TOPIC_AUTHORIZATION_FAILED" in capsys.readouterr().err


def test_no_topic_of_a_benchmark_is_left_where_an_answer_to_its_creation_was_lost(capsys):
    command = ["bench", "--records", "10", "--partitions", "1", "--json"]
    with MockBroker() as running:
        running.on("CreateTopics").cut()
        assert main([*command, "-b", running.bootstrap_servers]) == 0
        assert len(running.asked("CreateTopics")) == 2
        assert list(running.cluster.topics) == []
        assert [row["records"] for row in json.loads(capsys.readouterr().out)] == [10, 10]
        running.on("CreateTopics").cut()
        running.on("CreateTopics").fail("POLICY_VIOLATION")
        assert main([*command, "--keep", "-b", running.bootstrap_servers]) == 1
        assert list(running.cluster.topics) == []
    out, err = capsys.readouterr()
    assert (out, "POLICY_VIOLATION" in err, "The records are in" in err) == ("", True, False)


def test_a_benchmark_counts_the_records_of_all_its_fetches(capsys):
    settings = ["-X", "batch.num.messages=4", "-X", "max.partition.fetch.bytes=1"]
    with MockBroker() as running:
        command = ["bench", "--records", "10", "--partitions", "1", "--json", *settings]
        assert main([*command, "-b", running.bootstrap_servers]) == 0
        assert sum(one.api == "Fetch" for one in running.requests) > 1
    assert [row["records"] for row in json.loads(capsys.readouterr().out)] == [10, 10]


def run_without(modules: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command where ``modules`` are not installed."""
    script = f"import sys; sys.modules.update(dict.fromkeys({modules!r})); "
    script += "from spark_kafka_native.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("arguments", [("broker", "--listeners", "SSL"), ("demo",)])
def test_a_missing_extra_is_one_line(arguments):
    ran = run_without(["pyspark", "trustme"], *arguments)
    assert ran.returncode == 1
    assert ran.stderr.endswith("pip install 'spark-kafka-native[testing]'\n")
    assert len(ran.stderr.splitlines()) == 1


def test_a_port_in_use_is_one_line(capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["broker", "--port", str(port)]) == 1
    assert capfd.readouterr().err == (
        f"BrokerStartError: port {port} of 127.0.0.1 is taken (Address already in use): "
        "choose another, or none at all\n"
    )


@pytest.mark.parametrize("port", ["0", "-1", "65536", "http"])
def test_a_port_that_is_none(port, capsys):
    with pytest.raises(SystemExit):
        main(["broker", f"--port={port}"])
    assert f"a port is a number from 1 to 65535, not '{port}'" in capsys.readouterr().err


def test_of_a_brokers_log_the_cause_is_shown():
    log = (
        "INFO starting\norg.apache.kafka.common.config.ConfigException: bad\n  at Kafka.main\nINFO shut down"
    )
    error = BrokerStartError("broker 1 ended while starting", log)
    assert error.reason == (
        "broker 1 ended while starting: org.apache.kafka.common.config.ConfigException: bad"
    )
    assert str(error).endswith(log)
    assert BrokerStartError("it ended", "INFO no word of a cause").reason == "it ended"


def test_of_a_brokers_long_log_the_end_is_shown():
    """The cause is there: a port that is taken is looked for in it."""
    end = "java.net.BindException: Address already in use"
    error = BrokerStartError("broker 1 ended while starting", "INFO starting\n" * 10_000 + end)
    assert str(error).endswith(end)
    assert len(str(error)) < 10_000


@pytest.mark.parametrize(("times", "written"), [(None, 0), (1, 5)], ids=["all", "some"])
def test_a_benchmark_counts_no_record_that_a_broker_has_refused(capsys, times, written):
    with MockBroker() as running:
        running.on("Produce", times=times).fail(29)  # TOPIC_AUTHORIZATION_FAILED
        settings = ["-X", "batch.num.messages=5", "-X", "enable.idempotence=false"]
        command = ["bench", "--records", "10", "--partitions", "1", "--json", *settings]
        assert main([*command, "-b", running.bootstrap_servers]) == 1
    out, err = capsys.readouterr()
    rows = [(row["way"], row["records"]) for row in json.loads(out)]
    assert rows == [("write", written), ("read", written)]
    assert f"warning: {10 - written} records were not written" in err


def test_a_broker_that_ends_is_a_failure_and_its_last_words_are_shown(capsys):
    def ended(node_id, running):
        output = SimpleNamespace(read_text=lambda: f"last words of {node_id}")
        return SimpleNamespace(node_id=node_id, running=running, output=output)

    assert broker._wait(SimpleNamespace(brokers=[ended(1, True), ended(2, False)])) == 1
    out = capsys.readouterr().out
    assert ("last words of 2" in out, "last words of 1" in out) == (True, False)


def test_a_property_that_is_typed_comes_before_that_of_the_file(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("# a comment=1\n\n  # another=2\na=1\n b = 2 \n")
    assert broker._properties(file, ["a=7", "c=3"]) == {"a": "7", "b": "2", "c": "3"}


@pytest.mark.parametrize(
    ("options", "level"),
    [([], "WARNING"), (["-v"], "INFO"), (["-vv"], "DEBUG"), (["-v", "-v"], "DEBUG"), (["-vvv"], "DEBUG")],
)
def test_the_log_goes_to_standard_error_as_far_as_it_is_wanted(monkeypatch, options, level):
    """In the output, a script would take it for a result."""
    made = []
    monkeypatch.delenv("PYKAFKA_BOOTSTRAP", raising=False)
    monkeypatch.delenv("PYKAFKA_CONFIG", raising=False)
    monkeypatch.setattr(logging, "basicConfig", lambda **how: made.append(how))
    with pytest.raises(SystemExit):  # it names no cluster
        main(["topics", *options])
    [how] = made
    assert (how["level"], how["stream"]) == (getattr(logging, level), sys.stderr)


def test_the_topic_of_a_benchmark_is_as_large_as_was_asked_for(capsys):
    with MockBroker(2) as running:
        command = ["bench", "--records", "9", "--partitions", "3", "--replication-factor", "2"]
        assert main([*command, "-b", running.bootstrap_servers]) == 0
        [topic] = running.asked("CreateTopics")[0].fields["topics"]
    assert (topic["num_partitions"], topic["replication_factor"]) == (3, 2)
