"""A realm for tests: the properties of Java's clients and of ours, and the skip without gssapi."""

from __future__ import annotations

import os

import pytest

from spark_kafka_native.testing import EmbeddedKafka, EmbeddedKdc


def require_gssapi() -> None:
    """Skip the test where the package gssapi is not installed; fail it in continuous integration."""
    try:
        import gssapi  # noqa: F401
    except ImportError as error:
        reason = f"the package gssapi is not there ({error}): apt-get install libkrb5-dev, then make again"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def java_properties(kdc: EmbeddedKdc, user: str = "alice") -> dict[str, str]:
    """The properties of a client as Java's users have them."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true "
        f'storeKey=true keyTab="{kdc.keytab(user)}" principal="{kdc.principal(user)}";',
    }


def plain_properties(kafka: EmbeddedKafka, user: str = "alice") -> dict[str, str]:
    """The properties of a client of ours, without Java's words."""
    assert kafka.kdc is not None
    return {
        "bootstrap.servers": kafka.bootstrap_servers_for("SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.principal": kafka.kdc.principal(user),
        "sasl.kerberos.keytab": str(kafka.kdc.keytab(user)),
    }
