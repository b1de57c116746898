"""The broker that a benchmark runs against: one of its own, or one that is there already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def open_broker(bootstrap_servers: str | None) -> Iterator[str]:
    """``bootstrap_servers`` as given, else those of an embedded broker that lives as long as the block."""
    if bootstrap_servers:
        yield bootstrap_servers
        return
    from spark_kafka_native.testing import EmbeddedKafka

    with EmbeddedKafka(brokers=1, properties={"log.segment.delete.delay.ms": "1000"}) as kafka:
        yield kafka.bootstrap_servers
