"""A realm for tests: the properties of Java's clients and of ours, and the skip without gssapi."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_kafka_native.testing import EmbeddedKafka, EmbeddedKdc

KRB5_CONF = Path(tempfile.mkdtemp(prefix="krb5-"), "krb5.conf")
"""The KRB5_CONFIG of Spark's Python workers: a session outlives the realms of several tests."""
atexit.register(shutil.rmtree, KRB5_CONF.parent, ignore_errors=True)


@contextmanager
def in_spark(kdc: EmbeddedKdc | None, **defaults: str) -> Iterator[None]:
    """Let Spark's Python workers use ``kdc``; ``defaults`` go into ``[libdefaults]``."""
    assert kdc is not None
    lines = "".join(f"\n  {name} = {value}" for name, value in defaults.items())
    KRB5_CONF.write_text(kdc.krb5_conf.read_text().replace("[libdefaults]", f"[libdefaults]{lines}"))
    yield
    KRB5_CONF.unlink()


def require_gssapi() -> None:
    """Skip the test where the package gssapi is not installed; fail it in continuous integration."""
    try:
        import gssapi  # noqa: F401
    except ImportError as error:
        how = "apt-get install libkrb5-dev; rm .venv/.installed; make"
        reason = f"the package gssapi is not there ({error}): {how}"
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
