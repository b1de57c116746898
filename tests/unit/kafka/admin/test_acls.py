"""Rules that are deleted, and those that can't be."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafka_native.kafka.admin.acls import Acl, AclAdmin, AclFilter, AclOperation, AclResource
from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.admin.configs import ConfigResource
from spark_kafka_native.kafka.admin.family import NotSentError
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    DeadlineExceededError,
    KafkaError,
    NetworkError,
    ProtocolError,
    UnreachableError,
)
from spark_kafka_native.kafka.protocol.api.acls import (
    AclCreationResult,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsResponse,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import MockBroker

NONE, DENIED = ErrorCode.NONE, ErrorCode.SECURITY_DISABLED


def found(principal: str, code: ErrorCode = NONE) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=code,
        error_message=None,
        resource_type=2,
        resource_name="orders",
        pattern_type=3,
        principal=principal,
        host="*",
        operation=3,
        permission_type=3,
    )


class Router:
    """Gives one answer."""

    def __init__(self, *results: DeleteAclsFilterResult) -> None:
        self.response = DeleteAclsResponse(throttle_time_ms=0, filter_results=list(results))
        self.asked: list[DeleteAclsRequest] = []
        self.failures: list[KafkaError] = []
        """Of the first attempts."""

    snapshot = SimpleNamespace(brokers={}, controller_id=None)

    def deadline(self, timeout_ms: float | None) -> Deadline:
        return Deadline.after_ms(60_000 if timeout_ms is None else timeout_ms)

    def retry(self, operation: Callable[[], Any], between: Callable[[KafkaError], None], **_: Any) -> Any:
        while True:
            try:
                return operation()
            except NetworkError as error:
                between(error)

    def refresh(self, _topics: Any, _deadline: Any) -> None: ...

    def metadata(self, _topics: Any, **_: Any) -> Any:
        return SimpleNamespace(controller_id=None)

    def ask_any(self, request: Any, _deadline: Any) -> Any:
        if self.failures:
            raise self.failures.pop()
        self.asked.append(request)
        return self.response

    send_any = ask_any


def result(*rules: DeleteAclsMatchingAcl, code: ErrorCode = NONE) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=code, error_message=None, matching_acls=list(rules))


def rule(principal: str) -> Acl:
    return Acl(resource="topic", name="orders", principal=principal, operation="read")


@pytest.mark.parametrize(
    ("failure", "is_lost"),
    [
        (None, False),
        (NotSentError(NetworkError("handshake")), False),
        (UnreachableError("off"), False),
        (NetworkError("cut"), True),
    ],
)
def test_rules_that_an_attempt_without_an_answer_may_have_deleted_are_logged(
    failure: KafkaError | None, is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As if there had been none, they were missing in the result."""
    router: Any = Router(result(found("User:a")))
    router.failures += [] if failure is None else [failure]
    assert AclAdmin(router).delete_acls(AclFilter()) == [rule("User:a")]
    assert ("An earlier attempt had no answer, and may have deleted ACLs" in caplog.text) == is_lost


def test_rules_that_may_be_deleted_without_an_answer_until_the_deadline_are_said_to_be() -> None:
    router: Any = Router()
    router.failures += [DeadlineExceededError("late"), NetworkError("cut")]
    with pytest.raises(DeadlineExceededError) as raised:
        AclAdmin(router).delete_acls(AclFilter())
    assert "the response was lost, may have been carried out" in raised.value.__notes__[0]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_change_of_configs_that_is_refused_after_an_attempt_without_an_answer_says_so(
    is_lost: bool,
) -> None:
    no = {"error_code": 40, "error_message": "no", "resource_type": 2, "resource_name": "t"}
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("t")
        if is_lost:
            broker.on("IncrementalAlterConfigs", times=1).hang_up()
        broker.on("IncrementalAlterConfigs").reply({"responses": [no]})
        with pytest.raises(BrokerError, match="INVALID_CONFIG") as raised:
            admin.alter_configs(ConfigResource.topic("t"), append={"cleanup.policy": "compact"})
        assert ("the response was lost, may have been carried out" in str(raised.value)) == is_lost


def test_several_filters_go_in_one_request() -> None:
    router = Router(result(found("User:a")), result(found("User:b")))
    filters = [AclFilter(principal="User:a"), rule("User:b")]
    assert AclAdmin(router).delete_acls(filters) == [rule("User:a"), rule("User:b")]  # type: ignore[arg-type]
    assert [one.principal_filter for one in router.asked[0].filters] == ["User:a", "User:b"]


def test_what_is_refused_hides_neither_other_refusals_nor_what_was_deleted() -> None:
    router = Router(
        result(code=DENIED), result(found("User:a"), found("User:b", DENIED)), result(found("User:c"))
    )
    with pytest.raises(BrokerError, match="deleting ACLs: SECURITY_DISABLED") as raised:
        AclAdmin(router).delete_acls([AclFilter()] * 3)  # type: ignore[arg-type]
    notes = raised.value.__notes__
    assert notes[0] == f"deleted nevertheless: {rule('User:a')}"
    assert notes[1] == f"deleted nevertheless: {rule('User:c')}"
    assert f"deleting the ACL {rule('User:b')}" in notes[2]


def test_a_rule_selects_itself_alone_and_a_filter_by_its_fields() -> None:
    """A field that got lost would delete the rules of others."""
    router = Router(result(), result(), result())
    ours = Acl(
        resource="group",
        name="g",
        principal="User:a",
        operation="read",
        permission="deny",
        pattern="prefixed",
        host="10.0.0.1",
    )
    some = AclFilter(resource="topic", name="t", pattern="match", host="10.0.0.2", permission="allow")
    assert AclAdmin(router).delete_acls([ours, some, AclFilter()]) == []  # type: ignore[arg-type]
    assert router.asked[0].filters == [
        DeleteAclsFilter(
            resource_type_filter=3,
            resource_name_filter="g",
            pattern_type_filter=4,
            principal_filter="User:a",
            host_filter="10.0.0.1",
            operation=3,
            permission_type=2,
        ),
        DeleteAclsFilter(
            resource_type_filter=2,
            resource_name_filter="t",
            pattern_type_filter=2,
            principal_filter=None,
            host_filter="10.0.0.2",
            operation=1,
            permission_type=3,
        ),
        DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        ),
    ]


def test_rules_that_are_refused_are_all_named() -> None:
    router: Any = Router()
    results = [AclCreationResult(error_code=code, error_message=None) for code in (NONE, DENIED, DENIED)]
    router.response = CreateAclsResponse(throttle_time_ms=0, results=results)
    rules = [rule(f"User:{name}") for name in "abc"]
    with pytest.raises(BrokerError, match=f"creating the ACL {re.escape(str(rules[1]))}") as raised:
        AclAdmin(router).create_acls(rules)
    [note] = raised.value.__notes__
    assert str(rules[2]) in note


@pytest.mark.parametrize("count", [1, 3])
def test_results_that_belong_to_no_rule_are_no_outcome(count: int) -> None:
    """Which of the rules is meant is known by its place alone."""
    router: Any = Router()
    results = [AclCreationResult(error_code=NONE, error_message=None)] * count
    router.response = CreateAclsResponse(throttle_time_ms=0, results=results)
    with pytest.raises(ProtocolError, match=f"CreateAcls: {count} results for 2 rules"):
        AclAdmin(router).create_acls([rule("User:a"), rule("User:b")])


def test_rules_that_can_not_be_read_are_not_taken_for_none() -> None:
    router: Any = Router()
    router.response = DescribeAclsResponse(
        throttle_time_ms=0, error_code=DENIED, error_message=None, resources=[]
    )
    with pytest.raises(BrokerError, match="describing ACLs: SECURITY_DISABLED"):
        AclAdmin(router).describe_acls()


def test_a_rule_that_is_put_off_is_created_by_the_next_request_alone() -> None:
    """The controller has moved."""
    with MockBroker() as broker:
        broker.on("CreateAcls").reply({"results": [{}, {"error_code": ErrorCode.NOT_CONTROLLER}]})
        broker.on("CreateAcls").reply({"results": [{}]})
        with Admin(broker.bootstrap_servers, retry_backoff_ms=5) as admin:
            admin.create_acls([rule("User:a"), rule("User:b")])
        asked = [one.fields["creations"] for one in broker.asked("CreateAcls")]
    assert [[one["principal"] for one in creations] for creations in asked] == [
        ["User:a", "User:b"],
        ["User:b"],
    ]


def test_rules_are_described_as_they_are() -> None:
    """And can be deleted as they are shown: a prefix that passed for a name would select another rule."""
    ours = Acl(
        resource="group", name="g", principal="User:a", operation="write", permission="deny",
        pattern="prefixed", host="10.0.0.1",
    )  # fmt: skip
    description = {"principal": "User:a", "host": "10.0.0.1", "operation": 4, "permission_type": 2}
    newer = {"principal": "User:b", "host": "*", "operation": 99, "permission_type": 3}
    resources = [
        {"resource_type": 3, "resource_name": "g", "pattern_type": 4, "acls": [description]},
        {"resource_type": 2, "resource_name": "t", "pattern_type": 3, "acls": [newer]},
    ]
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.on("DescribeAcls").reply({"resources": resources})
        found, unknown = admin.describe_acls(AclFilter(resource="group", name="g", host="10.0.0.1"))
        [fields] = [one.fields for one in broker.asked("DescribeAcls")]
    assert found == ours
    assert str(unknown) == "allow User:b from * to unknown topic t"
    names = ("resource_type_filter", "resource_name_filter", "host_filter", "pattern_type_filter")
    assert [fields[name] for name in names] == [3, "g", "10.0.0.1", 1]


@pytest.mark.parametrize(
    "word", ["describe_configs", "Describe-Configs", "DescribeConfigs", " DESCRIBE_CONFIGS ", 10]
)
def test_a_word_of_a_rule_may_be_spelled_in_several_ways(word: Any) -> None:
    given = AclOperation(word) if isinstance(word, int) else word
    found = Acl(resource="Transactional-Id", name="t", principal="User:a", operation=given)
    assert (found.operation, found.resource) == (AclOperation.DESCRIBE_CONFIGS, AclResource.TRANSACTIONAL_ID)


@pytest.mark.parametrize("word", ["unknown", "reed", "", None, 3, "rea d"])
def test_a_word_that_no_rule_has_is_refused(word: Any) -> None:
    """A broker would take the number 0, which is unknown, for a word of a newer one."""
    with pytest.raises(ValueError, match="the operation of an ACL is one of any, all, read, "):
        Acl(resource="topic", name="t", principal="User:a", operation=word)
    with pytest.raises(ValueError, match="the operation of an ACL is one of any, all, read, "):
        AclFilter(operation=word)


@pytest.mark.parametrize("principal", ["alice", "", "User"])
def test_a_principal_without_a_type_is_refused(principal: str) -> None:
    """A rule for it would match no user, and deny nothing."""
    with pytest.raises(ValueError, match="a principal is written as User:name"):
        Acl(resource="topic", name="t", principal=principal, operation="read")
