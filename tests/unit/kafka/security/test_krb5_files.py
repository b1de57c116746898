"""krb5.conf and keytabs, as MIT's library and Java read them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.security.krb5_files import (
    config_path,
    keytab_principals,
    read_krb5_conf,
)

CONF = """\
# comment
[libdefaults]
  default_realm = EXAMPLE.COM
  default_realm = LATER.COM
  dns_canonicalize_hostname = "no"
  rdns = true
  auth_to_local_names = {
  }
[realms]
  EXAMPLE.COM = {
    kdc = one.example.com
    kdc = two.example.com:1088
    admin_server = one.example.com
    auth_to_local_names = {
      name = nested
      kdc = nested.example.com
    }
    kdc = three.example.com
  }
  EMPTY.COM = {
  }
[domain_realm]
  Broker.Other.com = HOST.COM
  .example.com = EXAMPLE.COM
  .eu.example.com = EU.EXAMPLE.COM
  bare.org = BARE.ORG
  both.org = BOTH.ORG
  .both.org = UNDER.BOTH.ORG
  broker.other.com = LATER.COM
; comment
[appdefaults]
  kdc = nowhere
"""


@pytest.fixture
def conf_path(tmp_path: Path) -> Path:
    path = tmp_path / "krb5.conf"
    path.write_text(CONF)
    return path


def test_a_comment_in_another_encoding_hides_nothing(conf_path: Path) -> None:
    conf_path.write_bytes(b"# K\xf6ln\n" + CONF.encode())
    assert read_krb5_conf(str(conf_path)).default_realm == "EXAMPLE.COM"


def test_what_a_client_needs(conf_path: Path) -> None:
    conf = read_krb5_conf(str(conf_path))
    assert conf.default_realm == "EXAMPLE.COM"
    assert conf.is_off("dns_canonicalize_hostname")
    assert not conf.is_off("rdns")
    assert not conf.is_off("dns_lookup_kdc")
    of_example = ["one.example.com", "two.example.com:1088", "three.example.com"]
    assert conf.kdcs == {"EXAMPLE.COM": of_example, "EMPTY.COM": []}
    assert conf.files == [str(conf_path)]


@pytest.mark.parametrize(
    ("text", "is_off"),
    [
        *((text, True) for text in ("n", "no", "false", "nil", "0", "off", "No", "FALSE", '"Off"')),
        *((text, False) for text in ("y", "yes", "true", "t", "1", "on", "Yes", "none", "")),
    ],
)
def test_what_says_no_in_any_case(conf_path: Path, text: str, is_off: bool) -> None:
    conf_path.write_text(f"[libdefaults]\ndns_lookup_kdc = {text}\n")
    assert read_krb5_conf(str(conf_path)).is_off("dns_lookup_kdc") is is_off


@pytest.mark.parametrize(
    ("host", "realm"),
    [
        ("broker.other.com", "HOST.COM"),
        ("other.com", None),
        ("a.example.com", "EXAMPLE.COM"),
        ("a.b.example.com", "EXAMPLE.COM"),
        ("a.eu.example.com", "EU.EXAMPLE.COM"),
        ("example.com", None),
        ("x.bare.org", "BARE.ORG"),
        ("bare.org", "BARE.ORG"),
        ("both.org", "BOTH.ORG"),
        ("x.both.org", "UNDER.BOTH.ORG"),
        ("bare.org.", None),
        ("localhost", None),
        ("", None),
    ],
)
def test_the_realm_of_a_host(conf_path: Path, host: str, realm: str | None) -> None:
    assert read_krb5_conf(str(conf_path)).realm_of(host) == realm


def test_includes_and_several_files(tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "10-realm").write_text("[libdefaults]\ndefault_realm = INCLUDED.COM\n")
    (folder / "kdc.conf").write_text("[realms]\nA = {\nkdc = a\n}\n")
    (folder / ".hidden.conf").write_text("[realms]\nHIDDEN = {\n}\n")
    (folder / "old.rpmsave").write_text("[realms]\nOLD = {\n}\n")
    main, second = tmp_path / "main", tmp_path / "second"
    main.write_text(f"includedir {folder}\ninclude {second}\nincludedir /no/such\ninclude {main}\n")
    second.write_text("[libdefaults]\ndefault_realm = SECOND.COM\nrdns = off\n")
    conf = read_krb5_conf(f"/no/such/file:{main}:{second}")
    assert conf.default_realm == "INCLUDED.COM"
    assert conf.is_off("rdns")
    assert conf.kdcs == {"A": ["a"]}
    assert len(conf.files) == 4


def test_the_environment_names_the_file(conf_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CONFIG", str(conf_path))
    assert read_krb5_conf().default_realm == "EXAMPLE.COM"
    monkeypatch.delenv("KRB5_CONFIG")
    assert config_path() == "/etc/krb5.conf"


@pytest.mark.parametrize(
    "content", [b"\0\xff", b"}\n{\n= =\n[\n[]\nkdc = x", b"[realms]\n= {\nkdc\n", b"include \n"]
)
def test_nonsense_is_no_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "nonsense"
    path.write_bytes(content)
    assert read_krb5_conf(str(path)).default_realm is None
    assert read_krb5_conf(str(tmp_path)).files == []


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def entry(*parts: str, realm: str = "EXAMPLE.COM") -> bytes:
    key = struct.pack(">IIBHH", 1, 0, 1, 18, 32) + b"k" * 32
    content = struct.pack(">H", len(parts)) + text(realm) + b"".join(map(text, parts)) + key
    return struct.pack(">i", len(content)) + content


def test_the_principals_of_a_keytab() -> None:
    hole = struct.pack(">i", -5) + b"\0" * 5
    content = b"\x05\x02" + entry("alice") + hole + entry("alice") + entry("kafka", "host") + b"\0"
    assert keytab_principals("x", content) == ["alice@EXAMPLE.COM", "kafka/host@EXAMPLE.COM"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a keytab; create it with"),
        (b"\x05\x01" + entry("alice"), "is not a keytab"),
        (b"-----BEGIN", "is not a keytab"),
        (b"\x05\x02", "is a keytab without entries"),
        (b"\x05\x02" + entry("alice")[:12], "is a damaged keytab; copy it again, in binary mode"),
        (b"\x05\x02" + struct.pack(">iH", 2, 65535), "is a damaged keytab"),
        (b"\x05\x02" + struct.pack(">iHH", 1000, 1, 60_000), "is a damaged keytab"),
        (b"\x05\x02" + entry("a").replace(b"EXAMPLE", b"\xff\xfeAMPLE"), "is a damaged keytab"),
    ],
)
def test_what_is_no_keytab(content: bytes, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^shown {says}") as raised:
        keytab_principals("shown", content)
    assert "kkkk" not in str(raised.value)
