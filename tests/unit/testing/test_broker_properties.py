import pytest

from spark_kafka_native.testing.broker_files import (
    ClusterSettings,
    Ports,
    build_properties,
    check_listeners,
    scram_records,
    write_properties,
)
from spark_kafka_native.testing.credentials import write_certificates


def settings(brokers=1, listeners=("PLAINTEXT",), **others):
    ports = {
        node_id: Ports(
            listeners={name: 1000 * node_id + i for i, name in enumerate(listeners)},
            internal=1000 * node_id + 100,
            controller=1000 * node_id + 200,
        )
        for node_id in range(1, brokers + 1)
    }
    return ClusterSettings(ports=ports, **others)


def test_one_broker_is_its_own_quorum():
    made = build_properties(settings(), 1, "/data")
    assert made["controller.quorum.voters"] == "1@127.0.0.1:1200"
    assert (
        made["listeners"]
        == "PLAINTEXT://127.0.0.1:1000,INTERNAL://127.0.0.1:1100,CONTROLLER://127.0.0.1:1200"
    )
    assert made["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1000,INTERNAL://127.0.0.1:1100"
    assert made["default.replication.factor"] == "1"
    assert made["min.insync.replicas"] == "1"
    assert int(made["broker.session.timeout.ms"]) > 9_000


def test_three_brokers_survive_the_loss_of_one():
    made = build_properties(settings(3), 2, "/data")
    assert made["node.id"] == "2"
    assert made["controller.quorum.voters"] == "1@127.0.0.1:1200,2@127.0.0.1:2200,3@127.0.0.1:3200"
    for name in ("default", "offsets.topic", "transaction.state.log"):
        assert made[f"{name}.replication.factor"] == "3"
    assert made["min.insync.replicas"] == made["transaction.state.log.min.isr"] == "2"


def test_given_properties_win():
    assert build_properties(settings(properties={"num.io.threads": "9"}), 1, "/data")["num.io.threads"] == "9"


def test_accounts_only_on_sasl_listeners():
    made = build_properties(
        settings(listeners=("PLAINTEXT", "SASL_PLAINTEXT"), users={"bob": "b"}), 1, "/data"
    )
    prefix = "listener.name.sasl_plaintext."
    assert made[f"{prefix}sasl.enabled.mechanisms"] == "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
    assert 'user_bob="b";' in made[f"{prefix}plain.sasl.jaas.config"]
    assert not [name for name in made if name.startswith("listener.name.plaintext.")]


def test_tls_listeners_need_certificates(tmp_path):
    with pytest.raises(ValueError, match="the listener SSL needs certificates"):
        build_properties(settings(listeners=("SSL",)), 1, "/data")
    certificates = write_certificates(tmp_path, "127.0.0.1", "localhost")
    made = build_properties(
        settings(listeners=("SSL",), certificates=certificates, client_auth="required"), 1, "/data"
    )
    assert made["listener.name.ssl.ssl.keystore.location"] == str(certificates.server)
    assert made["listener.name.ssl.ssl.client.auth"] == "required"


@pytest.mark.parametrize("name", ["server", "client", "client_key"])
def test_private_keys_are_in_the_only_form_that_java_reads(tmp_path, name):
    """PKCS#8."""
    certificates = write_certificates(tmp_path, "127.0.0.1", "localhost")
    assert b"BEGIN PRIVATE KEY" in getattr(certificates, name).read_bytes()


def test_scram_records():
    assert scram_records({"al": "pw"}) == [
        "SCRAM-SHA-256=[name=al,password=pw]",
        "SCRAM-SHA-512=[name=al,password=pw]",
    ]


@pytest.mark.parametrize(
    ("listeners", "complaint"),
    [(["TLS"], "no listener 'TLS'"), ([], "at least one"), (["SSL", "SSL"], "each only once")],
)
def test_listeners_are_checked(listeners, complaint):
    with pytest.raises(ValueError, match=complaint):
        check_listeners(listeners)


def test_properties_file_escapes():
    assert write_properties({"a": "C:\\x = ä€😀"}) == "a=C\\:\\\\x \\= \\u00e4\\u20ac\\ud83d\\ude00\n"
