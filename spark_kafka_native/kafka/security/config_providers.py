"""The external values of settings: files, and the references ``env:NAME`` and ``file:/path`` (in Kafka,
config providers).

With a file option, a user with permission to set options can read files of the process. Where that user does
not own the process (SQL, Spark Connect, shared notebooks), environment variables restrict what may be read:
see `ALLOWED_FILES`. No error shows a value that a reference reads, except for ``registry.url``, in which no
credentials are allowed.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable, Mapping
from typing import Final

from ..config.properties_file import parse_properties
from ..config.secret import Secret, is_reference
from ..config.security_config import takes_reference
from ..errors import ConfigError

ALLOWED_FILES: Final = "PYKAFKA_ALLOWED_FILES"
"""Paths of files and folders, separated as in PATH. If set, no other files are read. Set it on driver and
executors."""
ALLOWED_URLS: Final = "PYKAFKA_ALLOWED_URLS"
"""URLs, comma-separated. If set, no other token endpoint and no other schema registry is used."""
ALLOWED_VARIABLES: Final = "PYKAFKA_ALLOWED_VARIABLES"
"""Names, comma-separated. If set, ``env:NAME`` reads no other environment variable."""
ALLOWED_MODULES: Final = "PYKAFKA_ALLOWED_MODULES"
"""Names of modules, comma-separated. If set, no other one is imported for tokens or messages of formats."""

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Twenty times the size of a bundle of all public certificate authorities."""
MAX_VALUE_BYTES: Final = 64 * 1024
_OF_PROCESSES: Final = ("/proc/", "/sys/")
"""Not regular files, and a way around `ALLOWED_VARIABLES`: /proc/self/environ."""
_PREFIXES: Final = re.compile(r"^(kafka|key|value)\.")
_REGISTRY: Final = "registry."
_PROVIDERS: Final = ("config.providers.", "kafka.config.providers.")


def read_file(name: str, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of the file that the setting ``name`` points to.

    Raises `ConfigError` with setting, path and host, because a file may be missing on one executor only.
    """
    real = allowed_path(name, located(path))
    where = f"{name}: {path} on {socket.gethostname()}"
    try:
        # Non-blocking: opening a pipe would wait for a writer. O_NOFOLLOW: the real path has no links, unless
        # one was created since.
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) or real.startswith(_OF_PROCESSES):
                raise ConfigError(f"{where} is not a regular file")
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(max_bytes + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise ConfigError(f"{where} can't be read ({reason})") from None
    if len(content) > max_bytes:
        raise ConfigError(f"{where} is larger than {max_bytes} bytes")
    return content


def resolve(name: str, value: str | Secret) -> str:
    """The text of a setting: ``value`` itself, or the target of its reference. Raises `ConfigError`."""
    text = value.reveal() if isinstance(value, Secret) else value
    if is_reference(text):
        kind, _, target = text.partition(":")
        text = _variable(name, target) if kind == "env" else _first_text(name, target)
    try:
        text.encode()
    except UnicodeEncodeError:  # the original error contains the text
        raise ConfigError(f"{name} is not UTF-8 text") from None
    return text


def read_properties(content: str | bytes, is_read: Callable[[str], bool]) -> dict[str, str]:
    """`parse_properties` of a client's file, perhaps with prefixes of options: ``${env:NAME}`` becomes the
    reference ``env:NAME`` where a setting may be one, or nothing reads it (``is_read``, given a name in lower
    case, as it may be another program's secret); else the variable's value. ``config.providers``, which Java
    needs for that, is left out with all below it. Raises `ConfigError`."""

    def referred(name: str, reference: str) -> str:
        own = _PREFIXES.sub("", name.lower())
        keeps = own.startswith(_REGISTRY) or takes_reference(own) or not is_read(name.lower())
        return reference if keeps else resolve(name, reference)

    found = parse_properties(content, referred)
    return {name: text for name, text in found.items() if not f"{name}.".startswith(_PROVIDERS)}


def _variable(name: str, variable: str) -> str:
    if not _is_allowed(variable, ALLOWED_VARIABLES):
        raise ConfigError(f"{name}: the environment variable {variable} is not among {ALLOWED_VARIABLES}")
    found = os.environ.get(variable, "").rstrip("\r\n")
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
    """Raise `ConfigError` if the environment does not allow ``url``; the error does not show the URL."""
    if not _is_allowed(url, ALLOWED_URLS):
        raise ConfigError(f"{name}: this URL is not among {ALLOWED_URLS}")


def check_module(name: str, module: str) -> None:
    """Raise `ConfigError` if the environment does not allow to import ``module`` for the setting ``name``."""
    if not _is_allowed(module, ALLOWED_MODULES):
        raise ConfigError(f"{name}: the module {module} is not among {ALLOWED_MODULES}")


def resolve_registry(settings: Mapping[str, str]) -> dict[str, str]:
    """``settings`` of a format with those of a schema registry resolved, for the process that is about to use
    them. Raises `ConfigError`, also for a URL that the environment does not allow."""
    found = {
        name: resolve(name, text) if name.startswith(_REGISTRY) else text for name, text in settings.items()
    }
    for url in found.get("registry.url", "").split(","):
        if url.strip():
            check_url("registry.url", url.strip())
    return found


def allowed_path(name: str, path: str) -> str:
    """``path`` without symbolic links, if `ALLOWED_FILES` contains it. Raises `ConfigError`."""
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


_folders: list[Callable[[], str | None]] = []


def look_in(folder: Callable[[], str | None]) -> None:
    """Look for files with relative names in the folder that ``folder`` returns, too, unless it is None."""
    _folders.append(folder)


def located(path: str) -> str:
    """``path``, or where a relative one is found that the current folder does not have."""
    if os.path.isabs(path) or os.path.exists(path):
        return path
    roots = filter(None, (folder() for folder in _folders))
    return next(filter(os.path.exists, (os.path.join(root, path) for root in roots)), path)


def _is_allowed(name: str, environment: str) -> bool:
    """True if the variable ``environment`` lists ``name``, or is not set."""
    allowed = os.environ.get(environment)
    return allowed is None or name in filter(None, map(str.strip, allowed.split(",")))
