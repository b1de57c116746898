"""`NaivePartition`: a partition with a replica on each broker, as naive as can be.

A batch knows the one that it was written behind: the log that a record belongs to is the chain of these,
however often leaders were elected that lack its end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.protocol.api.fetch import (
    DivergingEpoch,
    FetchedAbortedTransaction,
    FetchPartition,
    PartitionData,
)
from spark_kafka_native.kafka.protocol.api.metadata import LeaderIdAndEpoch
from support.record_batches import batch, control, record

E = ErrorCode
NODES = (1, 2, 3)


@dataclass(eq=False)
class Transaction:
    """``committed`` is None until its first marker is written; one that a log has lost is written again."""

    producer_id: int
    committed: bool | None = None
    batches: int = 0


@dataclass(eq=False)
class Batch:
    base: int
    end: int
    epoch: int
    before: Batch | None
    values: dict[int, int]
    """By offset, without those that were compacted away."""
    transaction: Transaction | None = None
    is_marker: bool = False

    def encoded(self) -> bytes:
        transaction = self.transaction
        if self.is_marker:
            assert transaction is not None
            data = control(self.base, transaction.producer_id, int(bool(transaction.committed)))
        else:
            records = [record(at - self.base, b"%d" % value) for at, value in self.values.items()]
            data = batch(
                records,
                base_offset=self.base,
                last_offset_delta=self.end - self.base - 1,
                attributes=0x10 if transaction else 0,
                producer_id=transaction.producer_id if transaction else -1,
            )
        return data[:12] + self.epoch.to_bytes(4) + data[16:]  # the checksum does not cover it


def chain(tip: Batch | None, down_to: int = 0) -> Iterator[Batch]:
    """The log that ends with ``tip``, backwards, as far as it has offsets from ``down_to`` on."""
    while tip is not None and tip.end > down_to:
        yield tip
        tip = tip.before


@dataclass(eq=False)
class Replica:
    log: list[Batch] = field(default_factory=list)
    tip: Batch | None = None
    """The last batch, also where retention has taken it."""
    epoch: int = 0
    """The leader epoch that the broker has heard of."""
    leader: int = 1
    """Of that epoch."""
    synced: int = 0
    """The epoch of the leader that it has copied last."""
    high_watermark: int = 0
    start: int = 0
    epochs: dict[int, int] = field(default_factory=lambda: {0: 0})
    """Where each leader epoch begins in this log."""

    @property
    def end(self) -> int:
        return self.tip.end if self.tip else 0

    def open_transactions(self, until: int) -> dict[int, tuple[Transaction, int]]:
        """Those without a marker before ``until``, and where they begin, by producer id."""
        found: dict[int, tuple[Transaction, int]] = {}
        for one in self.log:
            if one.transaction is not None and one.end <= until:
                if one.is_marker:
                    found.pop(one.transaction.producer_id, None)
                else:
                    found.setdefault(one.transaction.producer_id, (one.transaction, one.base))
        return found

    @property
    def stable(self) -> int:
        """The last stable offset."""
        begins = [at for _, at in self.open_transactions(self.high_watermark).values()]
        return max(self.start, min([*begins, self.high_watermark]))

    def aborted(self, begin: int, until: int) -> list[FetchedAbortedTransaction]:
        first: dict[Transaction, int] = {}
        found = []
        for one in self.log:
            transaction = one.transaction
            if transaction is None:
                continue
            first.setdefault(transaction, one.base)
            if one.is_marker and not transaction.committed and one.end > begin and first[transaction] < until:
                at = first[transaction]
                found.append(FetchedAbortedTransaction(producer_id=transaction.producer_id, first_offset=at))
        return found

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """As Kafka's LeaderEpochFileCache: the epoch up to the one in question, and where it ends."""
        later = [one for one in self.epochs if one > epoch]
        if epoch == max(self.epochs, default=-1):
            return epoch, self.end
        if not later:
            return -1, -1
        end = self.epochs[min(later)]
        return max((one for one in self.epochs if one <= epoch), default=epoch), end

    def assign(self, epoch: int, at: int) -> None:
        self.epochs = {one: begin for one, begin in self.epochs.items() if one < epoch and begin < at}
        self.epochs[epoch] = at


class NaivePartition:
    """``cuts`` counts the elections that have lost records which may have been read."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.leader = rng.choice(NODES)
        self.epoch = 0
        self.replicas = {node_id: Replica(leader=self.leader) for node_id in NODES}
        self.batches: list[Batch] = []
        self.start = 0
        """The highest first offset that a leader has had."""
        self.cuts = self.committed = 0
        """The latter: where the records end that may have been read, and that no clean election loses."""

    @property
    def led(self) -> Replica:
        return self.replicas[self.leader]

    @property
    def sure(self) -> int:
        """Where the shortest log ends of those that brokers lead, or believe to lead: a reader that follows
        the wrong one can't know of an offset behind it."""
        return min(one.end for node_id, one in self.replicas.items() if one.leader == node_id)

    def append(self, values: list[int], producer_id: int | None) -> None:
        transaction = None
        if producer_id is not None:
            known = self.led.open_transactions(self.led.end).get(producer_id)
            transaction = known[0] if known else Transaction(producer_id)
            transaction.batches += 1
        base = self.led.end
        self._add(values, base + len(values), transaction)

    def end_transactions(self, chance: float = 1.0) -> None:
        for transaction, _ in self.led.open_transactions(self.led.end).values():
            if self.rng.random() < chance:
                if transaction.committed is None:
                    transaction.committed = self.rng.random() < 0.5
                self._add([], self.led.end + 1, transaction, is_marker=True)

    def _add(
        self, values: list[int], end: int, transaction: Transaction | None, *, is_marker: bool = False
    ) -> None:
        led = self.led
        numbered = dict(enumerate(values, led.end))
        added = Batch(led.end, end, self.epoch, led.tip, numbered, transaction, is_marker)
        led.log.append(added)
        led.tip = added
        self.batches.append(added)

    def compact(self, chance: float) -> None:
        """Records, and batches without any, go. Batches of the active segment stay."""
        led = self.led
        until = min(led.stable, led.end - 1, *(one.high_watermark for one in self.replicas.values()))
        for one in [one for one in led.log if one.end <= until and not one.is_marker]:
            for at in [at for at in one.values if self.rng.random() < chance]:
                del one.values[at]
            if not one.values and self.rng.random() < 0.5:
                if one.transaction is not None:
                    one.transaction.batches -= 1
                for replica in self.replicas.values():
                    replica.log = [other for other in replica.log if other is not one]
        for one in [one for one in led.log if one.is_marker and one.end <= until]:
            if one.transaction is not None and not one.transaction.batches and self.rng.random() < 0.5:
                for replica in self.replicas.values():
                    replica.log = [other for other in replica.log if other is not one]

    def trim(self) -> None:
        """Retention, or a call that deletes records; the followers hear of it as they copy."""
        led = self.led
        if led.high_watermark > led.start:
            self._trim(led, self.rng.randint(led.start, led.high_watermark))

    def _trim(self, replica: Replica, start: int) -> None:
        self.start = max(self.start, start)
        if start <= replica.start:
            return
        replica.start = start
        replica.log = [one for one in replica.log if one.end > start]
        before = [epoch for epoch, begin in replica.epochs.items() if begin <= start]
        replica.epochs = {one: begin for one, begin in replica.epochs.items() if begin > start}
        if before:
            replica.epochs[max(before)] = start

    def copy(self, node_id: int, *, whole: bool = False) -> None:
        """A follower copies some of what it lacks, or all."""
        led, replica = self.led, self.replicas[node_id]
        self.inform(node_id)
        if replica is not led:
            known = set(chain(replica.tip))
            count = sum(one in known for one in led.log)
            count = (
                len(led.log) if whole else self.rng.randint(max(count, min(1, len(led.log))), len(led.log))
            )
            replica.log = led.log[:count]
            replica.tip = led.tip if count == len(led.log) else led.log[count - 1]
            replica.epochs = {epoch: at for epoch, at in led.epochs.items() if at < max(replica.end, 1)}
            replica.start = min(led.start, replica.end)
            replica.synced = self.epoch
            replica.high_watermark = min(led.high_watermark, replica.end)
        ends = [one.end for one in self.replicas.values() if one is not led and one.synced == self.epoch]
        led.high_watermark = max([led.high_watermark, *ends])
        self.committed = max(self.committed, led.high_watermark)

    def inform(self, node_id: int) -> None:
        replica = self.replicas[node_id]
        replica.epoch, replica.leader = self.epoch, self.leader

    def elect(self, *, clean: bool) -> None:
        former = self.led
        able = [
            node_id
            for node_id, one in self.replicas.items()
            if not clean or (one.synced == self.epoch and one.end >= self.committed)
        ]
        if not clean and self.rng.random() < 0.5:
            able = [min(NODES, key=lambda node_id: self.replicas[node_id].end)]
        self.leader = self.rng.choice([*able, self.leader] if clean else able)
        self.epoch += 1
        led = self.led
        led.synced = self.epoch
        if led is not former:
            known = set(chain(led.tip))
            if any(one.base < self.committed and one not in known for one in chain(former.tip)):
                self.cuts += 1
                self.committed = led.end
        led.assign(self.epoch, led.end)
        self.inform(self.leader)

    # Requests.

    def refusal(self, node_id: int, epoch: int, *, of_leader: bool) -> ErrorCode:
        replica = self.replicas[node_id]
        if of_leader and replica.leader != node_id:
            return E.NOT_LEADER_OR_FOLLOWER
        if 0 <= epoch < replica.epoch:
            return E.FENCED_LEADER_EPOCH
        return E.UNKNOWN_LEADER_EPOCH if epoch > replica.epoch else E.NONE

    def fetch(self, node_id: int, asked: FetchPartition, *, committed: bool, near: int | None) -> Any:
        """Without records; and the batches that there are from the offset on."""
        replica = self.replicas[node_id]
        start, stable, offset = replica.start, replica.stable, asked.fetch_offset
        until = stable if committed else replica.high_watermark
        found = {
            "partition_index": asked.partition,
            "error_code": self.refusal(node_id, asked.current_leader_epoch, of_leader=False),
            "high_watermark": replica.high_watermark,
            "last_stable_offset": stable,
            "log_start_offset": start,
            "aborted_transactions": None,
            "records": None,
        }
        if found["error_code"]:
            named = LeaderIdAndEpoch(leader_id=replica.leader, leader_epoch=replica.epoch)
            return PartitionData(**found | {"current_leader": named}), []
        epoch = asked.last_fetched_epoch
        diverging = (-1, -1) if epoch < 0 else replica.end_of_epoch(epoch)
        is_known = offset >= start and (epoch < 0 or diverging[0] >= 0)
        if is_known and epoch >= 0 and (diverging[0] < epoch or diverging[1] < offset):
            at = DivergingEpoch(epoch=diverging[0], end_offset=diverging[1])
            return PartitionData(**found | {"diverging_epoch": at}), []
        if not is_known or offset > replica.end:
            return PartitionData(**found | {"error_code": E.OFFSET_OUT_OF_RANGE}), []
        if replica.leader == node_id and near not in (None, node_id):
            follower = self.replicas[near or 0]
            if follower.synced == self.epoch and follower.end >= offset:
                return PartitionData(**found | {"preferred_read_replica": near}), []
        if committed:
            found["aborted_transactions"] = replica.aborted(offset, until)
        return PartitionData(**found), [one for one in replica.log if offset < one.end <= until]
