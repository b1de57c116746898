"""`KafkaDataSource`: the data source ``pykafka``. It only chooses; readers and writers are imported when one
is needed, as Spark builds this object in short-lived processes of its own."""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from .option_values import OptionValues
from .options import Scope


class KafkaDataSource(DataSource):  # type: ignore[misc]
    """Kafka topics as DataFrames: ``spark.read.format("pykafka")`` and ``df.write.format("pykafka")``."""

    @classmethod
    def name(cls) -> str:
        """What ``format(...)`` takes."""
        return "pykafka"

    def schema(self) -> StructType:
        """Kafka's columns; ``headers`` only with ``includeHeaders``. Not asked for where the user gives a
        schema."""
        from .columns import full_schema
        from .read_options import check_general

        # Batch or stream is not known yet: what is wrong for both is told here, at load().
        return full_schema(check_general(OptionValues.read(self.options, Scope.READ)).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read of the columns in ``schema``. Raises `ConfigError` for options that can't be."""
        from .batch_reader import FilteringKafkaBatchReader, KafkaBatchReader
        from .read_options import ReadOptions

        values = OptionValues.read(self.options, Scope.READ)
        options = ReadOptions.for_batch(values)
        if options.filter_pushdown and _spark_pushes_filters():
            return FilteringKafkaBatchReader(options, schema)
        return KafkaBatchReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """A batch write of rows with ``schema``."""
        from .batch_writer import KafkaBatchWriter

        return KafkaBatchWriter(OptionValues.read(self.options, Scope.WRITE), schema, overwrite=overwrite)


_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def _spark_pushes_filters() -> bool:
    """Whether Spark asks for a reader to push filters into.

    A reader that takes filters while ``spark.sql.python.filterPushdown.enabled`` is off makes Spark refuse
    the read, and the conf can't be seen from here. But Spark runs the push in a worker program of its own,
    and only if the conf is on.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or (main is not None and main.name == _PUSHDOWN_WORKER)
