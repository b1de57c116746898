"""The name under which Spark finds `pykafka` by itself.

Spark imports every ``pyspark_*`` module and takes its ``DefaultSource``.
"""

import contextlib

# An exception here would end Spark's look-up for every other Python data source too.
with contextlib.suppress(Exception):
    from spark_kafka_native import KafkaDataSource as DefaultSource  # noqa: F401
