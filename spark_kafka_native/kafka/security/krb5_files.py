"""The files of Kerberos, read for what the Kerberos library does not tell: ``krb5.conf``, and the principals
in a keytab. No key is kept.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..errors import ConfigError

CONFIG_VARIABLE: Final = "KRB5_CONFIG"
_DEFAULT: Final = "/etc/krb5.conf"
_MAX_CONF_BYTES: Final = 1024 * 1024
_MAX_FILES: Final = 64
_INCLUDED_NAME: Final = re.compile(r"[A-Za-z0-9_-]+|[^.].*\.conf")
_FALSE: Final = ("n", "no", "false", "nil", "0", "off")

Section = dict[str, str]


@dataclass
class Krb5Conf:
    """What this client needs of ``krb5.conf``; the first of several equal relations counts, as in MIT's
    library.
    """

    files: list[str] = field(default_factory=list)
    """Those that could be read."""
    defaults: Section = field(default_factory=dict)
    domains: Section = field(default_factory=dict)
    kdcs: dict[str, list[str]] = field(default_factory=dict)
    """The ``kdc`` relations of each realm."""

    @property
    def default_realm(self) -> str | None:
        """``default_realm``; None if there is none."""
        return self.defaults.get("default_realm")

    def is_off(self, name: str) -> bool:
        """True if the relation ``name`` of ``[libdefaults]`` says no."""
        return self.defaults.get(name, "").lower() in _FALSE

    def realm_of(self, host: str) -> str | None:
        """The realm of ``host`` by ``[domain_realm]``: its name itself, then its domains from the longest to
        the shortest, each with and without a dot in front. None if nothing matches.
        """
        if (found := self.domains.get(host)) is not None:
            return found
        for at in (at for at, letter in enumerate(host) if letter == "." and 0 < at < len(host) - 1):
            found = self.domains.get(host[at:]) or self.domains.get(host[at + 1 :])
            if found is not None:
                return found
        return None


def config_path() -> str:
    """Where ``krb5.conf`` is looked for; several files are separated by colons."""
    return os.environ.get(CONFIG_VARIABLE) or _DEFAULT


def read_krb5_conf(path: str | None = None) -> Krb5Conf:
    """The configuration at ``path``; files that cannot be read count as empty."""
    conf = Krb5Conf()
    pending = (config_path() if path is None else path).split(":")
    seen: set[str] = set()
    while pending and len(seen) < _MAX_FILES:
        name = pending.pop(0)
        if name in seen:
            continue
        seen.add(name)
        try:
            with open(name, "rb") as file:
                text = file.read(_MAX_CONF_BYTES).decode(errors="replace")
        except (OSError, ValueError):
            continue
        conf.files.append(name)
        pending[:0] = list(_parse(text, conf))
    return conf


def _parse(text: str, conf: Krb5Conf) -> Iterator[str]:
    """Enter the relations of ``text`` into ``conf``. Yields the files that it includes."""
    section, realm = "", ""
    for line in (line.strip() for line in text.splitlines()):
        if not line or line[0] in "#;":
            continue
        word, _, rest = line.partition(" ")
        if word == "include":
            yield rest.strip()
        elif word == "includedir":
            yield from _included(rest.strip())
        elif line[0] == "[":
            section, realm = line[1:].partition("]")[0].strip(), ""
        elif line[0] == "}":
            realm = realm[:-1] if realm.endswith(_NESTED) else ""
        else:
            realm = _relation(line, section, realm, conf)


def _relation(line: str, section: str, realm: str, conf: Krb5Conf) -> str:
    """Enter one ``name = value``. Returns the realm with the open brace, if any, with a mark for each section
    in it."""
    name, _, value = (part.strip() for part in line.partition("="))
    value = value.strip('"')
    if section == "realms":
        if value == "{":
            if realm:
                return realm + _NESTED
            conf.kdcs.setdefault(name, [])
            return name
        if name == "kdc" and realm in conf.kdcs:
            conf.kdcs[realm].append(value)
    elif section == "libdefaults" and value != "{":
        conf.defaults.setdefault(name, value)
    elif section == "domain_realm":
        conf.domains.setdefault(name.lower(), value)
    return realm


def _included(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [str(Path(folder, name)) for name in names if _INCLUDED_NAME.fullmatch(name)]


_NESTED: Final = "{"
_MAX_ENTRIES: Final = 10_000


def keytab_principals(shown: str, content: bytes) -> list[str]:
    """The principals in a keytab (MIT's format, version 2), each once; ``shown`` is setting and file, for
    errors.

    Raises `ConfigError` if it is no keytab, never with its content.
    """
    if content[:2] != b"\x05\x02":
        raise ConfigError(f"{shown} is not a keytab; create it with ktutil, kadmin or ktpass")
    found: dict[str, None] = {}
    at = 2
    try:
        for _ in range(_MAX_ENTRIES):
            if at + 4 > len(content):
                break
            (size,) = struct.unpack_from(">i", content, at)
            if size > 0:  # a negative size is a hole that a deleted entry has left
                found.setdefault(_principal(content[at + 4 : at + 4 + size]))
            at += 4 + abs(size)
    except (struct.error, UnicodeDecodeError):
        raise ConfigError(f"{shown} is a damaged keytab; copy it again, in binary mode") from None
    if not found:
        raise ConfigError(f"{shown} is a keytab without entries")
    return list(found)


def _principal(entry: bytes) -> str:
    (count,) = struct.unpack_from(">H", entry)
    parts: list[str] = []
    at = 2
    for _ in range(count + 1):  # the realm is the first one
        (size,) = struct.unpack_from(">H", entry, at)
        (part,) = struct.unpack_from(f"{size}s", entry, at + 2)
        parts.append(part.decode())
        at += 2 + size
    return f"{'/'.join(parts[1:])}@{parts[0]}"
