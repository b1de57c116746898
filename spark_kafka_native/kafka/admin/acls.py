"""`AclAdmin`: access control lists (KIP-140, KIP-290)."""

from __future__ import annotations

import enum
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from ..cluster.coordinators import learn_controller
from ..errors import BrokerError, KafkaError, NetworkError, ProtocolError, with_refused
from ..protocol.api.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
)
from ..runtime.deadline import Deadline, Timeout
from .family import AdminFamily, ItemResult, Task, noting_lost, refuse, with_lost

_LOG = logging.getLogger("spark_kafka_native")
E = TypeVar("E", bound=enum.IntEnum)


class _Numbered(enum.IntEnum):
    """Kafka's numbered constants; 0 is UNKNOWN in each type, and is used for numbers of newer brokers."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        if not isinstance(value, int):
            raise ValueError(f"{value!r} is no {cls.__name__}")
        return cls(0)


class AclResource(_Numbered):
    """The type of a resource; numbered as Java's ``ResourceType``."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(_Numbered):
    """How the name of a resource is matched; numbered as Java's ``PatternType``."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    """For filters only: all patterns that match the name, including prefixes and ``*``."""
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Numbered):
    """The operation that is allowed or denied; numbered as Java's."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(_Numbered):
    """Allow or deny; numbered as Java's ``AclPermissionType``. A denial overrides every permission."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """One rule. Constants may be given as text: ``operation="read"``."""

    resource: AclResource | str
    name: str = CLUSTER_NAME
    principal: str
    """For example ``User:alice``; ``User:*`` matches all users."""
    operation: AclOperation | str
    permission: AclPermission | str = AclPermission.ALLOW
    pattern: AclPattern | str = AclPattern.LITERAL
    host: str = "*"

    def __post_init__(self) -> None:
        _become_words(self)
        if ":" not in self.principal:
            raise ValueError(f"a principal is written as User:name, not {self.principal!r}")

    def __str__(self) -> str:
        of = "" if self.pattern is AclPattern.LITERAL else f"{_word(self.pattern)} "
        return (
            f"{_word(self.permission)} {self.principal} from {self.host} to {_word(self.operation)} "
            f"{of}{_word(self.resource)} {self.name}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Selects rules: None, or ANY, matches all."""

    resource: AclResource | str = AclResource.ANY
    name: str | None = None
    principal: str | None = None
    operation: AclOperation | str = AclOperation.ANY
    permission: AclPermission | str = AclPermission.ANY
    pattern: AclPattern | str = AclPattern.ANY
    host: str | None = None

    def __post_init__(self) -> None:
        _become_words(self)


class AclAdmin(AdminFamily):
    """ACLs. The brokers need an authorizer; otherwise they answer `ErrorCode.SECURITY_DISABLED`."""

    def create_acls(self, acls: Collection[Acl], timeout: Timeout = None) -> None:
        """Add rules; rules that exist already are accepted. Raises `BrokerError` for the first that is
        refused.
        """
        rules = [acls] if isinstance(acls, Acl) else list(acls)
        limit = self._limit(timeout)

        def ask(pending: list[Any]) -> list[ItemResult]:
            request = CreateAclsRequest(
                creations=[
                    AclCreation(
                        resource_type=_number(acl.resource),
                        resource_name=acl.name,
                        resource_pattern_type=_number(acl.pattern),
                        principal=acl.principal,
                        host=acl.host,
                        operation=_number(acl.operation),
                        permission_type=_number(acl.permission),
                    )
                    for acl in pending
                ]
            )
            results = self._ask_controller(request, limit).results
            if len(results) != len(pending):
                raise ProtocolError(f"CreateAcls: {len(results)} results for {len(pending)} rules")
            return [
                ItemResult(acl, result.error_code, result.error_message)
                for acl, result in zip(pending, results, strict=True)
            ]

        self._settle(rules, ask, Task("creating the ACL", "Alter"), limit)

    def describe_acls(self, where: AclFilter | None = None, timeout: Timeout = None) -> list[Acl]:
        """The rules that ``where`` selects (None: all). Raises `BrokerError`."""
        request = DescribeAclsRequest(**_filter(where or AclFilter()))
        response = self._router.send_any(request, self._limit(timeout))
        refuse(ItemResult("ACLs", response.error_code, response.error_message), "describing", "Describe")
        return [
            _acl(found, resource.resource_type, resource.resource_name, resource.pattern_type)
            for resource in response.resources
            for found in resource.acls
        ]

    def delete_acls(
        self, where: AclFilter | Acl | Collection[AclFilter | Acl], timeout: Timeout = None
    ) -> list[Acl]:
        """Delete the rules that ``where`` selects, one filter or rule or several; returns the deleted rules,
        without those that an attempt without an answer has deleted: a warning in the log says so.

        Raises `BrokerError` for the first that could not be deleted; its notes name the others, and the rules
        that were deleted nevertheless.
        """
        filters = [where] if isinstance(where, AclFilter | Acl) else list(where)
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_filter(one)) for one in filters])
        deleted: list[Acl] = []
        refused: list[KafkaError] = []
        for result in self._delete(request, self._limit(timeout)).filter_results:
            if result.error_code:
                refused.append(_refusal("deleting ACLs", result))
            for found in result.matching_acls:
                acl = _acl(found, found.resource_type, found.resource_name, found.pattern_type)
                if found.error_code:
                    refused.append(_refusal(f"deleting the ACL {acl}", found))
                else:
                    deleted.append(acl)
        if refused:
            for acl in deleted:
                refused[0].add_note(f"deleted nevertheless: {acl}")
            raise with_refused(refused[0], refused[1:])
        return deleted

    def _delete(self, request: DeleteAclsRequest, limit: Deadline) -> DeleteAclsResponse:
        lost: list[NetworkError] = []

        def attempt() -> DeleteAclsResponse:
            with noting_lost(lost):
                return self._ask_controller(request, limit)

        try:
            response = self._router.retry(
                attempt,
                what="DeleteAcls",
                deadline=limit,
                between=lambda error: learn_controller(self._router, error, limit),
            )
        except KafkaError as error:
            raise with_lost(error, lost) from error.__cause__
        if lost:
            _LOG.warning("An earlier attempt had no answer, and may have deleted ACLs, too: %s", lost[-1])
        return response


def _refusal(where: str, result: Any) -> BrokerError:
    return BrokerError(result.error_code, where, result.error_message or None, "Alter")


def _filter(where: AclFilter | Acl) -> dict[str, Any]:
    return {
        "resource_type_filter": _number(where.resource),
        "resource_name_filter": where.name,
        "pattern_type_filter": _number(where.pattern),
        "principal_filter": where.principal,
        "host_filter": where.host,
        "operation": _number(where.operation),
        "permission_type": _number(where.permission),
    }


def _acl(found: Any, resource_type: int, name: str, pattern: int) -> Acl:
    return Acl(
        resource=AclResource(resource_type),
        name=name,
        principal=found.principal,
        operation=AclOperation(found.operation),
        permission=AclPermission(found.permission_type),
        pattern=AclPattern(pattern),
        host=found.host,
    )


def _become_words(rule: Acl | AclFilter) -> None:
    kinds: Iterable[tuple[str, type[enum.IntEnum]]] = (
        ("resource", AclResource),
        ("operation", AclOperation),
        ("permission", AclPermission),
        ("pattern", AclPattern),
    )
    for name, kind in kinds:
        object.__setattr__(rule, name, _parse(kind, getattr(rule, name), name))


def _parse(kind: type[E], given: object, what: str) -> E:
    if isinstance(given, kind):
        return given
    if isinstance(given, str):
        spelled = given.strip().upper().replace("-", "_")
        for member in kind:
            if member.name.replace("_", "") == spelled.replace("_", "") and member.value:
                return member
    words = ", ".join(member.name.lower() for member in kind if member.value)
    raise ValueError(f"the {what} of an ACL is one of {words}, not {given!r}")


def _number(word: enum.IntEnum | str) -> int:
    assert isinstance(word, enum.IntEnum), "words were parsed when the rule was made"
    return word.value


def _word(word: enum.IntEnum | str) -> str:
    return word.name.lower() if isinstance(word, enum.IntEnum) else word
