"""Fixtures of the whole suite: see `spark_kafka_native.testing.fixtures`."""

from spark_kafka_native.testing.fixtures import *  # noqa: F403
