"""Protobuf to columns and back, without Kafka and Spark: this format, `ptars` alone, `protobuf` by rows.

    python benchmarks/protobuf_columns.py            # half a minute
    python benchmarks/protobuf_columns.py --quick    # shows that it runs, and no more

Messages of nine fields, and nested ones with lists and maps; the best of several rounds in CPU time counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import ptars
import pyarrow as pa
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from harness.table import print_table, rate

from spark_kafka_native.formats.protobuf.compile import compile_proto
from spark_kafka_native.formats.protobuf.descriptors import in_order, to_text
from spark_kafka_native.formats.protobuf.protobuf_format import ProtobufFormat

PROTO = """syntax = "proto3"; package bench;
message Flat { int64 id = 1; string name = 2; double amount = 3; bool ok = 4; int32 count = 5;
  string city = 6; float ratio = 7; bytes raw = 8; sint64 delta = 9; }
message Point { double x = 1; double y = 2; }
message Nested { int64 id = 1; Point at = 2; repeated string tags = 3; repeated Point path = 4;
  map<string, int64> counts = 5; string name = 6; }
"""


def flat(index: int) -> dict[str, Any]:
    return {
        "id": index * 1_000_003,
        "name": f"customer-{index}",
        "amount": index / 7,
        "ok": True,
        "count": index % 1_000 + 1,
        "city": "Amsterdam",
        "ratio": 0.5,
        "raw": b"0123456789abcdef",
        "delta": -index - 1,
    }


def nested(index: int) -> dict[str, Any]:
    path = [{"x": float(one + 1), "y": 1.0} for one in range(4)]
    tags = ["a", "bb", "ccc"]
    return {
        "id": index + 1,
        "at": path[0],
        "tags": tags,
        "path": path,
        "counts": {"a": 1, "b": 2},
        "name": "n",
    }


def best_s(run: Callable[[], object], rounds: int) -> float:
    """CPU seconds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def rows_to_columns(made: Any, payloads: list[bytes]) -> pa.RecordBatch:
    """By `protobuf` alone: a message at a time, a field at a time."""
    names = [one.name for one in made.DESCRIPTOR.fields]
    messages = [made.FromString(one) for one in payloads]
    return pa.record_batch([[getattr(one, name) for one in messages] for name in names], names)


def measure(
    label: str, kind: Any, make: Callable[[int], dict[str, Any]], count: int, rounds: int
) -> list[str]:
    made = GetMessageClass(kind)
    payloads = [made(**make(index)).SerializeToString() for index in range(count)]
    column = pa.array(payloads, pa.binary())
    settings = {"descriptor": to_text(kind), "message": kind.full_name}
    resolved = ProtobufFormat().resolve_read(settings)
    assert resolved.type is not None
    decoder = ProtobufFormat().decoder(resolved.type, resolved.settings)
    encoder = ProtobufFormat().encoder(resolved.type, resolved.settings)
    handler: Any = ptars.HandlerPool([kind.file]).get_for_message(kind)
    rows, batch = decoder.decode(column).array, handler.array_to_record_batch(column)
    assert encoder.encode(rows).equals(column)
    runs: list[Callable[[], object]] = [
        lambda: decoder.decode(column),
        lambda: handler.array_to_record_batch(column),
        *([lambda: rows_to_columns(made, payloads)] if label == "flat" else []),
        lambda: encoder.encode(rows),
        lambda: handler.record_batch_to_array(batch),
    ]
    rates = [rate(count, best_s(run, rounds)) for run in runs]
    return [label, *rates[:2], rates[2] if label == "flat" else "", *rates[-2:]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few messages, one round")
    quick = parser.parse_args().quick
    count, rounds = (2_000, 1) if quick else (200_000, 7)
    pool = DescriptorPool()
    for file in in_order(compile_proto("bench.proto", {"bench.proto": PROTO})):
        pool.Add(file)
    kinds = {"flat": flat, "nested": nested}
    rows = [
        measure(label, pool.FindMessageTypeByName(f"bench.{label.capitalize()}"), make, count, rounds)
        for label, make in kinds.items()
    ]
    header = ["messages/s", "read", "ptars alone", "protobuf by rows", "written", "ptars alone"]
    print_table(f"{count:,} messages", header, rows)


if __name__ == "__main__":
    main()
