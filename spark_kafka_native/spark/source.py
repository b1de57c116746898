"""`KafkaDataSource`: the data source ``pykafka``. It only chooses; readers and writers are imported when one
is needed, as Spark builds this object in short-lived processes of its own."""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from .options.option import Scope
from .options.option_values import OptionValues
from .user_messages import HideTracebacks, prefix_log_lines


class KafkaDataSource(DataSource):  # type: ignore[misc]
    """Kafka topics as DataFrames: ``format("pykafka")`` of ``spark.read``, ``spark.readStream``,
    ``df.write`` and ``df.writeStream``."""

    _is_planned = False

    @classmethod
    def name(cls) -> str:
        """What ``format(...)`` takes."""
        return "pykafka"

    @HideTracebacks()
    def schema(self) -> StructType | str:
        """Kafka's columns; ``headers`` only with ``includeHeaders``. As DDL where keys or values are decoded.
        Not asked for where the user gives a schema."""
        from .read.read_options import check_general
        from .read.schema import full_schema

        # Batch or stream is not known yet: errors common to both are raised here, at load().
        options = check_general(self._values(Scope.READ))
        formats = options.formats
        if formats.samples:
            from .read.driver.payload_sample import infer_schemas

            formats = infer_schemas(options)
        return formats.extend(full_schema(options.include_headers))

    @HideTracebacks()
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read of the columns in ``schema``. Raises `ConfigError` for options that can't be."""
        from .read.batch_reader import FilteringKafkaBatchReader, KafkaBatchReader
        from .read.read_options import ReadOptions

        values = self._values(Scope.READ)
        options = ReadOptions.for_batch(values)
        self._is_planned = True
        if options.filter_pushdown and _spark_pushes_filters():
            return FilteringKafkaBatchReader(options, schema)
        return KafkaBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A streaming read of the columns in ``schema``. What can't be is raised by the reader's methods."""
        from ..kafka.errors import KafkaError
        from .read.read_options import StreamOptions
        from .read.stream_reader import KafkaStreamReader, RefusedStreamReader

        self._is_planned = True
        try:
            return KafkaStreamReader(StreamOptions.parse(self._values(Scope.STREAM)), schema)
        except KafkaError as error:
            return RefusedStreamReader(error)

    @HideTracebacks()
    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """A batch write of rows with ``schema``."""
        from .write.batch_writer import KafkaBatchWriter

        return KafkaBatchWriter(self._values(Scope.WRITE), schema, overwrite=overwrite)

    @HideTracebacks()
    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802, ARG002
        """A streaming write of rows with ``schema``; complete mode appends its result anew each time."""
        from .write.stream_writer import KafkaStreamWriter

        return KafkaStreamWriter(self._values(Scope.WRITE), schema)

    def __getstate__(self) -> dict[str, Any]:
        # With a reader Spark sends this object to the workers, too, which only ask for its name: what they
        # get is in the reader. On its way to the driver's processes, before that, it has the options.
        if not self._is_planned:
            return dict(self.__dict__)
        return self.__dict__ | {"options": type(self.options)()}

    def _values(self, scope: Scope) -> OptionValues:
        prefix_log_lines()
        return OptionValues.parse(self.options, scope)


_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def _spark_pushes_filters() -> bool:
    """True if Spark asks for a reader to push filters into.

    A reader that takes filters while ``spark.sql.python.filterPushdown.enabled`` is off makes Spark refuse
    the read, and the conf can't be seen from here. But Spark runs the push in a worker program of its own,
    and only if the conf is on.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or (main is not None and main.name == _PUSHDOWN_WORKER)
