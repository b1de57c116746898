"""The handshake, with a broker of literals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    HandshakeClosedError,
    KafkaError,
    NetworkError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from spark_kafka_native.kafka.network.handshake import Negotiated, shake_hands
from spark_kafka_native.kafka.protocol.api.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest
from spark_kafka_native.kafka.protocol.message import Request
from spark_kafka_native.kafka.runtime.deadline import Deadline

HIGHEST = ApiVersionsRequest.versions[1]


class Answers:
    """A peer that returns the given answers one after the other, or raises them."""

    address = "kafka.example:9092"

    def __init__(self, *answers: ApiVersionsResponse | KafkaError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Request[Any], int]] = []
        self.deadlines: list[Deadline] = []

    def ask(self, request: Request[Any], version: int, deadline: Deadline) -> Any:
        self.asked.append((request, version))
        self.deadlines.append(deadline)
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        return answer


def versions(error_code: ErrorCode = ErrorCode.NONE, **keys: tuple[int, int]) -> ApiVersionsResponse:
    api_keys = [
        ApiVersion(api_key=int(key[1:]), min_version=least, max_version=most)
        for key, (least, most) in keys.items()
    ]
    return ApiVersionsResponse(error_code=error_code, api_keys=api_keys)


def shake(peer: Answers, protocol: str = "PLAINTEXT") -> dict[int, tuple[int, int]]:
    config = ClientConfig.from_properties({"bootstrap.servers": peer.address, "security.protocol": protocol})
    return dict(shake_hands(peer, config, Deadline.after_ms(1_000)).api_versions)


def test_the_brokers_versions_are_negotiated() -> None:
    peer = Answers(versions(_1=(4, 17), _18=(0, 4)))
    assert shake(peer) == {1: (4, 17), 18: (0, 4)}
    [(request, version)] = peer.asked
    assert version == HIGHEST
    assert request.client_software_name == "spark-kafka-native"


def test_an_older_broker_is_asked_in_its_own_version() -> None:
    peer = Answers(versions(ErrorCode.UNSUPPORTED_VERSION, _18=(0, 1)), versions(_18=(0, 1)))
    assert shake(peer) == {18: (0, 1)}
    assert [version for _, version in peer.asked] == [HIGHEST, 1]
    assert peer.deadlines[0] is peer.deadlines[1]


def test_versions_are_lowered_until_the_broker_knows_one() -> None:
    unsupported = ErrorCode.UNSUPPORTED_VERSION
    peer = Answers(versions(unsupported, _18=(0, 2)), versions(unsupported), versions(_18=(0, 0)))
    assert shake(peer) == {18: (0, 0)}
    assert [version for _, version in peer.asked] == [HIGHEST, 2, 0]


def test_the_level_of_a_feature_is_the_one_that_the_cluster_has_finalized() -> None:
    """With its lowest one, transactions would be those of an older protocol."""
    level = FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=1)
    answer = replace(versions(_18=(0, 4)), finalized_features=[level])
    config = ClientConfig(bootstrap_servers=(Answers.address,))
    assert shake_hands(Answers(answer), config, Deadline.after_ms(1_000)).features == {
        "transaction.version": 2
    }


def test_a_refusal_is_the_brokers_error() -> None:
    with pytest.raises(
        BrokerError, match=r"ApiVersions to kafka\.example:9092: CLUSTER_AUTHORIZATION_FAILED"
    ):
        shake(Answers(versions(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)))


@pytest.mark.parametrize(("protocol", "other"), [("PLAINTEXT", "SSL"), ("SSL", "PLAINTEXT")])
def test_a_hang_up_asks_for_the_other_protocol(protocol: str, other: str) -> None:
    gone = NetworkError("kafka.example:9092: the broker closed the connection")
    says = f"closed the connection during the first exchange.*={protocol}, or rather {other}\\?"
    with pytest.raises(HandshakeClosedError, match=says) as raised:
        shake(Answers(gone), protocol)
    assert raised.value.__cause__ is gone


def test_silence_is_not_reported_as_a_hang_up() -> None:
    with pytest.raises(RequestTimedOutError, match="no answer in 9 ms"):
        shake(Answers(RequestTimedOutError("no answer in 9 ms")))


@pytest.mark.parametrize("api", [FetchRequest, FetchRequest.api_key], ids=["ours", "by its key"])
def test_a_caller_may_bound_the_version_of_a_request(api: Any) -> None:
    """A caller that encodes requests itself knows some versions only."""
    negotiated = Negotiated(api_versions={FetchRequest.api_key: (4, 15)})
    assert negotiated.choose(api, None, None) == 15
    assert negotiated.choose(api, None, 12) == 12
    assert negotiated.choose(api, 14, 99) == 15
    with pytest.raises(UnsupportedVersionError):
        negotiated.choose(api, 16, None)
