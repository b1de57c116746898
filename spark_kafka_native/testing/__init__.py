"""A real Kafka broker, a Spark cluster and Java itself for tests, demo and notebooks.

Nothing here runs in production.
"""

from . import faults
from .embedded_kafka import ACLS, EmbeddedKafka
from .embedded_kdc import EmbeddedKdc
from .embedded_registry import EmbeddedRegistry
from .errors import (
    BrokerStartError,
    BrokerUnavailableError,
    ClusterStartError,
    GuardError,
    JarsUnavailableError,
    JavaUnavailableError,
)
from .fault_proxy import FaultProxy
from .faults import FaultRule, ProxiedRequest, TracedFault, read_trace, write_trace
from .java import find_java, jars, run_ivy, run_java
from .local_spark import StandaloneSpark
from .mock.mock_broker import MockBroker
from .mock.script import Effect, MockRequest

__all__ = [
    "ACLS",
    "BrokerStartError",
    "BrokerUnavailableError",
    "ClusterStartError",
    "Effect",
    "EmbeddedKafka",
    "EmbeddedKdc",
    "EmbeddedRegistry",
    "FaultProxy",
    "FaultRule",
    "GuardError",
    "JarsUnavailableError",
    "JavaUnavailableError",
    "MockBroker",
    "MockRequest",
    "ProxiedRequest",
    "StandaloneSpark",
    "TracedFault",
    "faults",
    "find_java",
    "jars",
    "read_trace",
    "run_ivy",
    "run_java",
    "write_trace",
]
