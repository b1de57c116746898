"""Kafka for PySpark without a JVM jar: the data source ``pykafka`` and the Kafka client it stands on."""

from .version import __version__

__all__ = ["__version__"]
