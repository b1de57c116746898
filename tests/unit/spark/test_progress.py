import json
import logging
from types import SimpleNamespace

import pytest

from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.progress import (
    PartitionLag,
    ProgressLog,
    StreamPartitionLag,
    describe_progress,
    kafka_progress,
    lag,
    lag_of,
)
from spark_kafka_native.spark.write.driver.stream_commit import CommitFailedError, WriteCommitFailedError

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def progress(second, end, latest, rows=0, ms=500, **more):
    """As Spark's ``recentProgress`` has it: offsets are texts."""
    source = {"endOffset": json.dumps(end), "latestOffset": json.dumps(latest), "numInputRows": rows}
    return {
        "id": "0123456789",
        "name": "copy",
        "batchId": second,
        "timestamp": f"2026-05-06T07:08:{second:02d}.500Z",
        "durationMs": {"triggerExecution": ms},
        "sources": [source],
    } | more


HISTORY = [
    progress(0, {"t": {"0": 0, "1": 0}, "#start": {}}, {"t": {"0": 100, "1": 0}}),
    progress(10, {"t": {"0": 50, "1": 0}}, {"t": {"0": 200, "1": 10}, "#bytes 80.0": {}}, rows=50),
    progress(20, {"t": {"0": 150, "1": 10}, "#id t 00": {}}, {"t": {"0": 300, "1": 10}}, rows=110, ms=1500),
]


def test_lag_in_records_and_in_time():
    found = lag_of(HISTORY)
    assert [(one.topic_partition, one.position, one.latest, one.records) for one in found.partitions] == [
        (T0, 150, 300, 150),
        (T1, 10, 10, 0),
    ]
    # The log ended at 150 half way between second 0 and second 10.
    assert found.partitions[0].seconds == pytest.approx(15)
    assert found.partitions[1].seconds == 0
    assert found.seconds == pytest.approx(15)
    assert found.records == 150


def test_a_position_at_which_a_batch_found_the_end_is_as_old_as_that_batch():
    found = lag_of([*HISTORY, progress(30, {"t": {"0": 200, "1": 10}}, {"t": {"0": 300, "1": 10}}, rows=50)])
    assert found.partitions[0].seconds == pytest.approx(20)


def test_the_newest_sample_of_sizes_counts():
    newest = progress(30, {"t": {"0": 160}}, {"t": {"0": 300}, "#bytes 20.0": {}}, rows=10)
    found = lag_of([*HISTORY, newest])
    assert found.bytes_per_s == pytest.approx(found.records_per_s * 20)


def test_rates_and_when_it_has_caught_up():
    found = lag_of(HISTORY)
    assert found.records_per_s == pytest.approx(160 / 2.0)
    assert found.arriving_per_s == pytest.approx(210 / 20)
    assert found.bytes_per_s == pytest.approx(80 * 80)
    assert found.seconds_to_catch_up == pytest.approx(150 / (80 - 10.5))
    quiet = [progress(0, {"t": {"0": 9}}, {"t": {"0": 9}}), progress(9, {"t": {"0": 99}}, {"t": {"0": 99}})]
    assert lag_of(quiet).seconds_to_catch_up == 0  # no batch had rows
    slow = lag_of([HISTORY[0], progress(10, {"t": {"0": 1}}, {"t": {"0": 10_000}}, rows=1)])
    assert slow.seconds_to_catch_up is None
    assert "not catching up" in str(slow)


def test_a_position_from_before_the_history_has_no_known_time():
    found = lag_of([*HISTORY[1:], progress(30, {"t": {"0": 150, "1": 10}}, {"t": {"0": 300, "1": 10}})])
    assert found.partitions[0].seconds is None
    assert found.seconds is None
    assert found.records == 150
    assert "<td>?</td>" in found._repr_html_()


def test_caught_up_empty_and_foreign():
    done = lag_of([progress(5, {"t": {"0": 7}}, {"t": {"0": 7}}, rows=7)])
    assert (done.records, done.seconds, done.seconds_to_catch_up) == (0, 0, 0)
    assert str(done) == "0 records behind, 0.0 s behind, 14 records/s"
    nothing = lag_of([])
    assert (nothing.partitions, nothing.records, nothing.seconds, nothing.seconds_to_catch_up) == (
        (),
        0,
        None,
        None,
    )
    assert str(nothing) == "no batch from Kafka yet"
    assert "no batch from Kafka yet" in nothing._repr_html_()
    rate = progress(1, 5, 6) | {"sources": [{"endOffset": "5", "latestOffset": "6"}, {"endOffset": None}]}
    assert lag_of([rate]).partitions == ()
    assert describe_progress(rate) is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_sources_of_one_topic_the_one_behind_counts(order):
    both = [progress(1, {"t": {"0": at}}, {"t": {"0": 9}})["sources"][0] for at in (9, 4)]
    found = progress(1, {}, {}) | {"sources": [both[index] for index in order]}
    assert lag_of([found]).records == 5
    both[1]["latestOffset"] = json.dumps({"t": {"0": 8}})  # it looked earlier
    assert lag_of([found]).records == 5


def test_a_query_of_objects_and_a_table_for_notebooks():
    as_objects = [SimpleNamespace(json=json.dumps(one)) for one in HISTORY]
    found = lag(SimpleNamespace(recentProgress=as_objects))
    assert found == lag(SimpleNamespace(recentProgress=HISTORY)) == lag_of(HISTORY)
    table = found._repr_html_()
    assert "<td>t-0</td><td>150</td><td>300</td><td>150</td><td>15.0</td>" in table
    many = {str(index): 0 for index in range(50)}
    assert "and 30 partitions" in lag_of([progress(1, {"t": many}, {"t": many})])._repr_html_()
    latest = {str(index): index for index in range(50)}
    table = lag_of([progress(1, {"t": many}, {"t": latest})])._repr_html_()
    assert [f"<td>t-{index}</td>" in table for index in (0, 29, 30, 49)] == [False, False, True, True]


def test_one_line_for_each_batch(caplog):
    line = "copy, batch 20: 110 records in 1,500 ms (73/s), 150 behind in 2 partitions"
    assert describe_progress(HISTORY[-1]) == line
    other = HISTORY[-1] | {"sources": [{"endOffset": "5", "latestOffset": "6"}]}
    with caplog.at_level(logging.INFO, "spark_kafka_native"):
        ProgressLog().onQueryProgress(SimpleNamespace(progress=other))
        ProgressLog().onQueryProgress(SimpleNamespace(progress=HISTORY[-1]))
    assert caplog.messages == [line]


@pytest.mark.parametrize(
    "offset",
    [None, "null", "", "12", "{no JSON", "[]", '{"logOffset":3}', '{"t":3}', '{"t":{"²":1}}',
     '{"t":{"0":"9"}}', '{"#bytes many":{}}', '{"t":{"-1":4}}', {"reservoirId": "a{b"}],
)  # fmt: skip
def test_offsets_of_other_sources_are_passed_over(offset):
    other = {"endOffset": offset, "latestOffset": offset, "numInputRows": 5}
    foreign = progress(1, {}, {}) | {"sources": [other]}
    assert lag_of([foreign]).partitions == ()
    assert describe_progress(foreign) is None
    both = progress(1, {"t": {"0": 4}}, {"t": {"0": 9}}, rows=4)
    both["sources"].append(other)
    found = lag_of([both])
    assert (found.records, found.records_per_s) == (5, 8)


@pytest.mark.parametrize("missing", ["sources", "durationMs", "timestamp", "batchId", "id", "name"])
def test_a_progress_that_leaves_something_out(missing):
    one = {name: value for name, value in HISTORY[1].items() if name != missing}
    assert lag_of([one]).records == (0 if missing == "sources" else 160)
    assert (describe_progress(one) is None) == (missing == "sources")
    empty = HISTORY[1] | {missing: None} if missing in ("durationMs", "name") else HISTORY[1]
    assert lag_of([empty]).records == 160


def test_no_time_and_no_rows_divide_nothing():
    still = [progress(1, {"t": {"0": 4}}, {"t": {"0": 9}}, rows=4, ms=0)] * 2
    found = lag_of(still)
    assert (found.records_per_s, found.arriving_per_s, found.seconds_to_catch_up) == (0, None, None)
    assert "(0/s)" in describe_progress(still[0])


def test_a_clock_that_is_set_back_and_times_to_come():
    back = [
        progress(30, {"t": {"0": 0}}, {"t": {"0": 10}}),
        progress(40, {"t": {"0": 10}}, {"t": {"0": 30}}, rows=10),
        progress(10, {"t": {"0": 20}}, {"t": {"0": 40}}, rows=10),
    ]
    found = lag_of(back)
    assert found.arriving_per_s is None
    assert found.seconds == 0.0
    future = progress(1, {"t": {"0": 1}}, {"t": {"0": 2}}) | {"timestamp": "2999-01-01T00:00:00.000Z"}
    assert lag_of([future]).records == 1


def test_topics_that_come_shrink_and_go():
    seen = [
        progress(0, {"t": {"0": 10}, "gone": {"0": 5}}, {"t": {"0": 10}, "gone": {"0": 50}}),
        progress(10, {"t": {"0": 2}, "u": {"0": 0}}, {"t": {"0": 4}, "u": {"0": 1_000_000}}),
        progress(20, {"t": {"0": 5}, "u": {"0": 0}}, {"t": {"0": 4}, "u": {"0": 1_000_020}}),
    ]
    found = lag_of(seen)
    # A topic that the pattern has just found did not arrive with all that it holds, and a position beyond the
    # end is nothing to read.
    assert found.arriving_per_s == pytest.approx(20 / 20)
    assert [one.records for one in found.partitions] == [0, 1_000_020]
    assert found.partitions[0].seconds == 0


def test_a_log_that_was_at_a_position_twice_is_behind_since_the_last_time():
    ends = [(0, 0), (10, 100), (20, 40), (30, 140)]  # created again between two batches
    found = lag_of([progress(second, {"t": {"0": 90}}, {"t": {"0": end}}) for second, end in ends])
    assert found.seconds == pytest.approx(5)


def test_a_position_at_which_the_first_batch_found_the_end_has_a_known_time():
    ends = [(0, 50), (10, 80), (20, 90)]
    found = lag_of([progress(second, {"t": {"0": 50}}, {"t": {"0": end}}) for second, end in ends])
    assert found.seconds == pytest.approx(20)


def test_a_restarted_query_in_a_history_of_both_runs():
    again = [*HISTORY, progress(50, {"t": {"0": 160, "1": 10}}, {"t": {"0": 310, "1": 10}}, rows=10)]
    found = lag_of(again)
    assert found.records == 150
    assert found.arriving_per_s == pytest.approx(220 / 50)


def test_names_are_no_markup():
    html = lag_of([progress(1, {"<b>&": {"0": 1}}, {"<b>&": {"0": 2}})])._repr_html_()
    assert "<td>&lt;b&gt;&amp;-0</td>" in html
    assert "<b>&" not in html


def test_a_progress_with_what_monitoring_of_the_jvm_connector_goes_by():
    other = {"description": "RateStreamV2", "endOffset": "5", "latestOffset": None, "numInputRows": 3}
    end, latest = {"t": {"0": 150, "1": 10}, "#id t 00": {}}, {"t": {"0": 300, "1": 10}, "u": {"0": 3}}
    given = progress(20, end, latest)
    given["sources"].append(other)
    found = kafka_progress(SimpleNamespace(json=json.dumps(given)))
    assert found["sources"][0]["description"] == "pykafka[t]"
    assert found["sources"][0]["metrics"] == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "150",
        "avgOffsetsBehindLatest": "51.0",
    }
    assert found["sources"][1] == other
    assert found["batchId"] == 20
    # Users go through the topics of these: each has partitions, as with Spark's connector.
    assert json.loads(found["sources"][0]["endOffset"]) == {"t": {"0": 150, "1": 10}}
    as_objects = {"endOffset": end, "latestOffset": latest | {"#bytes 80.0": {}}, "startOffset": None}
    (source,) = kafka_progress(given | {"sources": [as_objects]})["sources"]
    assert [source[name] for name in as_objects] == [{"t": {"0": 150, "1": 10}}, latest, None]
    (source,) = kafka_progress(given | {"sources": [as_objects | {"startOffset": end}]})["sources"]
    assert source["startOffset"] == {"t": {"0": 150, "1": 10}}
    assert "#id t 00" in end
    # The same of a progress that is a dictionary; before the first ends are known there are no metrics.
    assert kafka_progress(given) == found
    assert "metrics" not in kafka_progress(progress(0, {"t": {"0": 1}}, None))["sources"][0]
    assert "description" not in given["sources"][0]


def test_a_partition_that_was_read_beyond_the_last_look_at_its_log_is_not_behind():
    """Alerts go by these numbers: a negative one lowers the average of the others."""
    given = progress(20, {"t": {"0": 150, "1": 10, "2": 7}}, {"t": {"0": 140, "1": 40, "2": 7}})
    assert kafka_progress(given)["sources"][0]["metrics"] == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "30",
        "avgOffsetsBehindLatest": "10.0",
    }
    assert "30 behind in 3 partitions" in describe_progress(given)
    assert lag_of([given]).records == 30


def test_a_query_that_ended_for_its_update_mode_comes_with_what_to_do(caplog):
    log = ProgressLog()
    log.onQueryTerminated(SimpleNamespace(exception=None))
    log.onQueryTerminated(SimpleNamespace(exception="something else"))
    assert caplog.records == []
    refused = "requirement failed: pykafka does not support Update mode. SQLSTATE: XXKST"
    log.onQueryTerminated(SimpleNamespace(exception=refused))
    (record,) = caplog.records
    assert "foreachBatch" in record.getMessage()


def test_the_former_names_still_work() -> None:
    assert PartitionLag is StreamPartitionLag
    assert CommitFailedError is WriteCommitFailedError
