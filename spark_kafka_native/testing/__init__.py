"""A real Kafka broker, a Spark cluster and Java itself for tests, demo and notebooks.

Nothing here runs in production.
"""

from . import faults
from .acls import ACLS
from .embedded_kafka import EmbeddedKafka
from .errors import (
    BrokerStartError,
    BrokerUnavailableError,
    ClusterStartError,
    GuardError,
    JarsUnavailableError,
    JavaUnavailableError,
)
from .fault_proxy import FaultProxy
from .fault_rule import FaultRule, ProxiedRequest
from .fault_trace import TracedFault, read_trace, write_trace
from .ivy import run_ivy
from .jars import jars
from .java import find_java
from .java_programs import run_java
from .mock.mock_broker import MockBroker
from .standalone_spark import StandaloneSpark

__all__ = [
    "ACLS",
    "BrokerStartError",
    "BrokerUnavailableError",
    "ClusterStartError",
    "EmbeddedKafka",
    "FaultProxy",
    "FaultRule",
    "GuardError",
    "JarsUnavailableError",
    "JavaUnavailableError",
    "MockBroker",
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
