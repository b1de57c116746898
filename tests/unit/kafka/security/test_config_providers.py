"""Files, references and the environment's restrictions; no error shows a value."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.security import config_providers
from spark_kafka_native.kafka.security.config_providers import (
    MAX_FILE_BYTES,
    MAX_VALUE_BYTES,
    check_url,
    read_file,
    read_properties,
    resolve,
    resolve_registry,
)

MARKED = "marked-content"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "secret"
    path.parent.mkdir()
    path.write_text(f"{MARKED}\r\n")
    return path


def test_values_and_references(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_VARIABLE", MARKED)
    assert resolve("x", Secret("plain")) == "plain"
    assert resolve("x", "env:SOME_VARIABLE") == MARKED
    assert resolve("x", Secret(f"file:{file}")) == MARKED
    assert resolve("x", "file:relative") == "file:relative"  # no reference: the value itself


@pytest.mark.parametrize("allowed", ["exact", "folder", "second"])
def test_an_allowed_file_is_read(file: Path, monkeypatch: pytest.MonkeyPatch, allowed: str) -> None:
    entries = {"exact": str(file), "folder": str(file.parent), "second": f"/nowhere:{file.parent}/"}
    monkeypatch.setenv(config_providers.ALLOWED_FILES, entries[allowed])
    assert read_file("x", str(file)).startswith(MARKED.encode())


@pytest.mark.parametrize("allowed", ["", "/nowhere", "sibling", "prefix"])
def test_any_other_is_not(file: Path, monkeypatch: pytest.MonkeyPatch, allowed: str) -> None:
    sibling = file.parent.with_name("in2")
    sibling.mkdir()
    entries = {"sibling": str(sibling), "prefix": str(file)[:-1]}
    monkeypatch.setenv(config_providers.ALLOWED_FILES, entries.get(allowed, allowed))
    with pytest.raises(ConfigError, match=r"ssl.ca.location: .* is not among PYKAFKA_ALLOWED_FILES"):
        read_file("ssl.ca.location", str(file))


@pytest.mark.parametrize("way", ["link", "dots"])
def test_there_is_no_way_out_of_an_allowed_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    folder = tmp_path / "allowed"
    folder.mkdir()
    (folder / "link").symlink_to(file)
    path = folder / "link" if way == "link" else folder / ".." / "in" / "secret"
    monkeypatch.setenv(config_providers.ALLOWED_FILES, str(folder))
    with pytest.raises(ConfigError, match="is not among"):
        read_file("x", str(path))


def test_an_allowed_folder_may_be_a_link(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mounted secret is, or /tmp on macOS."""
    link = tmp_path / "link"
    link.symlink_to(file.parent)
    monkeypatch.setenv(config_providers.ALLOWED_FILES, str(link))
    for path in (link / file.name, file):
        assert read_file("x", str(path)).startswith(MARKED.encode())


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("ssl.truststore.certificates", MAX_FILE_BYTES),
        ("ssl.keystore.key", MAX_FILE_BYTES),
        ("sasl.password", MAX_VALUE_BYTES),
        ("sasl.jaas.config", MAX_VALUE_BYTES),
    ],
)
def test_a_referenced_bundle_of_certificates_may_be_longer_than_a_password(
    tmp_path: Path, name: str, limit: int
) -> None:
    path = tmp_path / "value"
    path.write_text("x" * limit)
    assert len(resolve(name, f"file:{path}")) == limit
    path.write_text("x" * (limit + 1))
    with pytest.raises(ConfigError, match=f"is larger than {limit} bytes"):
        resolve(name, f"file:{path}")


def test_relative_names_are_found_in_the_folders_of_shipped_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, here = tmp_path / "shipped", tmp_path / "here"
    shipped.mkdir()
    here.mkdir()
    (shipped / "app.keytab").write_bytes(b"shipped")
    monkeypatch.chdir(here)
    monkeypatch.setattr(config_providers, "_folders", [])
    config_providers.look_in(lambda: None)
    config_providers.look_in(lambda: str(shipped))
    assert read_file("x", "app.keytab") == b"shipped"
    (here / "app.keytab").write_bytes(b"here")
    assert read_file("x", "app.keytab") == b"here"
    (here / "app.keytab").unlink()
    monkeypatch.setenv(config_providers.ALLOWED_FILES, str(here))
    with pytest.raises(ConfigError, match="is not among"):
        read_file("x", "app.keytab")
    for name in ("other.keytab", f"{here}/app.keytab"):
        monkeypatch.setenv(config_providers.ALLOWED_FILES, str(tmp_path))
        with pytest.raises(ConfigError, match="No such file"):
            read_file("x", name)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not show descriptors")
def test_a_folder_in_place_of_a_file_costs_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(ConfigError):
            read_file("x", str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) < before + 10


def test_unreadable_files_are_named_with_the_host(tmp_path: Path) -> None:
    host = socket.gethostname()
    with pytest.raises(ConfigError, match=rf"x: /no/such on {host} can't be read \(No such file"):
        read_file("x", "/no/such")
    with pytest.raises(ConfigError, match=r"is not a regular file|can't be read"):
        read_file("x", str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_file("x", str(tmp_path / "pipe"))
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_file("x", "/dev/zero")
    with pytest.raises(ConfigError, match="not a path"):
        read_file("x", "a\0b")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"x" * (MAX_VALUE_BYTES + 1), "is larger than 65536 bytes"),
        (b"\xff" + MARKED.encode(), "is not UTF-8 text"),
        (b"\n", "is empty"),
    ],
)
def test_a_referenced_file_is_a_short_text(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "value"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as caught:
        resolve("sasl.password", f"file:{path}")
    assert MARKED not in str(caught.value)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_only_the_line_breaks_at_the_end_of_a_referenced_file_are_left_out(tmp_path: Path, end: str) -> None:
    path = tmp_path / "value"
    path.write_bytes(b" first\nsecond\t " + end.encode())
    assert resolve("sasl.password", f"file:{path}") == " first\nsecond\t "


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_only_the_line_breaks_at_the_end_of_a_referenced_variable_are_left_out(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setenv("VALUE", f" first\nsecond\t {end}")
    assert resolve("sasl.password", "env:VALUE") == " first\nsecond\t "
    monkeypatch.setenv("VALUE", end)
    with pytest.raises(ConfigError, match="VALUE is not set"):
        resolve("sasl.password", "env:VALUE")


def test_only_allowed_environment_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", MARKED)
    monkeypatch.setenv("KAFKA_PASSWORD", "p")
    monkeypatch.setenv(config_providers.ALLOWED_VARIABLES, "OTHER, KAFKA_PASSWORD")
    assert resolve("x", "env:KAFKA_PASSWORD") == "p"
    for allowed in ("OTHER, KAFKA_PASSWORD", "", ","):
        monkeypatch.setenv(config_providers.ALLOWED_VARIABLES, allowed)
        with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY is not among PYKAFKA_ALLOWED_VARIABLES"):
            resolve("x", "env:AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv(config_providers.ALLOWED_VARIABLES, "KAFKA_PASSWORD")
    monkeypatch.setenv("KAFKA_PASSWORD", "")
    with pytest.raises(ConfigError, match="KAFKA_PASSWORD is not set on"):
        resolve("x", "env:KAFKA_PASSWORD")


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "SASL.jaas.config.secret",
        "kafka.sasl.username",
        "ssl.key.password",
        "ssl.ca.pem",
        "registry.password",
        "Value.Registry.Token",
    ],
)
def test_a_variable_of_a_properties_file_is_read_later_where_it_can_be(name: str) -> None:
    assert read_properties(f"{name}=${{env:NOT_SET_HERE}}", known) == {name: "env:NOT_SET_HERE"}


def known(_: str) -> bool:
    return True


def test_a_variable_of_a_property_that_nothing_reads_stays_where_it_is() -> None:
    """It may be the secret of another program, and Spark shows options."""
    asked: list[str] = []
    text = "kafka.Basic.auth=${env:NOT_SET_HERE}"
    found = read_properties(text, lambda name: bool(asked.append(name)))
    assert (found, asked) == ({"kafka.Basic.auth": "env:NOT_SET_HERE"}, ["kafka.basic.auth"])


@pytest.mark.parametrize("name", ["group.id", "kafka.client.rack", "ssl.truststore.location", "subscribe"])
def test_a_variable_of_any_other_property_is_read_with_the_file(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """``group.id=${env:GROUP}`` was the group ``env:GROUP``, in each environment the same one."""
    monkeypatch.setenv("GROUP", "billing")
    assert read_properties(f"{name}=${{env:GROUP}} ", known) == {name: "billing"}
    assert read_properties(f"{name}=env:GROUP", known) == {name: "env:GROUP"}  # Java knows no such reference
    with pytest.raises(ConfigError, match=f"{name}: the environment variable NOT_SET_HERE is not set"):
        read_properties(f"{name}=${{env:NOT_SET_HERE}}", known)
    monkeypatch.setenv(config_providers.ALLOWED_VARIABLES, "OTHER")
    with pytest.raises(ConfigError, match=f"{name}: .* GROUP is not among PYKAFKA_ALLOWED_VARIABLES"):
        read_properties(f"{name}=${{env:GROUP}}", known)


def test_only_allowed_urls_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    check_url("x", "https://any/where")
    monkeypatch.setenv(config_providers.ALLOWED_URLS, "https://a/token, https://b/token")
    check_url("x", "https://b/token")
    for other in ("https://b/token/", "https://b.evil/token", "https://b/token?x=1", ""):
        with pytest.raises(ConfigError, match="is not among PYKAFKA_ALLOWED_URLS"):
            check_url("x", other)
    monkeypatch.setenv(config_providers.ALLOWED_URLS, "")
    for other in ("https://a/token", ""):
        with pytest.raises(ConfigError, match="is not among PYKAFKA_ALLOWED_URLS"):
            check_url("x", other)


def test_only_settings_of_a_registry_are_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema, or a column's name, may look like one."""
    monkeypatch.setenv("REGISTRY_PASSWORD", "p")
    monkeypatch.setenv(config_providers.ALLOWED_URLS, "https://a, https://b")
    given = {"registry.url": "https://a,https://b", "registry.password": "env:REGISTRY_PASSWORD"}
    other = {"rowtag": "env:REGISTRY_PASSWORD"}
    assert resolve_registry(given | other) == given | other | {"registry.password": "p"}
    for name in ("registry.user", "registry.token", "registry.ssl.key", "registry.ssl.keyPassword"):
        assert resolve_registry({name: "env:REGISTRY_PASSWORD"}) == {name: "p"}
    with pytest.raises(ConfigError, match=r"registry.url: this URL is not among"):
        resolve_registry({"registry.url": "https://a,https://c"})


@pytest.mark.parametrize(("text", "allowed"), [("https://a", True), ("https://a, https://c", False)])
def test_a_url_of_a_registry_that_is_a_reference_is_judged_by_what_it_refers_to(
    monkeypatch: pytest.MonkeyPatch, text: str, allowed: bool
) -> None:
    monkeypatch.setenv("REGISTRY_URL", text)
    monkeypatch.setenv(config_providers.ALLOWED_URLS, "https://a,env:REGISTRY_URL")
    given = {"registry.url": "env:REGISTRY_URL"}
    if allowed:
        assert resolve_registry(given) == {"registry.url": text}
        return
    with pytest.raises(ConfigError, match=r"registry.url: this URL is not among"):
        resolve_registry(given)


def test_files_of_processes_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(config_providers.ALLOWED_VARIABLES, "NOTHING")
    for path in ("/proc/self/environ", "/proc/self/../self/environ", "/proc/self/cmdline"):
        with pytest.raises(ConfigError, match="is not a regular file"):
            resolve("sasl.password", f"file:{path}")


def test_a_link_put_there_meanwhile_is_not_followed(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    monkeypatch.setattr(config_providers.os.path, "realpath", str)
    with pytest.raises(ConfigError, match="can't be read"):
        read_file("x", str(link))


def test_text_that_is_not_utf8_never_reaches_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "LATIN", os.fsdecode(b"p\xe4ss" + MARKED.encode()))
    for value in ("env:LATIN", Secret(f"\ud800{MARKED}")):
        with pytest.raises(ConfigError, match=r"^sasl.password is not UTF-8 text$"):
            resolve("sasl.password", value)
