"""Every error code of a broker's response, and its consequences for a client.

Numbers, names and kinds are checked against Java's ``org.apache.kafka.common.protocol.Errors`` by
``tests/spec/test_error_codes.py``. A code is a value in a response; the exception is ``errors.BrokerError``.
"""

from __future__ import annotations

import enum
from typing import Final, Self

_UPPER_CASE_WORDS = frozenset({"ID", "SASL"})


class _Kind(enum.Flag):
    """The consequences of an error code for a client; the same sets as Java's exception classes."""

    PERMANENT = 0
    RETRIABLE = 1
    """Java's ``RetriableException``: the same request may succeed a moment later."""
    STALE_METADATA = 2
    """Java's ``InvalidMetadataException``: a leader has changed; refresh the metadata, then retry."""
    TIMEOUT = 4
    """Java's ``TimeoutException``: the broker ran out of time; the request may have been applied."""


_RETRY = _Kind.RETRIABLE
_STALE = _Kind.RETRIABLE | _Kind.STALE_METADATA
_TIMED_OUT = _Kind.RETRIABLE | _Kind.TIMEOUT


class ErrorCode(enum.IntEnum):
    """An error code of the Kafka protocol (an int16 on the wire); ``NONE`` is 0 and false.

    A number this client does not know (from a newer broker) becomes a member-like value named
    ``UNKNOWN_CODE_<number>``, which is never retriable: ``ErrorCode(999)`` does not raise.
    """

    description: str
    """One sentence: the failure, and its remedy if there is one."""
    _kind: _Kind

    def __new__(cls, code: int, description: str = "", kind: _Kind = _Kind.PERMANENT) -> Self:
        """Make the member of one code; once all are made, ``ErrorCode(code)`` finds it."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.description = description
        member._kind = kind
        return member

    UNKNOWN_SERVER_ERROR = -1, "the broker failed in a way it has no code for; its log says more"
    NONE = 0, "no error"
    OFFSET_OUT_OF_RANGE = 1, "the partition does not have this offset: it was deleted, or never written"
    CORRUPT_MESSAGE = (
        2,
        "a record batch failed its checksum, has an invalid size, or lacks the key a compacted topic needs",
        _RETRY,
    )
    UNKNOWN_TOPIC_OR_PARTITION = 3, "the broker does not host this topic or partition", _STALE
    INVALID_FETCH_SIZE = 4, "the requested fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, "the partition has no leader right now; an election may be under way", _STALE
    NOT_LEADER_OR_FOLLOWER = 6, "the broker no longer leads (or does not replicate) this partition", _STALE
    REQUEST_TIMED_OUT = (
        7,
        "the broker could not finish the request in time; it may have been applied",
        _TIMED_OUT,
    )
    BROKER_NOT_AVAILABLE = 8, "the broker is not available"
    REPLICA_NOT_AVAILABLE = (
        9,
        "the broker is expected to have a replica of this partition, but has none yet",
        _STALE,
    )
    MESSAGE_TOO_LARGE = (
        10,
        "a record batch is larger than the topic's max.message.bytes; raise that, or send less at once",
    )
    STALE_CONTROLLER_EPOCH = 11, "the controller moved to another broker"
    OFFSET_METADATA_TOO_LARGE = (
        12,
        "the metadata string of a committed offset is longer than the broker accepts",
    )
    NETWORK_EXCEPTION = 13, "the broker lost a connection before it had the response", _STALE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "the coordinator is still loading its state", _RETRY
    COORDINATOR_NOT_AVAILABLE = 15, "there is no coordinator right now", _RETRY
    NOT_COORDINATOR = 16, "the coordinator moved to another broker; look it up again", _RETRY
    INVALID_TOPIC_EXCEPTION = (
        17,
        "the topic's name is not valid, or the topic is internal and must not be written",
    )
    RECORD_LIST_TOO_LARGE = 18, "a record batch is larger than the topic's segment.bytes"
    NOT_ENOUGH_REPLICAS = (
        19,
        "fewer replicas are in sync than min.insync.replicas; nothing was written",
        _RETRY,
    )
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        "written to the leader's log, but fewer replicas are in sync than min.insync.replicas",
        _RETRY,
    )
    INVALID_REQUIRED_ACKS = 21, "acks must be 0, 1 or -1"
    ILLEGAL_GENERATION = 22, "the group has moved on to another generation; join it again"
    INCONSISTENT_GROUP_PROTOCOL = 23, "this member shares no assignment protocol with the others of its group"
    INVALID_GROUP_ID = 24, "the group id is empty or not valid"
    UNKNOWN_MEMBER_ID = 25, "the coordinator does not know this member (any more); join the group again"
    INVALID_SESSION_TIMEOUT = (
        26,
        "the session timeout is outside the broker's group.{min,max}.session.timeout.ms",
    )
    REBALANCE_IN_PROGRESS = 27, "the group is rebalancing; join it again"
    INVALID_COMMIT_OFFSET_SIZE = 28, "the offset commit is larger than the broker can store"
    TOPIC_AUTHORIZATION_FAILED = 29, "the principal is not allowed to do this with the topic; check its ACLs"
    GROUP_AUTHORIZATION_FAILED = 30, "the principal is not allowed to use this group; check its ACLs"
    CLUSTER_AUTHORIZATION_FAILED = (
        31,
        "the principal is not allowed to do this to the cluster; check its ACLs",
    )
    INVALID_TIMESTAMP = 32, "a record's timestamp is too far from the broker's clock for this topic"
    UNSUPPORTED_SASL_MECHANISM = 33, "the broker's listener does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, "the request is out of place in the SASL exchange"
    UNSUPPORTED_VERSION = 35, "the broker does not support this version of the request"
    TOPIC_ALREADY_EXISTS = 36, "a topic of this name exists already"
    INVALID_PARTITIONS = 37, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, "the replication factor is below 1 or above the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, "the replica assignment is not valid"
    INVALID_CONFIG = 40, "a configuration value is not valid"
    NOT_CONTROLLER = 41, "this broker is not the controller; look the controller up again", _RETRY
    INVALID_REQUEST = 42, "the broker could not make sense of the request; its log says more"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "the topic's message format is too old for this request"
    POLICY_VIOLATION = 44, "a policy configured on the broker forbids this"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "an idempotent batch arrived ahead of one that the broker still misses"
    DUPLICATE_SEQUENCE_NUMBER = 46, "the broker has this idempotent batch already"
    INVALID_PRODUCER_EPOCH = 47, "a newer producer took over this producer id, or its transaction timed out"
    INVALID_TXN_STATE = 48, "the transaction is not in a state that allows this"
    INVALID_PRODUCER_ID_MAPPING = 49, "the producer id no longer belongs to this transactional id"
    INVALID_TRANSACTION_TIMEOUT = (
        50,
        "the transaction timeout exceeds the broker's transaction.max.timeout.ms",
    )
    CONCURRENT_TRANSACTIONS = (
        51,
        "the coordinator is still finishing the previous transaction of this id",
        _RETRY,
    )
    TRANSACTION_COORDINATOR_FENCED = 52, "a newer transaction coordinator has taken over"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = (
        53,
        "the principal may not use this transactional id; check its ACLs",
    )
    SECURITY_DISABLED = 54, "the broker has no authorizer, so it has no ACLs"
    OPERATION_NOT_ATTEMPTED = 55, "the broker skipped this part of the request because another part failed"
    KAFKA_STORAGE_ERROR = 56, "the broker could not read or write the partition's log on its disk", _STALE
    LOG_DIR_NOT_FOUND = 57, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, "the broker rejected the credentials"
    UNKNOWN_PRODUCER_ID = 59, "the broker has forgotten this producer id, for its last records were deleted"
    REASSIGNMENT_IN_PROGRESS = 60, "the partition is being moved to other replicas"
    DELEGATION_TOKEN_AUTH_DISABLED = (
        61,
        "delegation tokens are off: brokers and controllers need delegation.token.secret.key",
    )
    DELEGATION_TOKEN_NOT_FOUND = (
        62,
        "the broker does not know this delegation token: it has expired, was revoked, or is very new",
    )
    DELEGATION_TOKEN_OWNER_MISMATCH = (
        63,
        "only the owner and the renewers of a delegation token may renew or expire it",
    )
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        "delegation tokens are managed over SASL, or TLS with a client certificate, never after a login with "
        "a token",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = (
        65,
        "the principal needs an ACL on the user that owns the token: CreateTokens to create one for that "
        "user, DescribeTokens to see it",
    )
    DELEGATION_TOKEN_EXPIRED = 66, "the delegation token has expired: create another one"
    INVALID_PRINCIPAL_TYPE = 67, "owner and renewers of a delegation token must be of the type User"
    NON_EMPTY_GROUP = 68, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, "the broker has dropped this fetch session; start a new one", _RETRY
    INVALID_FETCH_SESSION_EPOCH = 71, "the fetch session is at another epoch; start a new one", _RETRY
    LISTENER_NOT_FOUND = 72, "the leader has no listener of the name this client is connected through", _STALE
    TOPIC_DELETION_DISABLED = 73, "the broker's delete.topic.enable forbids deleting topics"
    FENCED_LEADER_EPOCH = 74, "the partition has a newer leader than the client knows", _STALE
    UNKNOWN_LEADER_EPOCH = 75, "the client knows of a newer leader than the broker does yet", _RETRY
    UNSUPPORTED_COMPRESSION_TYPE = 76, "this version of the request can't carry records compressed that way"
    STALE_BROKER_EPOCH = 77, "the broker has registered itself anew since"
    OFFSET_NOT_AVAILABLE = 78, "a new leader does not know its high watermark yet", _RETRY
    MEMBER_ID_REQUIRED = 79, "join again with the member id that the coordinator has just given"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "the preferred leader is not available", _STALE
    GROUP_MAX_SIZE_REACHED = 81, "the group has as many members as the broker's group.max.size allows"
    FENCED_INSTANCE_ID = 82, "another member has joined with the same group.instance.id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "no replica may become leader right now", _STALE
    ELECTION_NOT_NEEDED = 84, "the partition has the right leader already", _STALE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "the partition is not being moved"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "the group is subscribed to the topic, so its offsets can't be deleted"
    INVALID_RECORD = 87, "the broker's validation rejected a record"
    UNSTABLE_OFFSET_COMMIT = 88, "an open transaction holds offset commits that are not decided yet", _RETRY
    THROTTLING_QUOTA_EXCEEDED = 89, "the client has used up its quota; try later", _RETRY
    PRODUCER_FENCED = 90, "a newer producer with the same transactional id took over"
    RESOURCE_NOT_FOUND = 91, "the request names something that does not exist"
    DUPLICATE_RESOURCE = 92, "the request names the same thing twice"
    UNACCEPTABLE_CREDENTIAL = 93, "the credential does not meet the broker's demands"
    INCONSISTENT_VOTER_SET = 94, "sender and receiver do not belong to the same set of voters"
    INVALID_UPDATE_VERSION = 95, "the version to update to is not valid"
    FEATURE_UPDATE_FAILED = 96, "the cluster's features could not be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = (
        97,
        "a broker forwarded the request, and the controller can't read its principal",
    )
    SNAPSHOT_NOT_FOUND = 98, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, "the position lies outside the snapshot"
    UNKNOWN_TOPIC_ID = (
        100,
        "the broker hosts no topic of this id: it was deleted, or is not known yet",
        _STALE,
    )
    DUPLICATE_BROKER_REGISTRATION = 101, "this broker id is in use"
    BROKER_ID_NOT_REGISTERED = 102, "no broker of this id is registered"
    INCONSISTENT_TOPIC_ID = 103, "the topic has another id: it was deleted and created anew", _STALE
    INCONSISTENT_CLUSTER_ID = 104, "the broker belongs to another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "the coordinator does not know this transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = (
        106,
        "the fetch session mixes topic names and topic ids; start a new one",
        _RETRY,
    )
    INELIGIBLE_REPLICA = 107, "the new set of in-sync replicas has one that must not be in it"
    NEW_LEADER_ELECTED = 108, "the partition was changed, and has a new leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "the offset has been moved to tiered storage"
    FENCED_MEMBER_EPOCH = 110, "the coordinator fenced this member: give up all partitions and join again"
    UNRELEASED_INSTANCE_ID = 111, "another member still holds this instance id; it has to leave first"
    UNSUPPORTED_ASSIGNOR = 112, "the group does not support this assignor or its version"
    STALE_MEMBER_EPOCH = 113, "the member's epoch is behind; use the one of its next heartbeat"
    MISMATCHED_ENDPOINT_TYPE = 114, "the request went to a controller but is for a broker, or the reverse"
    UNSUPPORTED_ENDPOINT_TYPE = 115, "the broker does not know this type of endpoint"
    UNKNOWN_CONTROLLER_ID = 116, "there is no controller of this id"
    UNKNOWN_SUBSCRIPTION_ID = 117, "the telemetry subscription has changed; ask for it again"
    TELEMETRY_TOO_LARGE = 118, "the telemetry is larger than the broker accepts"
    INVALID_REGISTRATION = 119, "the controller found the broker's registration not valid"
    TRANSACTION_ABORTABLE = 120, "the transaction can't go on; abort it and begin another (KIP-890)"
    INVALID_RECORD_STATE = 121, "the record is not in a state that can be acknowledged"
    SHARE_SESSION_NOT_FOUND = 122, "the broker has dropped this share session; start a new one", _RETRY
    INVALID_SHARE_SESSION_EPOCH = 123, "the share session is at another epoch; start a new one", _RETRY
    FENCED_STATE_EPOCH = 124, "the share group's state is at another epoch"
    INVALID_VOTER_KEY = 125, "the voter's key is not that of the receiving replica"
    DUPLICATE_VOTER = 126, "the voter is in the set already"
    VOTER_NOT_FOUND = 127, "the voter is not in the set"
    INVALID_REGULAR_EXPRESSION = 128, "the regular expression is not valid"
    REBOOTSTRAP_REQUIRED = (
        129,
        "the client's metadata is of another cluster; start again from the bootstrap servers",
    )
    STREAMS_INVALID_TOPOLOGY = 130, "the topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "the topology's epoch is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, "the topology's epoch is behind"
    SHARE_SESSION_LIMIT_REACHED = 133, "the broker holds as many share sessions as it may", _RETRY

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """The error code of this number; an unknown number does not raise."""
        known = _BY_NUMBER.get(code)  # a dict lookup: a third of the time of cls(code), and NONE is false
        return cls(code) if known is None else known

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        if not isinstance(value, int):
            return None
        unknown = int.__new__(cls, value)
        unknown._name_ = f"UNKNOWN_CODE_{value}"
        unknown._value_ = value
        unknown.description = f"error code {value}, which this client does not know: the broker is newer"
        unknown._kind = _Kind.PERMANENT
        return unknown

    def __reduce_ex__(self, protocol: object) -> tuple[type[ErrorCode], tuple[int]]:
        """By number: some versions of Python (3.11.2) would not find an unknown code by its name."""
        return ErrorCode, (self.value,)

    @property
    def title(self) -> str:
        """The name for messages: ``Offset Out Of Range``."""
        return " ".join(word if word in _UPPER_CASE_WORDS else word.title() for word in self.name.split("_"))

    @property
    def known(self) -> bool:
        """True if this client knows the code."""
        return self.value in _BY_NUMBER

    @property
    def retriable(self) -> bool:
        """True if the same request may succeed a moment later."""
        return _Kind.RETRIABLE in self._kind

    @property
    def stale_metadata(self) -> bool:
        """True if the metadata must be refreshed before the retry."""
        return _Kind.STALE_METADATA in self._kind

    @property
    def timeout(self) -> bool:
        """True if the broker ran out of time, so that the request may have been applied."""
        return _Kind.TIMEOUT in self._kind


_BY_NUMBER: dict[int, ErrorCode] = {member.value: member for member in ErrorCode}

UNKNOWN_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Codes for a topic that is gone, or that a broker does not know yet or for the moment."""
