"""`Admin` on a broker with an authorizer and SCRAM users."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from support.consumer.reading import wait_until

from spark_kafka_native.cli.main import main
from spark_kafka_native.kafka import (
    Acl,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    Admin,
    AuthenticationError,
    BrokerError,
    ConfigResource,
    ErrorCode,
    KafkaError,
    NewTopic,
    Secret,
    TopicPartition,
)
from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.records.columns import HEADERS_TYPE, RecordColumns
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read.offset_range import At, OffsetRange
from spark_kafka_native.spark.read.worker.bad_record_handler import UndecodedRecord
from spark_kafka_native.spark.read.worker.dead_letters import DeadLetterError, DeadLetters
from spark_kafka_native.spark.write.driver.stream_commit import commit_transactions
from spark_kafka_native.spark.write.worker.transactional_task import BatchTask, write_once
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import RowColumns
from spark_kafka_native.testing import EmbeddedKafka
from spark_kafka_native.testing.embedded_kafka import ACLS

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(listeners=("PLAINTEXT", "SASL_PLAINTEXT", "SSL"), properties=dict(ACLS)) as running:
        yield running


@pytest.fixture(scope="module")
def admin(secured: EmbeddedKafka) -> Iterator[Admin]:
    with Admin(secured.bootstrap_servers_for("PLAINTEXT")) as admin:
        yield admin


def test_rules_are_added_found_and_deleted(admin: Admin) -> None:
    one = Acl(resource="topic", name="orders", principal="User:bob", operation="read")
    other = Acl(
        resource=AclResource.GROUP,
        name="readers-",
        pattern="prefixed",
        principal="User:bob",
        operation=AclOperation.ALL,
        permission="deny",
        host="10.0.0.1",
    )
    whole = Acl(resource="cluster", principal="User:bob", operation="describe-configs")
    admin.create_acls([one, other, whole])

    bobs = AclFilter(principal="User:bob")
    wait_until("the rules are there", lambda: len(admin.describe_acls(bobs)) == 3, 60)
    assert set(admin.describe_acls(bobs)) == {one, other, whole}
    assert admin.describe_acls(AclFilter(resource="group", permission="deny")) == [other]
    assert admin.describe_acls(AclFilter(resource="group", name="readers-7", pattern="match")) == [other]
    assert str(other) == "deny User:bob from 10.0.0.1 to all prefixed group readers-"
    assert one in admin.describe_acls()

    assert admin.delete_acls(one) == [one]
    assert set(admin.delete_acls(bobs)) == {other, whole}
    wait_until("the rules are gone", lambda: not admin.describe_acls(bobs), 60)


def test_words_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="the operation of an ACL is one of any, all, read"):
        Acl(resource="topic", name="orders", principal="User:bob", operation="raed")
    with pytest.raises(ValueError, match="User:name"):
        Acl(resource="topic", name="orders", principal="bob", operation="read")
    assert AclPermission(99) is AclPermission.UNKNOWN
    assert Acl(resource="transactional_id", name="x", principal="User:x", operation="write").pattern is (
        AclPattern.LITERAL
    )


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_scram_user_logs_in_until_it_is_deleted(
    secured: EmbeddedKafka, admin: Admin, mechanism: str
) -> None:
    user = f"carol-{mechanism[-3:]}"
    admin.set_scram_user(user, Secret("pass word"), mechanism=mechanism, iterations=4096)
    wait_until("the user is known", lambda: admin.describe_scram_users([user])[user], 60)
    assert admin.describe_scram_users()[user] == {mechanism: 4096}
    assert admin.describe_scram_users(["nobody"]) == {"nobody": {}}

    def topics(password: str) -> list[str]:
        settings = {
            "bootstrap.servers": secured.bootstrap_servers_for("SASL_PLAINTEXT"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }
        with Admin(settings) as carol:
            return carol.list_topics()

    assert topics("pass word") == []
    with pytest.raises(AuthenticationError):
        topics("password")

    admin.delete_scram_user(user, mechanism=mechanism)
    with pytest.raises(BrokerError) as raised:
        admin.delete_scram_user(f"{user}-never", mechanism=mechanism)
    assert raised.value.error_code is ErrorCode.RESOURCE_NOT_FOUND
    wait_until("the user is gone", lambda: admin.describe_scram_users([user]) == {user: {}}, 60)


def test_a_password_never_shows(admin: Admin) -> None:
    with pytest.raises(ValueError, match="iterations must be from 4096") as raised:
        admin.set_scram_user("carol", "geheim", iterations=1)
    assert "geheim" not in str(raised.value)
    with pytest.raises(ValueError, match="SCRAM-SHA-256, SCRAM-SHA-512"):
        admin.set_scram_user("carol", "geheim", mechanism="PLAIN")


def test_rules_on_the_command_line(secured: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["acls", *arguments, "-b", secured.bootstrap_servers_for("PLAINTEXT")]) == 0
        return capsys.readouterr().out

    dave = ("--principal", "User:dave")
    added = run(
        "add", *dave, "--operation", "read", "--operation", "describe", "--topic", "orders-", "--prefix"
    )
    assert added.splitlines()[0] == "allow\tUser:dave\t*\tread\ttopic\torders-\tprefixed"
    wait_until("both are there", lambda: sorted(run(*dave).splitlines()) == sorted(added.splitlines()), 60)
    (told,) = json.loads(run(*dave, "--operation", "read", "--json"))
    assert (told["resource"], told["pattern"]) == ("topic", "prefixed")
    denied = ("add", *dave, "--operation", "read", "--topic", "orders-")
    run(*denied, "--deny")
    run(*denied)
    wait_until("all are there", lambda: len(run(*dave).splitlines()) == 4, 60)
    # What allows is removed: not the denial, and not what another pattern allows.
    removed = run("remove", *dave, "--operation", "read", "--topic", "orders-")
    assert removed == "allow\tUser:dave\t*\tread\ttopic\torders-\tliteral\n"
    assert len(run("remove", *dave, "--deny").splitlines()) == 1
    assert len(run("remove", *dave).splitlines()) == 2
    wait_until("both are gone", lambda: run(*dave) == "", 60)


def test_the_doctor_sees_certificates_and_credentials(
    secured: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    assert secured.certificates is not None

    def findings(listener: str, **properties: str) -> dict[str, str]:
        given = [f"{name.replace('_', '.')}={value}" for name, value in properties.items()]
        options = [option for one in [f"security.protocol={listener}", *given] for option in ("-X", one)]
        main(["doctor", "--json", *options, "-b", secured.bootstrap_servers_for(listener)])
        told = capsys.readouterr()
        assert "geheim" not in told.out + told.err
        return {one["check"].split()[0]: f"{one['status']}: {one['detail']}" for one in json.loads(told.out)}

    trusted = findings("SSL", ssl_truststore_location=str(secured.certificates.authority))
    assert trusted["TLS"].startswith("ok: TLSv1.3")
    assert "valid until" in trusted["TLS"]
    assert findings("SSL")["TLS"].startswith("error: the certificate is not accepted")
    wrong = findings(
        "SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512", sasl_username="alice", sasl_password="geheim"
    )
    assert wrong["Kafka"].startswith("error: ")


def test_an_exactly_once_write_says_which_acl_it_lacks(secured: EmbeddedKafka, admin: Admin) -> None:
    admin.set_scram_user("erin", Secret("pass word"), mechanism="SCRAM-SHA-256", iterations=4096)
    wait_until("the user is known", lambda: admin.describe_scram_users(["erin"])["erin"], 60)
    admin.create_topics([NewTopic(name=name, partitions=1) for name in ("once-out", "once-markers")])
    admin.alter_configs(ConfigResource.topic("once-markers"), {"cleanup.policy": "compact"})
    given = {
        "kafka.bootstrap.servers": secured.bootstrap_servers_for("SASL_PLAINTEXT"),
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.username": "erin",
        "kafka.sasl.password": "pass word",
        "kafka.retry.backoff.ms": "10",
        "topic": "once-out",
        "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": "once-job",
    }

    def outcome(**more: str) -> str:
        """Of a whole micro-batch, task and driver."""
        options = WriteOptions.parse(OptionValues.parse(given | more, Scope.WRITE))
        assert options.exactly_once is not None
        columns = RowColumns(names=("value",), topic="once-out")
        rows = [pa.record_batch({"value": pa.array([b"v"], pa.binary())})]
        task = BatchTask(query_id="q", batch_id=0, partition=0)
        try:
            message = write_once(iter(rows), columns, options, options.exactly_once, task)
            commit_transactions([message], 0, options, options.exactly_once)
        except KafkaError as error:
            return str(error)
        return "written"

    def allow(operation: str, resource: str, name: str, pattern: str = "literal") -> None:
        admin.create_acls(
            [Acl(resource=resource, name=name, principal="User:erin", operation=operation, pattern=pattern)]
        )

    marker_topic = {"transactionMarkerTopic": "once-markers"}
    for more, words, rule in (
        ({}, "Describe on the transactional id", ("describe", "transactional_id", "once-job", "prefixed")),
        ({}, "Write on the transactional id", ("write", "transactional_id", "once-job", "prefixed")),
        (marker_topic, "DescribeConfigs on the topic", ("describe_configs", "topic", "once-markers")),
        (marker_topic, "once-markers.*TOPIC_AUTHORIZATION_FAILED", ("read", "topic", "once-markers")),
        (marker_topic, "once-out.*TOPIC_AUTHORIZATION_FAILED", ("write", "topic", "once-out")),
        (marker_topic, "once-markers.*TOPIC_AUTHORIZATION_FAILED", ("write", "topic", "once-markers")),
        (marker_topic, "^written$", None),
        ({}, "Describe on the group", ("describe", "group", "once-job", "prefixed")),
        ({}, "Read on the group", ("read", "group", "once-job", "prefixed")),
        ({}, "Read on the topic", ("read", "topic", "once-out")),
        ({}, "^written$", None),
    ):
        # A rule takes a moment to reach the authorizer.
        deadline = time.monotonic() + 120
        while re.search(words, said := outcome(**more)) is None:
            assert time.monotonic() < deadline, (words, said)
        if rule is not None:
            allow(*rule)


def test_dead_letters_say_which_acl_they_lack(secured: EmbeddedKafka, admin: Admin) -> None:
    admin.set_scram_user("frank", Secret("pass word"), mechanism="SCRAM-SHA-256", iterations=4096)
    wait_until("the user is known", lambda: admin.describe_scram_users(["frank"])["frank"], 60)
    admin.create_topics([NewTopic(name=name, partitions=1) for name in ("dlq-in", "dlq-out")])
    client = ClientConfig.from_properties(
        {
            "bootstrap.servers": secured.bootstrap_servers_for("SASL_PLAINTEXT"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "frank",
            "sasl.password": "pass word",
            "retry.backoff.ms": "10",
        }
    )
    source = TopicPartition("dlq-in", 0)
    letters = DeadLetters(
        router=router_for(client),
        client=client,
        topic="dlq-out",
        name="dlq-job-q-dlq-hash",
        query_id="q",
        ranges={source: OffsetRange(topic="dlq-in", partition=0, start=At(0), end=At(9))},
    )
    records = RecordColumns(
        length=1,
        timestamp_ms=np.zeros(1, np.int64),
        key=pa.array([b"k"]),
        value=pa.array([b"v"]),
        headers=pa.nulls(1, HEADERS_TYPE),
    )

    def outcome() -> str:
        try:
            letters.send(source, [UndecodedRecord(row=0, offset=3, stages=("value",), reason="why")], records)
        except DeadLetterError as error:
            return str(error)
        return "written"

    for words, rule in (
        ("Describe on the transactional id", ("describe", "transactional_id", "dlq-job", "prefixed")),
        ("Write on the transactional id", ("write", "transactional_id", "dlq-job", "prefixed")),
        ("Describe on the group", ("describe", "group", "dlq-job", "prefixed")),
        ("TOPIC_AUTHORIZATION_FAILED .*Describe on the topic", ("read", "topic", "dlq-in")),
        ("dlq-out: TOPIC_AUTHORIZATION_FAILED", ("write", "topic", "dlq-out")),
        ("Read on the group", ("read", "group", "dlq-job", "prefixed")),
        ("^written$", None),
    ):
        # A rule takes a moment to reach the authorizer.
        deadline = time.monotonic() + 120
        while re.search(words, said := outcome()) is None:
            assert time.monotonic() < deadline, (words, said)
        if rule is not None:
            name, pattern = rule[2], "prefixed" if len(rule) > 3 else "literal"
            admin.create_acls(
                [Acl(resource=rule[1], name=name, principal="User:frank", operation=rule[0], pattern=pattern)]
            )
