"""What Spark shows of an error: PySpark's own code formats it, in a process that is a worker of Spark's."""

import io
import pickle
import sys
from types import SimpleNamespace

import pytest
from pyspark.util import handle_worker_exception

from spark_kafka_native import KafkaDataSource
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.spark.read.stream_reader import RefusedStreamReader
from spark_kafka_native.spark.user_messages import TRACEBACKS, HideTracebacks

HIDE = "SPARK_HIDE_TRACEBACK"


@pytest.fixture
def shown(monkeypatch):
    """``shown(error)``: the text that the JVM gets of an error that left us."""
    monkeypatch.setenv(HIDE, "")  # so that it is put back
    worker = SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon"))

    @HideTracebacks()
    def fail(error):
        raise error from OSError("the cause")

    def run(error, main=worker):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "__main__", main)
            try:
                fail(error)
            except Exception as caught:
                answer = io.BytesIO()
                handle_worker_exception(caught, answer)
                return answer.getvalue()[8:].decode()

    return run


def test_an_error_is_its_sentence(shown):
    assert shown(ConfigError("no such topic")) == (
        "spark_kafka_native.kafka.errors.ConfigError: no such topic\n"
    )


def test_frames_come_where_they_are_asked_for_and_with_defects(shown, monkeypatch):
    defect = shown(KeyError("x"))
    assert "Traceback" in defect
    assert "the cause" in defect
    monkeypatch.setenv(TRACEBACKS, "true")
    assert "Traceback" in shown(ConfigError("no such topic"))


def test_other_processes_are_left_alone(shown):
    for main in (SimpleNamespace(__spec__=None), SimpleNamespace(__spec__=SimpleNamespace(name="pytest"))):
        assert "Traceback" in shown(ConfigError("no such topic"), main)


def test_a_stream_that_can_not_be_says_so_when_it_is_asked():
    """Raised by `streamReader`, it would be followed by an error of PySpark's own, the only one shown."""
    reader = KafkaDataSource({"subscribe": "t"}).streamReader(None)
    assert isinstance(reader, RefusedStreamReader)
    for asked in (
        reader,
        pickle.loads(pickle.dumps(reader)),
    ):
        for ask in (
            asked.initialOffset,
            asked.latestOffset,
            asked.getDefaultReadLimit,
            asked.prepareForTriggerAvailableNow,
            asked.reportLatestOffset,
            lambda asked=asked: asked.partitions({}, {}),
            lambda asked=asked: asked.read(None),
            lambda asked=asked: asked.commit({}),
        ):
            with pytest.raises(ConfigError, match=r"'kafka.bootstrap.servers' must be specified"):
                ask()
