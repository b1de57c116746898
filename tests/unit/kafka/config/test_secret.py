"""A secret shows nothing in any format."""

from __future__ import annotations

import logging
import pickle
import traceback

import pytest

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.secret import Secret, is_reference

TEXT = "hunter2-marked"


def test_no_way_of_printing_shows_it(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(TEXT)
    texts = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>20}",
        f"{secret:>20}",
        f"{secret}",
        str([secret]),
    ]
    texts += [str({"a": secret}), str((secret,)), "%s" % secret, "{}".format(secret)]  # noqa: UP031, UP032
    logging.getLogger("t").warning("%s %r", secret, secret)
    try:
        raise ValueError(secret)
    except ValueError:
        texts.append(traceback.format_exc())
    assert TEXT not in "".join(texts) + caplog.text
    assert secret.reveal() == TEXT


def test_it_is_a_value() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert {Secret("a"): 1}[Secret("a")] == 1
    assert pickle.loads(pickle.dumps(Secret("ä\udc00"))) == Secret("ä\udc00")
    with pytest.raises(TypeError):
        Secret(b"bytes")  # type: ignore[arg-type]
    assert not hasattr(Secret("a"), "__len__")


@pytest.mark.parametrize("text", ["env:A", "env:_a9", "file:/etc/x", "file:/a b/ä"])
def test_references(text: str) -> None:
    assert is_reference(text)


@pytest.mark.parametrize(
    "text", ["env:", "env:9", "env:A-B", "file:", "file:a", "file://", "File:/a", "x", "file:/a\nb"]
)
def test_anything_else_is_the_value_itself(text: str) -> None:
    assert is_reference(text) == (text == "file://")


def test_a_config_shows_none_of_its_secrets() -> None:
    names = {
        "sasl.password": None,
        "ssl.keystore.key": "ssl.keystore.certificate.chain",
        "ssl.key.password": None,
        "ssl.keystore.password": None,
        "ssl.truststore.password": None,
        "sasl.oauthbearer.token": None,
        "sasl.oauthbearer.client.secret": None,
        "sasl.jaas.config": None,
    }
    properties = {"bootstrap.servers": "a:1"}
    for number, (name, partner) in enumerate(names.items()):
        properties[name] = f"{TEXT}-{number}"
        if partner:
            properties[partner] = "certificate"
    config = ClientConfig.from_properties(properties)
    assert TEXT not in repr(config) + str(config) + f"{config}"
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(ClientConfig.from_properties(properties))
