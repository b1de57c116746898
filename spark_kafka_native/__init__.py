"""Kafka for PySpark without a JVM jar: the data source ``pykafka`` and the Kafka client it stands on."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .spark.options.option_values import options_from_properties
    from .spark.progress import ProgressLog, kafka_progress, lag
    from .spark.source import KafkaDataSource
    from .spark.stream_metrics import StreamMetrics

__all__ = [
    "KafkaDataSource",
    "ProgressLog",
    "StreamMetrics",
    "__version__",
    "kafka_progress",
    "lag",
    "options_from_properties",
    "register",
]


def __getattr__(name: str) -> Any:
    # Late, so that the Kafka client can be used where there is no PySpark.
    if name == "KafkaDataSource":
        _check_pyspark()
        from .spark.source import KafkaDataSource

        return KafkaDataSource
    if name == "options_from_properties":
        from .spark.options.option_values import options_from_properties

        return options_from_properties
    if name == "StreamMetrics":
        _check_pyspark()
        from .spark.stream_metrics import StreamMetrics

        return StreamMetrics
    if name in ("ProgressLog", "kafka_progress", "lag"):
        _check_pyspark()
        from .spark import progress

        return getattr(progress, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: Any) -> None:
    """Make ``format("pykafka")`` known to ``spark`` (a SparkSession, classic or Connect), and to this thread.

    Needed where the package comes as a zip (``--py-files``); an installed package is found by Spark itself.
    Also needed in each thread, but the main one, that begins with a write: there Spark looks for a Python
    source in the thread's active session, and it has none yet.
    """
    source = __getattr__("KafkaDataSource")  # first, as an older PySpark has no spark.dataSource either
    with _zip_for_streams(spark):
        spark.dataSource.register(source)
    spark.createDataFrame([], "value binary")  # runs nothing, and makes `spark` the thread's active session


_registering = threading.Lock()


@contextlib.contextmanager
def _zip_for_streams(spark: Any) -> Iterator[None]:
    """The process that plans a stream does not find the files of ``--py-files``: a source that is registered
    meanwhile takes the path of the zip along. A Connect client has no such environment."""
    place = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    context = None if os.path.isdir(place) else getattr(spark, "sparkContext", None)
    if context is None:
        yield
        return
    environment = context.environment
    with _registering:  # by several threads, each for its session
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = place if not before else os.pathsep.join((place, before))
        try:
            yield
        finally:
            if before is None:
                del environment["PYTHONPATH"]
            else:
                environment["PYTHONPATH"] = before


def _check_pyspark() -> None:
    try:
        import pyspark
    except ImportError as error:
        raise ImportError(
            "the data source pykafka needs PySpark 4.1 or later: pip install 'spark-kafka-native[spark]'"
        ) from error
    found = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if found < (4, 1):
        raise ImportError(
            f"the data source pykafka needs PySpark 4.1 or later, but this is {pyspark.__version__}"
        )
