"""A real Kafka broker, a Spark cluster and Java itself for tests, demo and notebooks.

Nothing here runs in production.
"""

from .embedded_kafka import EmbeddedKafka
from .errors import (
    BrokerStartError,
    BrokerUnavailableError,
    ClusterStartError,
    GuardError,
    JarsUnavailableError,
    JavaUnavailableError,
)
from .jars import jars
from .java import find_java, run_java
from .standalone_spark import StandaloneSpark

__all__ = [
    "BrokerStartError",
    "BrokerUnavailableError",
    "ClusterStartError",
    "EmbeddedKafka",
    "GuardError",
    "JarsUnavailableError",
    "JavaUnavailableError",
    "StandaloneSpark",
    "find_java",
    "jars",
    "run_java",
]
