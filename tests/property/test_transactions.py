"""Transactions of several producers, interleaved at random and read as a broker serves them, against a model
that keeps each record's fate."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from support.hooks.fresh_seeds import try_seeds
from support.record_batches import EACH_KERNEL, batch, control, record, using_kernel

from spark_kafka_native.kafka.model import AbortedTransaction
from spark_kafka_native.kafka.records.compression import Codec, compress
from spark_kafka_native.kafka.records.decode import decode_record_set

TRANSACTIONAL = 0x10
ABORT, COMMIT = 0, 1
PRODUCERS = (1, 2, 3, 2**40)


@dataclass
class Transaction:
    """What the model knows of one: where it began, its records, how and where it ended."""

    first_offset: int
    offsets: list[int] = field(default_factory=list)
    end: int | None = None
    aborted: bool = False


@dataclass
class ModelLog:
    """A partition's log as bytes, and which offsets a read_committed reader is to see."""

    data: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    end_offset: int = 0
    plain: list[int] = field(default_factory=list)
    ended: list[tuple[int, Transaction]] = field(default_factory=list)
    open: dict[int, Transaction] = field(default_factory=dict)

    def add(self, data: bytes, count: int) -> list[int]:
        offsets = list(range(self.end_offset, self.end_offset + count))
        self.data.append(data)
        self.starts.append(self.end_offset)
        self.end_offset += count
        return offsets

    def add_records(self, rng: random.Random, producer_id: int | None) -> None:
        count, codec = rng.randrange(1, 4), rng.choice([Codec.NONE, Codec.NONE, Codec.LZ4])
        body = b"".join(record(i, b"%d" % (self.end_offset + i)) for i in range(count))
        attributes = codec | (0 if producer_id is None else TRANSACTIONAL)
        data = batch(
            base_offset=self.end_offset,
            body=bytes(compress(codec, body)),
            count=count,
            attributes=attributes,
            # An idempotent producer's batches carry its id, too, outside of transactions.
            producer_id=rng.choice([-1, *PRODUCERS]) if producer_id is None else producer_id,
        )
        offsets = self.add(data, count)
        if producer_id is None:
            self.plain += offsets
        else:
            self.open.setdefault(producer_id, Transaction(offsets[0])).offsets += offsets

    def end(self, producer_id: int, kind: int) -> None:
        (offset,) = self.add(control(self.end_offset, producer_id, kind), 1)
        transaction = self.open.pop(producer_id, None)
        if transaction is not None:  # a marker may also end a transaction without records here
            transaction.end, transaction.aborted = offset, kind == ABORT
            self.ended.append((producer_id, transaction))

    def visible(self, start: int) -> list[int]:
        committed = [o for _, t in self.ended if not t.aborted for o in t.offsets]
        return sorted(o for o in self.plain + committed if o >= start)

    def aborted(self, start: int, rng: random.Random) -> list[AbortedTransaction]:
        """What a broker lists for a fetch from ``start``: in no order, and perhaps more than once."""
        found = [
            AbortedTransaction(producer_id=producer_id, first_offset=transaction.first_offset)
            for producer_id, transaction in self.ended
            if transaction.aborted and transaction.end is not None and transaction.end >= start
        ]
        rng.shuffle(found)
        return found + found[: rng.randrange(2)]


def write_log(rng: random.Random) -> ModelLog:
    log = ModelLog()
    for _ in range(rng.randrange(1, 40)):
        producer_id = rng.choice(PRODUCERS)
        match rng.randrange(6):
            case 0:
                log.add_records(rng, None)
            case 1:
                log.end(producer_id, ABORT)
            case 2:
                log.end(producer_id, COMMIT)
            case _:
                log.add_records(rng, producer_id)
    for producer_id in list(log.open):  # as far as the last stable offset all transactions have ended
        log.end(producer_id, rng.choice([ABORT, COMMIT]))
    return log


@EACH_KERNEL
def test_a_reader_sees_what_was_committed_and_nothing_else(kernel) -> None:
    try_seeds(lambda seed: check(kernel, seed), "aborted transactions", range(150))


def check(kernel, seed: int) -> None:
    rng = random.Random(seed)
    log = write_log(rng)
    first = rng.randrange(len(log.data))
    # The broker begins at the batch that holds the offset, which may be in its middle.
    start = log.starts[first] + rng.randrange(2)
    data, aborted = b"".join(log.data[first:]), log.aborted(start, rng)
    with using_kernel(kernel):
        decoded = decode_record_set(data, fetch_offset=start, aborted_transactions=aborted)
        assert decoded.columns.offset.tolist() == log.visible(start)
        assert decoded.columns.value.to_pylist() == [b"%d" % offset for offset in log.visible(start)]
        assert decoded.next_offset == max(log.end_offset, start)
        # In pieces it is the same: each call takes what the last one left of the transactions.
        seen: list[int] = []
        position, left = start, tuple(aborted)
        while data:
            decoded = decode_record_set(
                data,
                fetch_offset=position,
                aborted_transactions=left,
                max_records=rng.choice([1, 2, 5]),
                max_bytes=rng.choice([None, 50]),
            )
            seen += decoded.columns.offset.tolist()
            assert (decoded.consumed_bytes, decoded.next_offset) > (0, position)
            position, data, left = (
                decoded.next_offset,
                data[decoded.consumed_bytes :],
                decoded.aborted_transactions,
            )
        assert seen == log.visible(start)


@EACH_KERNEL
def test_the_model_has_what_it_is_meant_to_have(kernel) -> None:
    """Aborted transactions of two producers overlap in many of the logs, and many start within one."""
    overlaps = 0
    for seed in range(150):
        spans = [
            (p, t.first_offset, t.end or 0) for p, t in write_log(random.Random(seed)).ended if t.aborted
        ]
        overlaps += any(a[0] != b[0] and a[1] < b[1] < a[2] < b[2] for a in spans for b in spans)
    assert overlaps > 50
