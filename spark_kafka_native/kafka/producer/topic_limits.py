"""The largest record batch that a topic takes: its ``max.message.bytes``, as the broker says."""

from __future__ import annotations

import logging

from ..cluster.router import Router
from ..errors import KafkaError
from ..network.deadline import Deadline
from ..protocol.api.configs import DescribeConfigsRequest, DescribeConfigsResource

_LOG = logging.getLogger("spark_kafka_native")

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default: 1 MiB of records and the 12 bytes in front of a batch's length."""
_TOPIC = 2
_LEAST = 1_000
"""A limit below this is no limit that a topic can live with: take the default instead and let the broker
judge."""


def read_max_message_bytes(router: Router, topic: str, deadline: Deadline) -> int:
    """Ask for the topic's ``max.message.bytes``; the default where the broker does not say.

    Describing configs needs a right that writing does not: without it the broker's MESSAGE_TOO_LARGE has
    to do.
    """
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=_TOPIC, resource_name=topic, configuration_keys=["max.message.bytes"]
            )
        ]
    )
    try:
        response = router.send_any(request, deadline)
    except KafkaError as error:
        _LOG.debug("max.message.bytes of topic %s is not known: %s", topic, error)
        return DEFAULT_MAX_MESSAGE_BYTES
    for result in response.results:
        for config in result.configs:
            value = config.value or ""
            if config.name == "max.message.bytes" and value.isdigit() and int(value) >= _LEAST:
                return int(value)
    return DEFAULT_MAX_MESSAGE_BYTES
