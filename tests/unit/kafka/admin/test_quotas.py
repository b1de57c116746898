"""`Admin` describes the quotas of exactly the named entity, or of all, and alters the given limits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from support.brokers.scripted_broker import ScriptedCluster

from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError
from spark_kafka_native.kafka.protocol.api.client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotaEntry,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuotaEntry,
    EntityData,
    ValueData,
)
from spark_kafka_native.testing import MockBroker

BOB: dict[str, str | None] = {"user": "bob"}
BOB_WITH_ANY: dict[str, str | None] = {"user": "bob", "client-id": None}
BOB_WITH_APP: dict[str, str | None] = {"user": "bob", "client-id": "app"}
KNOWN = [BOB, BOB_WITH_ANY, BOB_WITH_APP, {"user": None}, {"ip": "10.0.0.1"}]
EXACT, DEFAULT = 0, 1


def described(request: DescribeClientQuotasRequest, _version: int) -> DescribeClientQuotasResponse:
    """As Kafka's ClientQuotasImage finds them."""
    asked = {one.entity_type: one.match for one in request.components}
    assert {one.entity_type: one.match_type for one in request.components} == {
        kind: EXACT if name is not None else DEFAULT for kind, name in asked.items()
    }
    found = [
        entity
        for entity in KNOWN
        if asked.items() <= entity.items() and not (request.strict and entity.keys() - asked.keys())
    ]
    entries = [
        DescribedQuotaEntry(
            entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
            values=[ValueData(key="producer_byte_rate", value=1.0)],
        )
        for entity in found
    ]
    return DescribeClientQuotasResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None, entries=entries
    )


@pytest.fixture
def admin() -> Iterator[Admin]:
    with ScriptedCluster(1) as cluster:
        cluster[1].on(DescribeClientQuotasRequest, described)
        with Admin(cluster.bootstrap_servers) as admin:
            yield admin


@pytest.mark.parametrize("entity", KNOWN)
def test_an_entity_is_not_taken_for_those_with_further_types(
    admin: Admin, entity: dict[str, str | None]
) -> None:
    assert [one.entity for one in admin.describe_quotas(entity)] == [entity]


def test_without_a_name_all_are_described(admin: Admin) -> None:
    assert [one.entity for one in admin.describe_quotas()] == KNOWN
    assert [one.entity for one in admin.describe_quotas({})] == KNOWN


def test_what_has_no_quota_is_not_found(admin: Admin) -> None:
    assert admin.describe_quotas({"client-id": "app"}) == []


@pytest.mark.parametrize("validate_only", [False, True])
def test_a_limit_of_0_is_set_and_only_none_removes_one(validate_only: bool) -> None:
    done = AlteredQuotaEntry(error_code=ErrorCode.NONE, error_message=None, entity=[])
    with ScriptedCluster(1) as cluster, Admin(cluster.bootstrap_servers) as admin:
        cluster[1].on(AlterClientQuotasRequest, AlterClientQuotasResponse(throttle_time_ms=0, entries=[done]))
        limits = {"producer_byte_rate": 0, "consumer_byte_rate": None, "request_percentage": 12.5}
        admin.alter_quotas(BOB_WITH_ANY, limits, validate_only=validate_only)
        [request] = cluster[1].requests(AlterClientQuotasRequest)
    [entry] = request.entries
    assert request.validate_only is validate_only
    assert {one.entity_type: one.entity_name for one in entry.entity} == BOB_WITH_ANY
    assert [(one.key, one.value, one.remove) for one in entry.ops] == [
        ("producer_byte_rate", 0.0, False),
        ("consumer_byte_rate", 0.0, True),
        ("request_percentage", 12.5, False),
    ]


def test_quotas_that_may_not_be_read_are_not_taken_for_none() -> None:
    refused = DescribeClientQuotasResponse(
        throttle_time_ms=0, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=None, entries=[]
    )
    with ScriptedCluster(1) as cluster, Admin(cluster.bootstrap_servers) as admin:
        cluster[1].on(DescribeClientQuotasRequest, refused)
        with pytest.raises(BrokerError, match="describing quotas: CLUSTER_AUTHORIZATION_FAILED"):
            admin.describe_quotas()


@pytest.mark.parametrize(
    ("entity", "limits", "reason"),
    [
        ({}, {"producer_byte_rate": 1}, "an entity and at least one limit"),
        (BOB, {}, "an entity and at least one limit"),
        ({"group": "g"}, {"producer_byte_rate": 1}, "the type of an entity is one of user, client-id, ip"),
        *(
            (BOB, {"producer_byte_rate": wrong}, "producer_byte_rate must be a number from 0")
            for wrong in (-1, -0.5, math.nan, math.inf, -math.inf)
        ),
    ],
)
def test_changes_that_mean_nothing_are_refused_before_a_broker_is_asked(
    entity: dict[str, str | None], limits: dict[str, float | None], reason: str
) -> None:
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        with pytest.raises(ValueError, match=reason):
            admin.alter_quotas(entity, limits)
        with pytest.raises(ValueError, match="the type of an entity"):
            admin.describe_quotas({"group": "g"})
        assert broker.asked("AlterClientQuotas") == broker.asked("DescribeClientQuotas") == []
