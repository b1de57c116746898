"""The configs of several topics, where a broker refuses to describe one."""

from __future__ import annotations

import pytest
from support.brokers.scripted_broker import ScriptedCluster, properties

from spark_kafka_native.kafka.cluster.describe_configs import describe_topic_configs
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, IncompleteResponseError
from spark_kafka_native.kafka.protocol.api.configs import (
    TOPIC_RESOURCE,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)


def result(topic: str, error: ErrorCode) -> DescribeConfigsResult:
    limit = DescribeConfigsResourceResult(
        name="max.message.bytes", value="9", read_only=False, is_sensitive=False
    )
    return DescribeConfigsResult(
        error_code=error,
        error_message=None,
        resource_type=TOPIC_RESOURCE,
        resource_name=topic,
        configs=[] if error else [limit],
    )


def test_a_topic_that_may_not_be_described_is_left_out_or_an_error() -> None:
    results = [result("secret", ErrorCode.TOPIC_AUTHORIZATION_FAILED), result("t", ErrorCode.NONE)]
    with ScriptedCluster(1) as cluster:
        cluster[1].on(DescribeConfigsRequest, DescribeConfigsResponse(throttle_time_ms=0, results=results))
        router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
        try:
            found = describe_topic_configs(router, ["secret", "t"], leave_out_refused=True)
            assert found == {"t": {"max.message.bytes": "9"}}
            with pytest.raises(BrokerError, match="describing configs of secret"):
                describe_topic_configs(router, ["secret", "t"])
        finally:
            router.close()


def test_a_topic_that_the_response_lacks_is_left_out_or_an_error() -> None:
    results = [result("t", ErrorCode.NONE)]
    with ScriptedCluster(1) as cluster:
        cluster[1].on(DescribeConfigsRequest, DescribeConfigsResponse(throttle_time_ms=0, results=results))
        router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
        try:
            assert list(describe_topic_configs(router, ["t", "other"], leave_out_refused=True)) == ["t"]
            with pytest.raises(IncompleteResponseError, match="configs of other: the response lacks them"):
                describe_topic_configs(router, ["t", "other"])
        finally:
            router.close()
