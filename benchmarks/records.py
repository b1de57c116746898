"""Record batches to columns and back, next to kafka-python's and aiokafka's codecs in the same run.

    python benchmarks/records.py

Everybody reads the very same bytes, checksums included. The peers make Python objects, ours makes Arrow
columns; aiokafka's codec is compiled (Cython), kafka-python's is Python. Interleaved rounds, CPU time, the
best one counts.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from harness.rounds import best_of_rounds
from harness.table import print_table, rate
from harness.values import json_like
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords
from kafka.record.memory_records import MemoryRecordsBuilder

from spark_kafka_native.kafka import HeaderKeys
from spark_kafka_native.kafka.records import decode, encode, kernel, numpy_kernel
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.compression import Codec

RECORDS = 10_000
SMALL_BATCH = 100
QUIET_PARTITIONS, QUIET_RECORDS = 64, 15
"""What one task of a quiet stream reads in a micro-batch."""
RUN_S = 0.05
"""A run repeats the work for about this long, so that the clock and the scheduler do not matter."""

COMPILED = kernel.load_compiled()
NO_PYTHON_CODEC = {Codec.LZ4, Codec.ZSTD}
"""kafka-python needs libraries for these that it does not bring along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Records, how they are cut into batches and compressed, and our target (records/s)."""

    label: str
    values: list[bytes]
    batch_records: int = RECORDS
    codec: Codec = Codec.NONE
    wanted: float | None = None
    wanted_numpy: float | None = None

    @property
    def keys(self) -> list[bytes]:
        return [number.to_bytes(8, "big") for number in range(len(self.values))]

    @property
    def timestamps(self) -> list[int]:
        return [1_700_000_000_000 + number // 10 for number in range(len(self.values))]

    def columns(self) -> RecordColumns:
        return RecordColumns(
            length=len(self.values),
            timestamp_ms=np.array(self.timestamps),
            key=pa.array(self.keys, pa.binary()),
            value=pa.array(self.values, pa.binary()),
        )

    def record_set(self) -> bytes:
        """The batches one after the other, with the offsets that a broker would give them."""
        columns, out = self.columns(), bytearray()
        for start in range(0, columns.length, self.batch_records):
            batch = encode.encode_record_batch(
                columns, rows=slice(start, start + self.batch_records), codec=self.codec
            )
            batch[:8] = start.to_bytes(8, "big")
            out += batch
        return bytes(out)


@contextmanager
def using(chosen: kernel.Kernel) -> Iterator[None]:
    users = (decode, encode)
    before = [user.kernel for user in users]
    for user in users:
        user.kernel = chosen
    yield
    for user, kernel_before in zip(users, before, strict=True):
        user.kernel = kernel_before


def decode_ours(chosen: kernel.Kernel, data: bytes, wanted: frozenset[str] | None = None) -> None:
    with using(chosen):
        decode.decode_record_set(data, fetch_offset=0, columns=wanted)


def decode_together(chosen: kernel.Kernel, sets: list[decode.RecordSetSlice]) -> None:
    with using(chosen):
        found = decode.decode_record_sets(
            sets, columns=None, header_keys=HeaderKeys.STRICT, check_crcs=True, max_bytes=1 << 20
        )
    if found is None:
        raise ValueError("they have to be decoded alone")


def decode_peer(records: Callable[[bytes], object], data: bytes) -> None:
    """Every record's offset, timestamp, key and value as Python objects; that is all that a loop could
    want."""
    batches = records(data)
    while (batch := batches.next_batch()) is not None:
        if not batch.validate_crc():
            raise ValueError("checksum")
        for record in batch:
            _ = record.offset, record.timestamp, record.key, record.value


def encode_ours(
    chosen: kernel.Kernel, columns: RecordColumns, codec: Codec, rows: np.ndarray | None = None
) -> None:
    with using(chosen):
        encode.encode_record_batch(columns, codec=codec, rows=rows)


def encode_kafka_python(case: Case, rows: list[tuple[int, bytes, bytes]]) -> None:
    builder = MemoryRecordsBuilder(2, int(case.codec), 1 << 30)
    for timestamp, key, value in rows:
        builder.append(timestamp, key, value)
    builder.close()


def encode_aiokafka(case: Case, rows: list[tuple[int, bytes, bytes]]) -> None:
    builder = DefaultRecordBatchBuilder(2, int(case.codec), 0, -1, -1, -1, 1 << 30)
    for offset, (timestamp, key, value) in enumerate(rows):
        builder.append(offset, timestamp, key, value, [])
    builder.build()


def seconds_per_call(work: Callable[[], object]) -> float:
    """CPU time, for nothing here waits: other work on the machine should not count."""
    calls, began = 0, time.process_time()
    while (spent := time.process_time() - began) < RUN_S:
        work()
        calls += 1
    return spent / calls


def decoding(case: Case) -> dict[str, Callable[[], object]]:
    data = case.record_set()
    contenders: dict[str, Callable[[], object]] = {
        "compiled": partial(decode_ours, COMPILED, data),
        "NumPy": partial(decode_ours, numpy_kernel, data),
        "aiokafka": partial(decode_peer, AiokafkaRecords, data),
        "kafka-python": partial(decode_peer, KafkaPythonRecords, data),
    }
    if COMPILED is None:
        del contenders["compiled"]
    if case.codec in NO_PYTHON_CODEC:
        del contenders["kafka-python"]
    return contenders


def encoding(case: Case) -> dict[str, Callable[[], object]]:
    columns = case.columns()
    rows = list(zip(case.timestamps, case.keys, case.values, strict=True))
    contenders: dict[str, Callable[[], object]] = {
        "compiled": partial(encode_ours, COMPILED, columns, case.codec),
        "NumPy": partial(encode_ours, numpy_kernel, columns, case.codec),
        "aiokafka": partial(encode_aiokafka, case, rows),
        "kafka-python": partial(encode_kafka_python, case, rows),
    }
    if COMPILED is None:
        del contenders["compiled"]
    if case.codec in NO_PYTHON_CODEC:
        del contenders["kafka-python"]
    return contenders


def measure(
    title: str, cases: list[Case], build: Callable[[Case], dict], rounds: int
) -> dict[str, dict[str, float]]:
    """Print one table; returns records per second by case and contender."""
    speeds: dict[str, dict[str, float]] = {}
    rows = []
    for case in cases:
        count = len(case.values)
        best = best_of_rounds(
            {who: partial(seconds_per_call, work) for who, work in build(case).items()}, rounds
        )
        speeds[case.label] = {who: count / seconds for who, seconds in best.items()}
        ours = best.get("compiled", best["NumPy"])
        peers = [best[who] / ours if who in best else None for who in ("aiokafka", "kafka-python")]
        rows.append(
            [
                case.label,
                *(rate(count, best[who]) if who in best else "-" for who in ("compiled", "NumPy")),
                *(rate(count, best[who]) if who in best else "-" for who in ("aiokafka", "kafka-python")),
                *("-" if ratio is None else f"{ratio:.0f}x" for ratio in peers),
                verdict(case, speeds[case.label]),
            ]
        )
    header = [
        "records/s",
        "compiled",
        "NumPy",
        "aiokafka",
        "kafka-python",
        "vs aiokafka",
        "vs kafka-python",
        "target",
    ]
    print_table(title, header, rows)
    return speeds


def measure_quiet_partitions(rounds: int) -> None:
    """Print what a task over many quiet partitions spends on decoding."""
    case = Case(label="", values=random_values(100, QUIET_RECORDS))
    one = decode.RecordSetSlice(memoryview(case.record_set()), 0, QUIET_RECORDS)
    sets = [one] * QUIET_PARTITIONS

    def alone(chosen: kernel.Kernel) -> None:
        for each in sets:
            decode_ours(chosen, each.data)

    kernels = {"NumPy": numpy_kernel} if COMPILED is None else {"compiled": COMPILED, "NumPy": numpy_kernel}
    works = {f"{who}, one by one": partial(alone, chosen) for who, chosen in kernels.items()}
    works |= {f"{who}, together": partial(decode_together, chosen, sets) for who, chosen in kernels.items()}
    best = best_of_rounds({who: partial(seconds_per_call, work) for who, work in works.items()}, rounds)
    title = f"Decoding {QUIET_RECORDS} records of 100 B of each of {QUIET_PARTITIONS} partitions"
    print_table(title, ["", "ms"], [[who, f"{1000 * seconds:.2f}"] for who, seconds in best.items()])


def verdict(case: Case, speeds: dict[str, float]) -> str:
    words = []
    for who, wanted in (("compiled", case.wanted), ("NumPy", case.wanted_numpy)):
        if wanted is not None and who in speeds:
            mark = "met" if speeds[who] >= wanted else "MISSED"
            words.append(f"{who} >= {wanted / 1e6:g} M: {mark}")
    return ", ".join(words)


def random_values(size: int, count: int = RECORDS, *, vary: bool = False) -> list[bytes]:
    rng = random.Random(size)
    return [rng.randbytes(rng.randrange(2 * size) if vary else size) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    small, large = random_values(100), random_values(1024)
    events = list(json_like(RECORDS, 300))
    plain = Case(label="100 B, batches of 10,000", values=small, wanted=12e6, wanted_numpy=5e6)
    cut = Case(label="100 B, batches of 100", values=small, batch_records=SMALL_BATCH)
    speeds = measure(
        "Decoding one fetch of 10,000 records",
        [
            plain,
            cut,
            Case(label="0 - 200 B, batches of 10,000", values=random_values(100, vary=True)),
            Case(label="1 KiB, batches of 10,000", values=large, wanted=3e6),
            *(Case(label=f"JSON of 300 B, {c.name.lower()}", values=events, codec=c) for c in Codec),
        ],
        decoding,
        rounds,
    )
    for who in ("compiled", "NumPy"):
        if who in speeds[plain.label]:
            kept = speeds[cut.label][who] / speeds[plain.label][who]
            mark = "met" if kept > 0.5 else "MISSED"
            print(
                f"  {who}: batches of 100 keep {kept:.0%} of the speed of batches of 10,000 (> 50%: {mark})"
            )
    measure_quiet_partitions(rounds)
    measure(
        "Encoding one batch of 10,000 records",
        [
            Case(label="100 B", values=small, wanted=8e6),
            Case(label="1 KiB", values=large),
            *(Case(label=f"JSON of 300 B, {c.name.lower()}", values=events, codec=c) for c in Codec),
        ],
        encoding,
        rounds,
    )


if __name__ == "__main__":
    main()
