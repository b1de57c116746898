"""A request of every API that only `Admin` sends, and what a broker without an authorizer answers it with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.protocol.api.acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from spark_kafka_native.kafka.protocol.api.client_quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    EntityData,
    OpData,
    QuotaAlteration,
)
from spark_kafka_native.kafka.protocol.api.cluster import (
    AlterPartitionReassignmentsRequest,
    DescribeLogDirsRequest,
    ElectionTopic,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from spark_kafka_native.kafka.protocol.api.configs import (
    TOPIC_RESOURCE,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from spark_kafka_native.kafka.protocol.api.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from spark_kafka_native.kafka.protocol.api.groups import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from spark_kafka_native.kafka.protocol.api.scram_users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from spark_kafka_native.kafka.protocol.api.transaction_admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    TopicRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from spark_kafka_native.kafka.protocol.message import Request

ANY = 1


def admin_requests(topic: str, group: str) -> dict[type[Request[Any]], Request[Any]]:
    """One request of each kind, about ``topic`` (of two partitions) and ``group`` (which has no members)."""
    acls = {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    retention = AlterableConfig(name="retention.ms", config_operation=0, value="86400000")
    marker = WritableTxnMarker(
        producer_id=77,
        producer_epoch=0,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=f"{topic}-never", partition_indexes=[0])],
        coordinator_epoch=0,
    )
    requests: list[Request[Any]] = [
        ListGroupsRequest(),
        DescribeGroupsRequest(groups=[group]),
        DeleteGroupsRequest(groups_names=[f"{group}-never"]),
        OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=1)]
                )
            ],
        ),
        ConsumerGroupDescribeRequest(group_ids=[f"{group}-never"], include_authorized_operations=False),
        IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=[retention])
            ],
            validate_only=True,
        ),
        DescribeAclsRequest(**acls),
        DeleteAclsRequest(filters=[DeleteAclsFilter(**acls)]),
        DescribeUserScramCredentialsRequest(users=None),
        AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name="nobody", mechanism=1)], upsertions=[]
        ),
        DescribeClientQuotasRequest(components=[], strict=False),
        AlterClientQuotasRequest(
            entries=[
                QuotaAlteration(
                    entity=[EntityData(entity_type="client-id", entity_name=group)],
                    ops=[OpData(key="producer_byte_rate", value=1e9, remove=False)],
                )
            ],
            validate_only=True,
        ),
        CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1),
        RenewDelegationTokenRequest(hmac=b"never", renew_period_ms=-1),
        ExpireDelegationTokenRequest(hmac=b"never", expiry_time_period_ms=-1),
        DescribeDelegationTokenRequest(owners=None),
        DescribeLogDirsRequest(topics=None),
        AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name=topic, partitions=[ReassignablePartition(partition_index=0, replicas=None)]
                )
            ]
        ),
        ListPartitionReassignmentsRequest(),
        ElectLeadersRequest(topic_partitions=[ElectionTopic(topic=topic, partitions=[0])]),
        ListTransactionsRequest(state_filters=[], producer_id_filters=[]),
        DescribeTransactionsRequest(transactional_ids=["never"]),
        DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0])]),
        WriteTxnMarkersRequest(markers=[marker]),
    ]
    return {type(request): request for request in requests}


ADMIN_REFUSALS: Mapping[type[Request[Any]], set[ErrorCode]] = {
    ConsumerGroupDescribeRequest: {ErrorCode.GROUP_ID_NOT_FOUND},
    DeleteGroupsRequest: {ErrorCode.GROUP_ID_NOT_FOUND},
    DescribeAclsRequest: {ErrorCode.SECURITY_DISABLED},
    DeleteAclsRequest: {ErrorCode.SECURITY_DISABLED},
    # The channel is not authenticated.
    CreateDelegationTokenRequest: {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    RenewDelegationTokenRequest: {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    ExpireDelegationTokenRequest: {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    DescribeDelegationTokenRequest: {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    AlterUserScramCredentialsRequest: {ErrorCode.RESOURCE_NOT_FOUND},
    AlterPartitionReassignmentsRequest: {ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS},
    ElectLeadersRequest: {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED},
    # Of no id that was ever used: the topic of transactions may not even be there.
    DescribeTransactionsRequest: {
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    },
    WriteTxnMarkersRequest: {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
}
