"""The name under which Spark finds `pykafka` by itself.

Spark imports every ``pyspark_*`` module and takes its ``DefaultSource``. An exception here would end its
look-up of every other Python data source too, so what is wrong is only said.
"""

try:
    from spark_kafka_native import KafkaDataSource as DefaultSource
except Exception as error:  # noqa: BLE001 - see above
    import logging

    logging.getLogger(__name__).warning(
        'format("pykafka") is not available: %s: %s', type(error).__name__, " ".join(str(error).split())
    )

__all__ = ["DefaultSource"]
