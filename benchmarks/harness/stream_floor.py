"""A stream source of Spark's Python API that does nothing: the floor under every micro-batch of ours.
With rows, which it has ready, it is the ceiling over every stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from harness.ceiling import COLUMNS, Task, prebuilt_batch

BATCH_ROWS = 10_000


class StreamFloorSource(DataSource):
    """``format("stream_floor")``: ``rows`` (1) in each of ``tasks`` tasks of each micro-batch, of which there
    are ``batches`` (without end)."""

    @classmethod
    def name(cls) -> str:
        return "stream_floor"

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: StructType) -> StreamFloorReader:  # noqa: N802
        return StreamFloorReader(schema, {name: int(value) for name, value in self.options.items()})


class StreamFloorReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Has something new whenever it is asked."""

    def __init__(self, schema: StructType, options: dict[str, int]) -> None:
        self.schema = schema
        self.options = options

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The options say where it ends."""

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802, ARG002
        return {"at": min(start["at"] + 1, self.options.get("batches", 2**60))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:  # noqa: ARG002
        return [Task(self.options.get("rows", 1)) for _ in range(self.options["tasks"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        schema = to_arrow_schema(self.schema, timezone="UTC")
        batch = prebuilt_batch(schema, min(partition.rows, BATCH_ROWS), 100)
        for start in range(0, partition.rows, batch.num_rows):
            yield batch.slice(0, partition.rows - start)
