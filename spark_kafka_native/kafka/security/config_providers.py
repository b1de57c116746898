"""Reading what settings point to: files, and ``env:NAME`` or ``file:/path`` references.

A file option is a way to read files for whoever may set options. Where that is not who runs the process (SQL,
Spark Connect, notebooks for many), the process's environment says what may be read: see `ALLOWED_FILES`. No
error shows what was read.
"""

from __future__ import annotations

import os
import socket
import stat
from typing import Final

from ..config.secret import Secret, is_reference
from ..errors import ConfigError

ALLOWED_FILES: Final = "PYKAFKA_ALLOWED_FILES"
"""Paths of files and folders, separated as in PATH: when set, nothing else is read. Set it on driver and
executors.
"""
ALLOWED_URLS: Final = "PYKAFKA_ALLOWED_URLS"
"""URLs, comma-separated: when set, no other token endpoint is asked."""
ALLOWED_VARIABLES: Final = "PYKAFKA_ALLOWED_VARIABLES"
"""Names, comma-separated: when set, ``env:NAME`` reads no other environment variable."""

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Twenty times the bundle of all public authorities."""
MAX_VALUE_BYTES: Final = 64 * 1024
_OF_PROCESSES: Final = ("/proc/", "/sys/")
"""No files, and a way round `ALLOWED_VARIABLES`: /proc/self/environ."""


def read_file(name: str, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of the file that the setting ``name`` points to.

    Raises `ConfigError` that tells setting, path and host, for the file may be missing on one executor only.
    """
    real = allowed_path(name, path)
    where = f"{name}: {path} on {socket.gethostname()}"
    try:
        # Not blocking: a pipe would wait for a writer for ever. No link is left in a path without links,
        # unless somebody put it there since.
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) or real.startswith(_OF_PROCESSES):
                raise ConfigError(f"{where} is not a regular file")
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise ConfigError(f"{where} can't be read ({reason})") from None
    if len(content) > max_bytes:
        raise ConfigError(f"{where} is larger than {max_bytes} bytes")
    return content


def resolve(name: str, value: str | Secret) -> str:
    """The text of a setting: ``value`` itself, or what its reference points to. Raises `ConfigError`."""
    text = value.reveal() if isinstance(value, Secret) else value
    if is_reference(text):
        kind, _, target = text.partition(":")
        text = _variable(name, target) if kind == "env" else _first_text(name, target)
    try:
        text.encode()
    except UnicodeEncodeError:  # which would carry the text
        raise ConfigError(f"{name} is not UTF-8 text") from None
    return text


def _variable(name: str, variable: str) -> str:
    allowed = os.environ.get(ALLOWED_VARIABLES)
    if allowed is not None and variable not in _listed(allowed):
        raise ConfigError(f"{name}: the environment variable {variable} is not among {ALLOWED_VARIABLES}")
    found = os.environ.get(variable)
    if not found:
        raise ConfigError(f"{name}: the environment variable {variable} is not set on {socket.gethostname()}")
    return found


def _first_text(name: str, path: str) -> str:
    content = read_file(name, path, MAX_FILE_BYTES if "ssl." in name else MAX_VALUE_BYTES)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: {path} on {socket.gethostname()} is not UTF-8 text") from None
    if not (text := text.rstrip("\r\n")):  # editors and `echo` end a file with a line break
        raise ConfigError(f"{name}: {path} on {socket.gethostname()} is empty")
    return text


def check_url(name: str, url: str) -> None:
    """`ConfigError` where the process's environment does not allow ``url``; the URL is not shown."""
    allowed = os.environ.get(ALLOWED_URLS)
    if allowed is not None and url not in _listed(allowed):
        raise ConfigError(f"{name}: this URL is not among {ALLOWED_URLS}")


def allowed_path(name: str, path: str) -> str:
    """``path`` without symbolic links, if it is among `ALLOWED_FILES`. Raises `ConfigError`."""
    try:
        real = os.path.realpath(path)
    except (OSError, ValueError):
        raise ConfigError(f"{name} is not a path") from None
    allowed = os.environ.get(ALLOWED_FILES)
    if allowed is None:
        return real
    for entry in filter(None, allowed.split(os.pathsep)):
        root = os.path.realpath(entry)
        if real == root or real.startswith(root.rstrip(os.sep) + os.sep):
            return real
    raise ConfigError(f"{name}: {path} is not among {ALLOWED_FILES}")


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
