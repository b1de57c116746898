"""A broker that was deposed, and does not know it yet, says that nothing was committed: the taker of the new
marker or intent in knows better."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.exactly_once.transactional_sink import PARTITIONS, ROWS, Sink, complaints, read

from spark_kafka_native.kafka.consumer import fetch_once as last_committed_value
from spark_kafka_native.spark.write import marker_store
from spark_kafka_native.spark.write.driver.stream_commit import WriteCommitFailedError, abort_transactions
from spark_kafka_native.spark.write.worker.write_rows import WriteFailedError

pytestmark = pytest.mark.broker
MARKERS = pytest.mark.parametrize("markers", ["groups", "topic"])


@pytest.fixture
def target(kafka: Any, topic: str) -> str:
    kafka.create_topic(topic, PARTITIONS)
    return topic


@contextmanager
def deposed() -> Iterator[None]:
    """Each broker knows nothing; the log of its marker topic is empty."""

    def empty(_router: Any, places: Any, **_named: Any) -> Any:
        return dict.fromkeys(places, (0, 0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marker_store, "find_offsets", lambda *_arguments: {})
        patch.setattr(last_committed_value, "list_bounds", empty)
        yield


@MARKERS
def test_a_task_that_was_told_that_nothing_is_committed_finds_it_before_it_hands_its_rows_over(
    kafka: Any, target: str, markers: str
) -> None:
    sink = Sink(kafka, target, markers=markers)
    sink.commit(sink.run_tasks(0), 0)
    with deposed(), pytest.raises(WriteFailedError, match="micro-batch 0 has become committed while"):
        sink.run_task(0, 0)
    assert sink.run_task(0, 0).skipped == ROWS
    sink.run_tasks(0)
    assert not complaints(read(kafka, target), 1)


@MARKERS
def test_a_driver_that_was_told_of_no_intent_commits_nothing(kafka: Any, target: str, markers: str) -> None:
    sink = Sink(kafka, target, markers=markers)
    sink.die_in_commit(sink.run_tasks(0), 0, [])
    messages = sink.run_tasks(0, tasks=2)
    with deposed(), pytest.raises(WriteCommitFailedError, match="a broker answered that was deposed"):
        sink.commit(messages, 0)
    abort_transactions(messages, sink.options)
    sink.commit(sink.run_tasks(0), 0)
    sink.run_tasks(0)
    assert not complaints(read(kafka, target), 1)


@MARKERS
def test_where_nothing_was_committed_both_say_so(kafka: Any, target: str, markers: str) -> None:
    sink = Sink(kafka, target, markers=markers)
    with deposed():
        sink.commit(sink.run_tasks(0), 0)
    sink.run_tasks(0)
    assert not complaints(read(kafka, target), 1)
