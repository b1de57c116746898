"""Fetching against brokers that misbehave: nothing may be lost, shown twice or waited for without end."""

from __future__ import annotations

import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from support import record_batches
from support.brokers.scripted_broker import (
    Cut,
    HangUp,
    ScriptedCluster,
    Silence,
    offsets_of,
    properties,
    refusal,
    values_of,
)
from support.waiting import eventually

from spark_kafka_native.kafka import Consumer
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.consumer import fetched_records
from spark_kafka_native.kafka.consumer.fetcher import Fetcher
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    CorruptRecordError,
    DeadlineExceededError,
    EndOfLogError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from spark_kafka_native.kafka.model import HeaderKeys, IsolationLevel, TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import (
    DivergingEpoch,
    FetchedAbortedTransaction,
    FetchRequest,
    FetchResponse,
)
from spark_kafka_native.kafka.protocol.api.metadata import LeaderIdAndEpoch, MetadataRequest
from spark_kafka_native.testing import MockBroker
from spark_kafka_native.testing.mock.script import MockRequest

pytestmark = pytest.mark.timed(0.1)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(3) as running:
        yield running


def fetcher(cluster: ScriptedCluster, **changed: Any) -> Fetcher:
    client = {
        name: changed.pop(name) for name in list(changed) if name in ("client_rack", "request_timeout_ms")
    }
    quick = {"fetch_max_wait_ms": 10, "end_of_log_wait_ms": 100, "poll_timeout_ms": 60_000} | changed
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers, **client)))
    return Fetcher(router, ConsumerConfig(**quick))


def fill(
    cluster: ScriptedCluster,
    partitions: int = 3,
    batches: int = 10,
    size: int = 5,
    *,
    leader: int | None = None,
) -> list[TopicPartition]:
    tps = cluster.create("orders", partitions, leader=leader)
    for tp in tps:
        for batch in range(batches):
            cluster.logs[tp].append([b"%d/%d" % (tp.partition, batch * size + i) for i in range(size)])
    return tps


def read_all(
    reader: Fetcher, ranges: dict[TopicPartition, tuple[int, int]], **options: Any
) -> dict[TopicPartition, list[int]]:
    """The offsets read; checks that each partition is without gap and that values match their offsets."""
    found: dict[TopicPartition, list[int]] = defaultdict(list)
    position = {tp: start for tp, (start, _) in ranges.items()}
    for fetched in reader.fetch(ranges, **options):
        tp = fetched.topic_partition
        assert fetched.from_offset == position[tp]
        position[tp] = fetched.next_offset
        offsets = offsets_of(fetched.columns)
        assert values_of(fetched.columns) == [b"%d/%d" % (tp.partition, offset) for offset in offsets]
        found[tp] += offsets
    assert position == {tp: max(start, until) for tp, (start, until) in ranges.items()}
    return found


def whole(tps: list[TopicPartition], until: int = 50) -> dict[TopicPartition, tuple[int, int]]:
    return dict.fromkeys(tps, (0, until))


def complete(tps: list[TopicPartition], until: int = 50) -> dict[TopicPartition, list[int]]:
    return {tp: list(range(until)) for tp in tps}


def test_one_request_per_broker_reads_many_partitions(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=9)
    assert read_all(fetcher(cluster), whole(tps)) == complete(tps)
    assert [len(cluster[i].requests(FetchRequest)) for i in (1, 2, 3)] == [1, 1, 1]


def test_ranges_are_cut_to_the_offset_on_both_sides(cluster: ScriptedCluster) -> None:
    tps = fill(cluster)
    ranges = {tps[0]: (7, 8), tps[1]: (0, 50), tps[2]: (49, 50)}
    assert read_all(fetcher(cluster), ranges) == {tps[0]: [7], tps[1]: list(range(50)), tps[2]: [49]}


def test_an_empty_range_asks_nobody(cluster: ScriptedCluster) -> None:
    tps = fill(cluster)
    assert read_all(fetcher(cluster), {tps[0]: (5, 5), tps[1]: (9, 3)}) == {}
    assert not cluster[1].asked


def test_the_next_fetch_is_sent_before_records_are_handed_out(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    records = fetcher(cluster, max_partition_fetch_bytes=1).fetch(whole(tps))
    next(records)
    eventually(lambda: len(cluster[1].requests(FetchRequest)) > 1)
    assert [r.topics[0].partitions[0].fetch_offset for r in cluster[1].requests(FetchRequest)] == [0, 5]
    assert sum(fetched.columns.length for fetched in records) == 45


def test_a_broker_that_answers_at_once_with_nothing_is_not_asked_without_end() -> None:
    with MockBroker() as broker:
        broker.create_topic("t")
        nothing = {"responses": []}

        def answer(request: MockRequest) -> dict[str, Any]:
            asked = request.fields["topics"][0]
            one = {"partition_index": 0, "high_watermark": 0, "last_stable_offset": 0, "records": b""}
            place = {"topic": asked["topic"]} if "topic" in asked else {"topic_id": asked["topic_id"]}
            return nothing | {"responses": [place | {"partitions": [one]}]}

        broker.on("Fetch", times=None).reply(answer)
        with Consumer(
            broker.bootstrap_servers, "t", retry_backoff_ms=60_000, retry_backoff_max_ms=60_000
        ) as consumer:
            broker.wait_for("Fetch")
            assert consumer.poll(0.3) == []
        assert len(broker.asked("Fetch")) <= 2


def test_no_request_reaches_beyond_the_range(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    read_all(fetcher(cluster, max_partition_fetch_bytes=1), whole(tps))
    asked = [r.topics[0].partitions[0].fetch_offset for r in cluster[1].requests(FetchRequest)]
    assert asked == list(range(0, 50, 5))


def test_no_partition_starves_when_responses_are_small(cluster: ScriptedCluster) -> None:
    tps = cluster.create("orders", 4, leader=1)
    for tp in tps:
        for batch in range(10):
            cluster.logs[tp].append([b"%d/%d" % (tp.partition, batch * 5 + i) for i in range(5)])
    served = [f.topic_partition.partition for f in fetcher(cluster, fetch_max_bytes=1).fetch(whole(tps))]
    assert len(served) == 40
    assert all(sorted(served[i : i + 4]) == [0, 1, 2, 3] for i in range(0, 40, 4))


def test_a_header_key_that_is_not_utf8_stops_nobody_who_did_not_ask_for_it(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.create("orders", 1)
    cluster.logs[tp].end_offset = 2
    cluster.logs[tp].batches.append(
        record_batches.batch([record_batches.record(0), record_batches.record(1, headers=[(b"\xff", b"1")])])
    )

    def read_keys(**changed: Any) -> list[str | bytes]:
        (fetched,) = fetcher(cluster, **changed).fetch({tp: (0, 2)})
        assert fetched.columns.headers is not None
        return [one["key"] for headers in fetched.columns.headers.to_pylist() for one in headers or ()]

    assert read_keys() == ["\ufffd"]
    assert read_keys(header_keys=HeaderKeys.BYTES) == [b"\xff"]
    with pytest.raises(
        CorruptRecordError, match="orders-0 at offset 1: a header key of the record is not UTF"
    ):
        read_keys(header_keys=HeaderKeys.STRICT)


def test_a_leader_that_moves_is_followed(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    records = fetcher(cluster, max_partition_fetch_bytes=1).fetch(whole(tps))
    offsets = []
    for moved, fetched in enumerate(records):
        offsets += offsets_of(fetched.columns)
        log = cluster.logs[tps[0]]
        log.leader, log.leader_epoch = 1 + (moved + 1) % 3, moved + 1
    assert offsets == list(range(50))


@pytest.mark.parametrize(
    "error_code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)
def test_passing_errors_are_retried_with_new_metadata(
    cluster: ScriptedCluster, error_code: ErrorCode
) -> None:
    tps = fill(cluster, partitions=1)
    one = cluster.fetcher(1)

    def refuse(request: FetchRequest, version: int) -> FetchResponse:
        topic = one(request, version).responses[0]
        return FetchResponse(responses=[replace(topic, partitions=[refusal(0, error_code)])])

    cluster[1].push(FetchRequest, refuse, refuse, one, refuse)
    assert read_all(fetcher(cluster, max_partition_fetch_bytes=1), whole(tps)) == complete(tps)
    assert any(broker.requests(MetadataRequest) for broker in cluster.brokers.values())


def test_a_leader_that_moved_is_followed_without_new_metadata(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster, partitions=1)
    one = cluster.fetcher(1)

    def refuse(request: FetchRequest, version: int) -> FetchResponse:
        cluster.logs[tp].leader, cluster.logs[tp].leader_epoch = 2, 1
        topic = one(request, version).responses[0]
        leader = LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
        refused = replace(refusal(0, ErrorCode.NOT_LEADER_OR_FOLLOWER), current_leader=leader)
        return FetchResponse(responses=[replace(topic, partitions=[refused])])

    cluster[1].push(FetchRequest, one, refuse)
    assert read_all(fetcher(cluster, max_partition_fetch_bytes=1), whole([tp])) == complete([tp])
    asked = [request for broker in cluster.brokers.values() for request in broker.requests(MetadataRequest)]
    assert len(asked) == 1
    assert cluster[2].requests(FetchRequest)


@pytest.mark.parametrize("fault", [HangUp, Cut])
def test_a_lost_answer_is_fetched_again(cluster: ScriptedCluster, fault: Any) -> None:
    tps = fill(cluster)
    serve = cluster.fetcher(1)
    answer = HangUp if fault is HangUp else Cut(serve, 60)
    cluster[1].push(FetchRequest, answer, serve, answer, serve, serve, answer)
    assert read_all(fetcher(cluster, max_partition_fetch_bytes=1), whole(tps)) == complete(tps)


def test_a_broker_that_dies_before_it_is_asked_ahead(cluster: ScriptedCluster) -> None:
    """Its last answer still counts: the failure of the request sent ahead must not set the position back."""
    tps = fill(cluster, partitions=1)
    serve = cluster.fetcher(1)

    def serve_and_die(request: FetchRequest, version: int) -> FetchResponse:
        response = serve(request, version)
        cluster.logs[tps[0]].leader, cluster.logs[tps[0]].leader_epoch = 2, 1
        cluster[1].stop_listening()
        return response

    cluster[1].push(FetchRequest, serve, Cut(serve_and_die, 1 << 30))
    assert read_all(fetcher(cluster, max_partition_fetch_bytes=1), whole(tps)) == complete(tps)


def test_a_silent_broker_holds_up_only_its_own_partitions(cluster: ScriptedCluster) -> None:
    tps = fill(cluster)
    cluster[1].push(FetchRequest, Silence)
    began = time.monotonic()
    order = [
        fetched.topic_partition for fetched in fetcher(cluster, request_timeout_ms=400).fetch(whole(tps))
    ]
    assert time.monotonic() - began > 0.4
    first = order.index(tps[0])
    assert set(order[:first]) == {tps[1], tps[2]}
    assert set(order[first:]) == {tps[0]}


def test_a_slow_caller_is_not_the_brokers_fault(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    reader = fetcher(cluster, max_partition_fetch_bytes=1, request_timeout_ms=50, poll_timeout_ms=60)
    offsets = []
    for fetched in reader.fetch(whole(tps, 20)):
        offsets += offsets_of(fetched.columns)
        time.sleep(0.1)
    assert offsets == list(range(20))
    assert cluster[1].connections == 1


def test_no_progress_ends_in_an_error_that_names_the_offset(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    cluster[1].on(FetchRequest, HangUp)
    began = time.monotonic()
    with pytest.raises(
        DeadlineExceededError, match=r"cannot fetch orders-0 at offset 7 \(until 50\) in 600 ms.*closed"
    ):
        list(fetcher(cluster, poll_timeout_ms=600).fetch({tps[0]: (7, 50)}))
    assert time.monotonic() - began < 30


def test_all_brokers_gone_ends_in_an_error(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    records = fetcher(cluster, poll_timeout_ms=600, max_partition_fetch_bytes=1).fetch(whole(tps))
    next(records)
    for broker in cluster.brokers.values():
        broker.stop()
    with pytest.raises(DeadlineExceededError, match=r"orders-0 at offset \d+.*connection refused"):
        list(records)


def test_brokers_that_come_back_are_found_again(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    records = fetcher(cluster, max_partition_fetch_bytes=1).fetch(whole(tps))
    offsets = offsets_of(next(records).columns)
    for broker in cluster.brokers.values():
        broker.stop()
    for broker in cluster.brokers.values():
        broker.start()
    for fetched in records:
        offsets += offsets_of(fetched.columns)
    assert offsets == list(range(50))


def test_out_of_range_names_what_there_is(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    cluster.logs[tps[0]].log_start_offset = 20
    with pytest.raises(OffsetOutOfRangeError, match=r"orders-0 at offset 3: .*\[20, 50\)") as raised:
        list(fetcher(cluster).fetch({tps[0]: (3, 30)}))
    assert (raised.value.log_start_offset, raised.value.high_watermark) == (20, 50)


def test_out_of_range_of_a_follower_asks_the_leader(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    serve = cluster.fetcher(1)

    def prefer_2(request: FetchRequest, version: int) -> FetchResponse:
        topic = serve(request, version).responses[0]
        data = replace(topic.partitions[0], preferred_read_replica=2, records=None)
        return FetchResponse(responses=[replace(topic, partitions=[data])])

    def lagging(request: FetchRequest, version: int) -> FetchResponse:
        topic = serve(request, version).responses[0]
        return FetchResponse(
            responses=[replace(topic, partitions=[refusal(0, ErrorCode.OFFSET_OUT_OF_RANGE)])]
        )

    cluster[1].push(FetchRequest, prefer_2)
    cluster[2].push(FetchRequest, lagging)
    assert read_all(fetcher(cluster, client_rack="a"), whole(tps)) == complete(tps)
    assert cluster[1].requests(FetchRequest)[0].rack_id == "a"
    assert len(cluster[2].requests(FetchRequest)) == 1


@pytest.mark.parametrize(("node_id", "by_leader"), [(3, 1), (99, 11)], ids=["known", "unknown"])
def test_records_come_from_the_preferred_replica(
    cluster: ScriptedCluster, node_id: int, by_leader: int
) -> None:
    """Or from the leader, if its replica is not in the metadata."""
    tps = fill(cluster, partitions=1)
    serve = cluster.fetcher(1)

    def prefer(node_id: int) -> Any:
        def answer(request: FetchRequest, version: int) -> FetchResponse:
            topic = serve(request, version).responses[0]
            data = replace(topic.partitions[0], preferred_read_replica=node_id, records=None)
            return FetchResponse(responses=[replace(topic, partitions=[data])])

        return answer

    cluster[1].push(FetchRequest, prefer(node_id))
    cluster[3].on(FetchRequest, serve)
    found = read_all(fetcher(cluster, max_partition_fetch_bytes=1, client_rack="c"), whole(tps))
    assert found == complete(tps)
    racks = [request.rack_id for request in cluster[1].requests(FetchRequest)]
    # A little later the leader is asked for a follower again.
    assert (racks[:2], len(racks)) == (["c", ""][:by_leader], by_leader)
    assert len(cluster[3].requests(FetchRequest)) == 11 - by_leader


def corrupted(cluster: ScriptedCluster) -> Any:
    serve = cluster.fetcher(1)

    def flip(request: FetchRequest, version: int) -> FetchResponse:
        topic = serve(request, version).responses[0]
        records = bytearray(topic.partitions[0].records or b"")
        if records:  # there are none beyond the end
            records[-3] ^= 0xFF
        data = replace(topic.partitions[0], records=memoryview(records))
        return FetchResponse(responses=[replace(topic, partitions=[data])])

    return flip


def test_a_corrupt_batch_is_fetched_once_more(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    flip, serve = corrupted(cluster), cluster.fetcher(1)
    cluster[1].push(FetchRequest, serve, flip, serve, serve, flip)
    assert read_all(fetcher(cluster, max_partition_fetch_bytes=1), whole(tps)) == complete(tps)


def test_corruption_that_stays_names_partition_and_offset(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    serve = cluster.fetcher(1)
    cluster[1].push(FetchRequest, serve)
    cluster[1].on(FetchRequest, corrupted(cluster))
    records = fetcher(cluster, max_partition_fetch_bytes=1).fetch(whole(tps))
    assert offsets_of(next(records).columns) == [0, 1, 2, 3, 4]
    with pytest.raises(CorruptRecordError, match="orders-0 at offset 5: checksum mismatch"):
        next(records)


def test_small_sets_of_many_partitions_are_decoded_together(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tps = fill(cluster, partitions=9, batches=3)
    monkeypatch.delattr(fetched_records, "decode_record_set")  # nothing is decoded alone
    ranges = whole(tps, 15) | {tps[4]: (2, 11)}
    assert read_all(fetcher(cluster), ranges) == complete(tps, 15) | {tps[4]: list(range(2, 11))}


def test_corruption_among_small_sets_stops_its_partition_only(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=5, batches=3, leader=1)  # the error waits for no other leader's answer
    batches = cluster.logs[tps[3]].batches
    batches[1] = batches[1][:-1] + bytes([batches[1][-1] ^ 1])
    found: list[tuple[TopicPartition, int]] = []
    records = fetcher(cluster).fetch(whole(tps, 15))
    rows = ((one.topic_partition, offset) for one in records for offset in offsets_of(one.columns))
    with pytest.raises(CorruptRecordError, match="orders-3 at offset 5: checksum mismatch"):
        found.extend(rows)
    assert sorted(found) == [(tp, offset) for tp in tps for offset in range(5 if tp == tps[3] else 15)]


def test_the_brokers_own_word_of_corruption_is_final(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    serve = cluster.fetcher(1)

    def refuse(request: FetchRequest, version: int) -> FetchResponse:
        topic = serve(request, version).responses[0]
        return FetchResponse(responses=[replace(topic, partitions=[refusal(0, ErrorCode.CORRUPT_MESSAGE)])])

    cluster[1].on(FetchRequest, refuse)
    with pytest.raises(BrokerError, match="orders-0 at offset 5: CORRUPT_MESSAGE"):
        list(fetcher(cluster).fetch({tps[0]: (5, 50)}))


def test_aborted_transactions_are_hidden_from_who_reads_what_is_committed(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.create("orders", 1, leader=1)
    kinds = {"attributes": 0x10, "producer_id": 7}
    log = cluster.logs[tp]
    log.batches += [
        record_batches.batch([record_batches.record(0), record_batches.record(1)], **kinds),
        record_batches.control(2, 7, 1),  # committed
        record_batches.batch([record_batches.record(0)], base_offset=3, **kinds),
        record_batches.control(4, 7, 0),  # aborted
        record_batches.batch([record_batches.record(0)], base_offset=5),
    ]
    log.end_offset = 6
    serve = cluster.fetcher(1)

    def tell(request: FetchRequest, version: int) -> FetchResponse:
        response = serve(request, version)
        assert request.isolation_level == IsolationLevel.READ_COMMITTED
        topic = response.responses[0]
        aborted = [FetchedAbortedTransaction(producer_id=7, first_offset=3)]
        partitions = [replace(partition, aborted_transactions=aborted) for partition in topic.partitions]
        return FetchResponse(responses=[replace(topic, partitions=partitions)])

    cluster[1].on(FetchRequest, tell)
    reader = fetcher(cluster, isolation_level=IsolationLevel.READ_COMMITTED)
    found = [offset for fetched in reader.fetch({tp: (0, 6)}) for offset in offsets_of(fetched.columns)]
    assert found == [0, 1, 5]


def test_fetches_carry_the_leaders_epoch(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    read_all(fetcher(cluster), whole(tps))
    (request,) = cluster[1].requests(FetchRequest)
    assert request.topics[0].partitions[0].current_leader_epoch == cluster.logs[tps[0]].leader_epoch


def test_a_partition_that_comes_twice_counts_once(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    serve = cluster.fetcher(1)

    def twice(request: FetchRequest, version: int) -> FetchResponse:
        topic = serve(request, version).responses[0]
        return FetchResponse(responses=[topic, topic, replace(topic, partitions=topic.partitions * 2)])

    cluster[1].on(FetchRequest, twice)
    assert read_all(fetcher(cluster, max_partition_fetch_bytes=1), whole(tps)) == complete(tps)


def test_a_batch_larger_than_a_fetch_comes_all_the_same(cluster: ScriptedCluster) -> None:
    """Brokers before KIP-74 cut a batch off at the limit, even if nothing else is in the response."""
    tps = cluster.create("orders", 1)
    cluster.logs[tps[0]].append([b"0/0" + b"x" * 100_000])
    serve = cluster.fetcher(1)

    def cut(request: FetchRequest, version: int) -> FetchResponse:
        topic = serve(request, version).responses[0]
        limit = request.topics[0].partitions[0].partition_max_bytes
        data = replace(topic.partitions[0], records=(topic.partitions[0].records or memoryview(b""))[:limit])
        return FetchResponse(responses=[replace(topic, partitions=[data])])

    cluster[1].on(FetchRequest, cut)
    [fetched] = fetcher(cluster, max_partition_fetch_bytes=1_000).fetch({tps[0]: (0, 1)})
    assert fetched.columns.length == 1
    assert len(cluster[1].requests(FetchRequest)) < 10
    with pytest.raises(Exception, match="no complete record batch in 50000 bytes; raise"):
        list(fetcher(cluster, fetch_max_bytes=50_000, max_partition_fetch_bytes=9).fetch({tps[0]: (0, 1)}))


def test_a_range_beyond_the_end_of_the_log_is_an_error_soon(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=2)
    began = time.monotonic()
    offsets: list[int] = []
    records = fetcher(cluster, end_of_log_wait_ms=200).fetch({tps[0]: (0, 60), tps[1]: (0, 50)})
    with pytest.raises(EndOfLogError, match=r"orders-0: offsets \[50, 60\).*high watermark 50") as raised:
        offsets.extend(offset for fetched in records for offset in offsets_of(fetched.columns))
    assert sorted(offsets) == sorted([*range(50), *range(50)])
    assert raised.value.position == 50
    assert 0.2 <= time.monotonic() - began < 30


def test_records_that_come_while_waiting_at_the_end_are_read(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    records = fetcher(cluster, end_of_log_wait_ms=5_000).fetch({tps[0]: (0, 51)})
    next(records)
    cluster.logs[tps[0]].append([b"0/50"])
    assert [offsets_of(fetched.columns) for fetched in records] == [[50]]


def hold(cluster: ScriptedCluster, tp: TopicPartition, stable: int) -> None:
    """A transaction is open in ``tp`` from ``stable`` on."""
    log = cluster.logs[tp]
    log.last_stable_offset = stable
    serve = cluster.fetcher(log.leader)

    def committed(request: FetchRequest, version: int) -> FetchResponse:
        response = serve(request, version)
        [topic] = response.responses
        [data] = topic.partitions
        if data.last_stable_offset <= request.topics[0].partitions[0].fetch_offset:
            data = replace(data, records=memoryview(b""))
        return replace(response, responses=[replace(topic, partitions=[data])])

    cluster[log.leader].on(FetchRequest, committed)


COMMITTED: dict[str, Any] = {
    "isolation_level": IsolationLevel.READ_COMMITTED,
    "max_partition_fetch_bytes": 1,
    "end_of_log_wait_ms": 50,
}


def test_an_open_transaction_is_waited_for_longer_than_the_end_of_the_log(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster, partitions=1)
    hold(cluster, tp, 20)
    records = fetcher(cluster, **COMMITTED).fetch({tp: (0, 50)})
    offsets = [offset for _ in range(4) for offset in offsets_of(next(records).columns)]
    commit = threading.Timer(0.5, hold, (cluster, tp, 50))
    commit.start()
    offsets += [offset for fetched in records for offset in offsets_of(fetched.columns)]
    commit.join()
    assert offsets == list(range(50))


def test_a_transaction_that_stays_open_is_named_after_the_poll_timeout(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster, partitions=1)
    hold(cluster, tp, 20)
    began = time.monotonic()
    offsets: list[int] = []
    records = fetcher(cluster, **COMMITTED, poll_timeout_ms=600).fetch({tp: (0, 50)})
    held = r"orders-0: offsets \[20, 50\).*an open transaction holds the last stable offset at 20"
    with pytest.raises(EndOfLogError, match=held):
        offsets.extend(offset for fetched in records for offset in offsets_of(fetched.columns))
    assert offsets == list(range(20))
    assert 0.6 <= time.monotonic() - began < 30


def test_a_topic_id_that_changed_is_a_recreated_topic(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    records = fetcher(cluster, max_partition_fetch_bytes=1).fetch(whole(tps))
    next(records)
    before, cluster.topic_ids["orders"] = cluster.topic_ids["orders"], uuid4()
    with pytest.raises(TopicRecreatedError, match="deleted and created again") as raised:
        list(records)
    assert raised.value.expected_topic_id == str(before)


def test_a_planned_topic_id_is_checked_before_the_first_record(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    planned = {"orders": uuid4()}
    with pytest.raises(TopicRecreatedError):
        list(fetcher(cluster).fetch(whole(tps), topic_ids=planned))
    assert not cluster[1].requests(FetchRequest)


def test_stale_metadata_of_a_recreated_topic_are_no_error(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    reader = fetcher(cluster)
    assert read_all(reader, whole(tps)) == complete(tps)
    cluster.topic_ids["orders"] = uuid4()
    assert read_all(reader, whole(tps)) == complete(tps)
    planned = {"orders": cluster.topic_ids["orders"]}
    assert read_all(reader, whole(tps), topic_ids=planned) == complete(tps)


def test_a_cluster_without_topic_ids_goes_by_name(cluster: ScriptedCluster) -> None:
    tps = [tp for topic in ("orders", "payments") for tp in cluster.create(topic, leader=1)]
    for tp in tps:
        cluster.logs[tp].append([tp.topic.encode()])
        cluster.topic_ids[tp.topic] = UUID(int=0)
    read = fetcher(cluster).fetch(whole(tps, until=1))
    found = {fetched.topic_partition: values_of(fetched.columns) for fetched in read}
    assert found == {tp: [tp.topic.encode()] for tp in tps}
    assert {asked.version for asked in cluster[1].asked if isinstance(asked.request, FetchRequest)} == {12}


def test_a_permanent_refusal_is_raised_at_once(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    serve = cluster.fetcher(1)

    def refuse(request: FetchRequest, version: int) -> FetchResponse:
        topic = serve(request, version).responses[0]
        denied = refusal(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return FetchResponse(responses=[replace(topic, partitions=[denied])])

    cluster[1].on(FetchRequest, refuse)
    with pytest.raises(BrokerError, match="orders-0 at offset 0: TOPIC_AUTHORIZATION_FAILED"):
        list(fetcher(cluster).fetch(whole(tps)))
    assert len(cluster[1].requests(FetchRequest)) == 1


def test_a_log_that_was_cut_back_is_no_continuation(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    serve = cluster.fetcher(1)

    def diverging(request: FetchRequest, version: int) -> FetchResponse:
        topic = serve(request, version).responses[0]
        cut_back = DivergingEpoch(epoch=0, end_offset=3)
        data = replace(topic.partitions[0], records=None, diverging_epoch=cut_back)
        return FetchResponse(responses=[replace(topic, partitions=[data])])

    cluster[1].push(FetchRequest, serve, diverging)
    with pytest.raises(LogTruncatedError, match=r"orders-0: .*cut back to offset 3 .*read up to 5"):
        list(fetcher(cluster, max_partition_fetch_bytes=1).fetch(whole(tps)))


def test_the_epoch_of_what_was_fetched_last_is_told_and_forgiven(cluster: ScriptedCluster) -> None:
    """A broker that has dropped the epoch from its cache says OFFSET_OUT_OF_RANGE: asked without,
    it serves.
    """
    tps = fill(cluster, partitions=1)
    serve = cluster.fetcher(1)

    def forgotten(request: FetchRequest, version: int) -> FetchResponse:
        topic = serve(request, version).responses[0]
        out = refusal(0, ErrorCode.OFFSET_OUT_OF_RANGE)
        return FetchResponse(responses=[replace(topic, partitions=[out])])

    cluster[1].push(FetchRequest, serve, forgotten)
    assert read_all(fetcher(cluster, max_partition_fetch_bytes=1), whole(tps)) == complete(tps)
    epochs = [r.topics[0].partitions[0].last_fetched_epoch for r in cluster[1].requests(FetchRequest)]
    assert epochs[:4] == [-1, 0, -1, 0]


def test_a_top_level_error_is_retried_with_backoff(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    failed = FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    cluster[1].push(FetchRequest, failed, failed)
    assert read_all(fetcher(cluster), whole(tps)) == complete(tps)
    assert len(cluster[1].requests(FetchRequest)) == 3


def test_a_throttled_broker_is_left_alone(cluster: ScriptedCluster) -> None:
    tps = fill(cluster)
    serve = cluster.fetcher(1)

    def throttle(request: FetchRequest, version: int) -> FetchResponse:
        return replace(serve(request, version), throttle_time_ms=300)

    cluster[1].push(FetchRequest, throttle)
    assert read_all(fetcher(cluster, max_partition_fetch_bytes=1), whole(tps)) == complete(tps)
    at = [asked.at for asked in cluster[1].asked if isinstance(asked.request, FetchRequest)]
    assert at[1] - at[0] > 0.28


def test_a_batch_after_the_gap_of_compaction_counts(cluster: ScriptedCluster) -> None:
    tps = cluster.create("orders", 1)
    log = cluster.logs[tps[0]]
    log.append([b"0/0"])
    log.end_offset = 40
    log.append([b"0/40", b"0/41"])
    assert read_all(fetcher(cluster), {tps[0]: (0, 42)}) == {tps[0]: [0, 40, 41]}
    assert read_all(fetcher(cluster), {tps[0]: (5, 30)}) == {tps[0]: []}


def test_a_last_offset_that_lies_is_not_believed(cluster: ScriptedCluster) -> None:
    """The header says where to go on before anything is checked; the decoded records have the last word."""
    tps = fill(cluster, partitions=1)
    serve = cluster.fetcher(1)

    def lie(request: FetchRequest, version: int) -> FetchResponse:
        topic = serve(request, version).responses[0]
        records = bytearray(topic.partitions[0].records or b"")
        struct.pack_into(">i", records, 23, 30)
        data = replace(topic.partitions[0], records=memoryview(records))
        return FetchResponse(responses=[replace(topic, partitions=[data])])

    cluster[1].push(FetchRequest, lie)
    assert read_all(fetcher(cluster, max_partition_fetch_bytes=1), whole(tps)) == complete(tps)


def test_only_the_columns_asked_for_are_filled(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    fetched = next(fetcher(cluster).fetch(whole(tps), frozenset({"offset"})))
    assert fetched.columns.offset is not None
    assert fetched.columns.value is None
    assert fetched.columns.key is None


def test_a_fetch_that_is_given_up_leaves_the_connection_usable(cluster: ScriptedCluster) -> None:
    tps = fill(cluster, partitions=1)
    reader = fetcher(cluster, max_partition_fetch_bytes=1)
    records = reader.fetch(whole(tps))
    next(records)
    records.close()  # type: ignore[attr-defined]
    assert read_all(reader, whole(tps)) == complete(tps)
    assert cluster[1].connections == 1


def test_a_hundred_partitions_of_one_broker(cluster: ScriptedCluster) -> None:
    tps = cluster.create("orders", 100, leader=2)
    for tp in tps:
        cluster.logs[tp].append([b"%d/%d" % (tp.partition, i) for i in range(5)])
    reader = fetcher(cluster, request_timeout_ms=60_000)  # else it is tried again
    assert read_all(reader, whole(tps, 5)) == complete(tps, 5)
    assert len(cluster[2].requests(FetchRequest)) == 1
