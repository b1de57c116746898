"""The largest record batch that a topic accepts: its ``max.message.bytes``, as the broker reports it."""

from __future__ import annotations

import logging
from collections.abc import Collection

from ...cluster.configs import describe_topic_configs
from ...cluster.router import Router
from ...errors import KafkaError
from ...runtime.deadline import Deadline

_LOG = logging.getLogger("spark_kafka_native")

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default: 1 MiB of records and the 12 bytes in front of a batch's length."""
_NAME = "max.message.bytes"
_MIN = 1_000
"""No topic can work with a limit below this: take the default instead and let the broker decide."""


def read_max_message_bytes(router: Router, topics: Collection[str], deadline: Deadline) -> dict[str, int]:
    """Ask for the ``max.message.bytes`` of ``topics``, all in one request; without those of which the broker
    does not say.

    Describing configs needs a right that writing does not: without it, the broker's MESSAGE_TOO_LARGE has to
    serve.
    """
    try:
        configs = describe_topic_configs(router, topics, deadline, names=[_NAME], leave_out_refused=True)
    except KafkaError as error:
        _LOG.debug("%s of %d topics is not known: %s", _NAME, len(topics), error)
        return {}
    limits = {}
    for topic in topics:
        value = configs.get(topic, {}).get(_NAME) or ""
        if value.isascii() and value.isdigit() and int(value) >= _MIN:
            limits[topic] = int(value)
    return limits
