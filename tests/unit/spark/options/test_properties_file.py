"""A client's properties file becomes options; those in conf/ are ones that work."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_kafka_native
from spark_kafka_native import options_from_properties
from spark_kafka_native.kafka.config.client_config import (
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    unknown_properties,
)
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.security import config_providers

CONF = sorted(Path(__file__).parents[4].glob("conf/*.properties"))
CLIENT_FILES = [path for path in CONF if path.stem != "test-broker"]


def test_names_get_their_prefix(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "bootstrap.servers=a:1\nkafka.client.id=x\nsubscribe=t\nstartingOffsets=earliest\n"
        "value.deserializer=org.apache.kafka.common.serialization.StringDeserializer\nKey.Serializer=x\nsasl.password=${env:P}\n"
    )
    assert options_from_properties(path) == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.client.id": "x",
        "subscribe": "t",
        "startingOffsets": "earliest",
        "kafka.sasl.password": "env:P",
    }
    assert options_from_properties(str(path)) == options_from_properties(path)


@pytest.mark.parametrize("prefix", ["", "kafka."])
def test_what_java_needs_for_variables_is_left_out(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "client.properties"
    provider = "env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider"
    names = f"{prefix}config.providers=env\n{prefix}config.providers.{provider}\n"
    path.write_text(f"{names}sasl.password=${{env:P}}\nconfig.provider=env\n")
    assert options_from_properties(path) == {"kafka.sasl.password": "env:P", "kafka.config.provider": "env"}


def test_variables_are_read_for_what_reads_and_writes_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V", "v")
    path = tmp_path / "client.properties"
    names = ["group.id", "kafka.transactional.id", "Subscribe", "value.my.setting", "key.deserializer"]
    unknown = ["basic.auth.user.info", "kafka.bearer.auth.token", "consumer.sasl.jaas.config"]
    path.write_text("\n".join(f"{name}=${{env:V}}" for name in [*names, *unknown]))
    assert options_from_properties(path) == {
        "kafka.group.id": "v",
        "kafka.transactional.id": "v",
        "Subscribe": "v",
        "value.my.setting": "v",
        "kafka.basic.auth.user.info": "env:V",
        "kafka.bearer.auth.token": "env:V",
        "kafka.consumer.sasl.jaas.config": "env:V",
    }


def test_settings_of_formats_and_registries_stay_as_they_are(tmp_path: Path) -> None:
    """With ``kafka.`` in front, values were decoded with the registry of keys and values. A format of another
    package may call its settings as it likes."""
    given = {
        "registry.url": "http://both",
        "value.registry.url": "http://values",
        "Key.Registry.User": "me",
        "value.format": "of-another-package",
        "value.my.setting": "x",
    }
    path = tmp_path / "client.properties"
    path.write_text("\n".join(f"{name}={text}" for name, text in given.items()))
    assert options_from_properties(path) == given


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1"])
def test_either_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "p"
    path.write_bytes("sasl.username=zoë".encode(encoding))
    assert options_from_properties(path) == {"kafka.sasl.username": "zoë"}


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"options_from_properties: .*none.* can't be read"):
        options_from_properties(tmp_path / "none")
    monkeypatch.setenv(config_providers.ALLOWED_FILES, "/nowhere")
    with pytest.raises(ConfigError, match="is not among PYKAFKA_ALLOWED_FILES"):
        options_from_properties(CONF[0])


@pytest.mark.parametrize("path", CLIENT_FILES, ids=lambda path: path.stem)
def test_the_files_in_conf_are_whole(path: Path) -> None:
    client = {name.removeprefix("kafka."): value for name, value in options_from_properties(path).items()}
    config = ClientConfig.from_properties(client)
    assert config.security.encrypted
    assert config.security.warnings == ()
    assert not unknown_properties(client, ClientConfig, ConsumerConfig, ProducerConfig)
    # Secrets are not in the file.
    secrets = [
        value
        for name, value in client.items()
        if any(word in name for word in ("password", "secret", "jaas"))
    ]
    assert all(value.startswith(("env:", "file:/")) for value in secrets)


def test_each_kind_of_cluster_has_a_file() -> None:
    assert {path.stem for path in CLIENT_FILES} == {
        "sasl-ssl-scram", "mtls", "oauthbearer", "confluent-cloud", "msk-iam", "event-hubs",
        "kerberos",
    }  # fmt: skip
    assert spark_kafka_native.options_from_properties is options_from_properties
