"""A cluster that gives delegation tokens, clocks that a test sets, and the options that ask for tokens."""

from __future__ import annotations

from typing import Any

from spark_kafka_native.kafka.admin.delegation_tokens import DelegationToken
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, NetworkError
from spark_kafka_native.spark.delegation_tokens import TokenOptions
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.options.table import Scope

PASSWORD = "marked-password"
HMAC = "bWFya2VkLWhtYWM="
HOUR_MS = 3_600_000
SCRAM = {
    "kafka.bootstrap.servers": "driver:9093",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-256",
    "kafka.sasl.username": "alice",
    "kafka.sasl.password": PASSWORD,
    "kafka.ssl.truststore.location": "/ca.pem",
    "delegationTokens": "true",
}


class Cluster:
    """What `Admin` says, in all clients of a test."""

    def __init__(self) -> None:
        self.created: list[int | None] = []
        self.calls: list[str] = []
        self.alive: dict[str, DelegationToken] = {}
        self.life_ms, self.most_ms = 24 * HOUR_MS, 7 * 24 * HOUR_MS
        self.now_ms = 1_000_000
        self.failure: Exception | None = None
        self.unknown: set[str] = set()
        """The tokens that a broker does not know yet."""
        self.configs: list[ClientConfig] = []

    def admin(self, config: ClientConfig) -> Cluster:
        self.configs.append(config)
        return self

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def router(self) -> Any:
        return Router(ClientConfig(bootstrap_servers=("nobody:1",)))

    def _note(self, what: str) -> None:
        self.calls.append(what)
        if self.failure is not None:
            raise self.failure

    def create_delegation_token(self, _limit: object, *, max_lifetime_ms: int | None) -> DelegationToken:
        self.created.append(max_lifetime_ms)
        token_id = f"t{len(self.created)}"
        self._note(f"create {token_id}")
        most_ms = self.most_ms if max_lifetime_ms is None else max_lifetime_ms
        token = DelegationToken(
            token_id=token_id,
            hmac=Secret(HMAC),
            owner="User:alice",
            requester="User:alice",
            issued_ms=self.now_ms,
            expires_ms=self.now_ms + min(self.life_ms, most_ms),
            max_ms=self.now_ms + most_ms,
        )
        self.alive[token_id] = token
        return token

    def await_delegation_token(self, token: DelegationToken, _limit: object) -> None:
        self.calls.append(f"await {token.token_id}")
        if token.token_id in self.unknown:
            raise NetworkError(f"broker 2 does not know {token.token_id} yet")

    def renew_delegation_token(self, token: DelegationToken, _limit: object) -> int:
        self._note(f"renew {token.token_id}")
        if token.token_id not in self.alive:
            raise BrokerError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "renewing")
        return min(self.now_ms + self.life_ms, token.max_ms)

    def expire_delegation_token(self, token: DelegationToken, _limit: object) -> None:
        self._note(f"expire {token.token_id}")
        self.alive.pop(token.token_id, None)

    def describe_delegation_tokens(self, owners: list[str]) -> list[DelegationToken]:
        self._note(f"describe {','.join(owners)}")
        return list(self.alive.values())


class Clocks:
    """Of this machine, and of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.wall_s, self.steady_s = 5_000.0, 70.0

    def time(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.steady_s

    def pass_hours(self, hours: float) -> None:
        self.wall_s += hours * 3600
        self.steady_s += hours * 3600
        self._cluster.now_ms += int(hours * HOUR_MS)


def client(given: dict[str, str] = SCRAM) -> ClientConfig:
    return ClientConfig.from_properties(OptionValues.parse(given, Scope.READ).kafka)


def parsed(given: dict[str, str] = SCRAM) -> TokenOptions:
    found = TokenOptions.parse(OptionValues.parse(given, Scope.READ), client(given))
    assert found is not None
    return found
