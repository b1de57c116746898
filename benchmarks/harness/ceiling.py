"""The Python Data Source API alone: a reader with Arrow batches that exist already, a writer that drops its
own.

Nothing that is built on this API can be faster than these two. They are imported by Spark's Python workers.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, "
    "timestamp timestamp, timestampType int"
)


class CeilingSource(DataSource):
    """``format("ceiling")``: options ``rows``, ``tasks``, ``batchRows``, ``valueBytes``."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> CeilingReader:
        return CeilingReader(schema, {name: int(value) for name, value in self.options.items()})

    def writer(self, schema: StructType, overwrite: bool) -> DroppingWriter:  # noqa: ARG002
        return DroppingWriter()


class Task(InputPartition):
    """Rows that one task yields."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


class CeilingReader(DataSourceReader):
    """Yields one prebuilt batch until the rows are used up."""

    def __init__(self, schema: StructType, options: dict[str, int]) -> None:
        self.schema = schema
        self.options = options

    def partitions(self) -> list[Task]:
        rows, tasks = self.options["rows"], self.options["tasks"]
        return [Task(rows // tasks + (number < rows % tasks)) for number in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        schema = to_arrow_schema(self.schema, timezone="UTC")
        batch = prebuilt_batch(schema, self.options.get("batchrows", 10_000), self.options["valuebytes"])
        left = partition.rows
        while left >= batch.num_rows:
            yield batch
            left -= batch.num_rows
        if left:
            yield batch.slice(0, left)


@cache
def prebuilt_batch(schema: pa.Schema, rows: int, value_bytes: int) -> pa.RecordBatch:
    """One batch of the asked-for columns; made once per worker process, which also freezes its collector.

    The freeze is there because PySpark's daemon collects in full after every task.
    """
    data = np.random.default_rng(1).integers(0, 256, rows * value_bytes, np.uint8).tobytes()
    columns = {
        "key": pa.array([number.to_bytes(8, "big") for number in range(rows)], pa.binary()),
        "value": pa.array(
            [data[at : at + value_bytes] for at in range(0, len(data), value_bytes)], pa.binary()
        ),
        "topic": pa.array(["benchmark"] * rows, pa.string()),
        "partition": pa.array(np.zeros(rows, np.int32)),
        "offset": pa.array(np.arange(rows, dtype=np.int64)),
        "timestamp": pa.array(np.arange(rows, dtype=np.int64)).cast(pa.timestamp("us", "UTC")),
        "timestampType": pa.array(np.zeros(rows, np.int32)),
    }
    gc.collect()
    gc.freeze()
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


class DroppingWriter(DataSourceArrowWriter):
    """Takes the rows as Arrow batches and forgets them."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
