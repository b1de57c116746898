"""`shared_login`: the delegation token for reads and writes of which no process sees the end.

Spark plans each of them in another process, and all with the same credentials share a token. The session's
local folder keeps it for them, in a file that only this user can read, with what else a `TokenKeeper` knows.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Final

from ..kafka.config.client_config import ClientConfig
from ..kafka.config.secret import Secret, is_reference
from ..kafka.config.security_config import SecurityConfig, takes_reference
from ..kafka.errors import ConfigError, DeadlineExceededError, KafkaError
from ..kafka.runtime.deadline import Deadline
from ..kafka.runtime.retry import Backoff, retry
from ..kafka.security.config_providers import read_file, resolve
from ..kafka.security.credentials import OPTIONS_WITH_REFERENCES, jaas_of, revealed
from .delegation_tokens import (
    REPLACE_BELOW,
    HeldToken,
    KeptTokens,
    Moment,
    TokenKeeper,
    TokenLogin,
    TokenOptions,
    session_folder,
    unusable,
    write_private,
)

_LOG: Final = logging.getLogger("spark_kafka_native")
_in_process: dict[str, KeptTokens] = {}
"""The tokens of a process in a session without a folder."""
_CERTIFICATE_FILES: Final = {
    "keystore_location": "ssl.keystore.location",
    "certificate_location": "ssl.certificate.location",
    "key_location": "ssl.key.location",
}
_SALT_BYTES: Final = 32
_PREFIX, _LOCK = "pykafka-token-", "-lock"
_ENDED_AFTER_S: Final = 3_600.0
"""A file that was written since then is not looked at: few tokens end sooner."""
_LOCK_BACKOFF: Final = Backoff(first_ms=10, max_ms=250)


@dataclass(frozen=True, kw_only=True)
class SharedLogin:
    """The login of `shared_login`, and where its token is kept."""

    login: TokenLogin
    place: str


def shared_login(client: ClientConfig, options: TokenOptions, *, ask: bool) -> SharedLogin:
    """A login for the tasks of a batch read or of a micro-batch to write. ``ask``: ask the cluster first
    whether the token has been revoked.

    One process at a time talks to the cluster. Without ``ask``, the others use the present token meanwhile,
    if it lives. Raises the client's errors, and `DeadlineExceededError` if another process does not end.
    """
    folder = session_folder()
    key = _key(folder, client, options, client.default_api_timeout_ms)
    if folder is None:
        keeper = TokenKeeper(client, options, _in_process.get(key))
        try:
            return SharedLogin(login=_login(keeper, ask=ask), place=key)
        finally:
            _in_process[key] = keeper.kept
            for other in [one for one, kept in list(_in_process.items()) if one != key and not _lives(kept)]:
                _in_process.pop(other, None)
    file = folder / f"{_PREFIX}{key}"
    patience_ms = client.default_api_timeout_ms
    held = None if ask else _read(file).held
    if held is not None and held.left >= REPLACE_BELOW:
        patience_ms = 0
    try:
        lock = _locked(folder / f"{file.name}{_LOCK}", patience_ms)
    except DeadlineExceededError:
        if held is None or not held.left:
            raise
        return SharedLogin(login=held.login, place=str(file))
    with lock:
        before = _read(file)
        keeper = TokenKeeper(client, options, before)
        try:
            return SharedLogin(login=_login(keeper, ask=ask), place=str(file))
        finally:
            if keeper.kept != before:
                _keep(file, keeper, before)


def known_login(client: ClientConfig, options: TokenOptions, token_id: str) -> TokenLogin | None:
    """The login that `shared_login` has given to tasks, found without the cluster, a KDC or a token provider.

    By its token's id, as users with equal settings have a token each. None if the session does not have that
    token any more, or the settings can't be read.
    """
    folder = session_folder()
    try:
        settings = _settings(client, options, _salt_of(folder, client))
    except KafkaError as error:
        _LOG.info("The delegation token that the session shares was not looked for: %s", error)
        return None
    if folder is None:
        kept = [kept for key, kept in list(_in_process.items()) if key.startswith(settings)]
    else:
        kept = [_read(file) for file in _token_files(folder, settings)]
    living = [one.held.login for one in kept if one.held is not None and one.held.left]
    return next((login for login in living if login.token_id == token_id), None)


def forget_login(client: ClientConfig, options: TokenOptions, limit_ms: float) -> None:
    """The token may be the reason of a failure: the next `shared_login` of the same user creates another one.

    It is kept while a KDC or a token provider does not say within ``limit_ms`` which user that is: nothing
    could take its place, and others commit with it.
    """
    folder = session_folder()
    try:
        key = _key(folder, client, options, limit_ms)
    except KafkaError as error:
        _LOG.warning("The delegation token that the session shares is used further: %s", error)
        return
    _in_process.pop(key, None)
    if folder is not None:
        with suppress(OSError):
            (folder / f"{_PREFIX}{key}").unlink()


def _key(folder: Path | None, client: ClientConfig, options: TokenOptions, limit_ms: float) -> str:
    """Equal for equal credentials only: no user gets the token of another one. Raises the client's errors."""
    salt = _salt_of(folder, client)
    settings = _settings(client, options, salt)
    # Without the lock of the salt: to ask for the user of one login may take long, and others wait for it.
    return f"{settings}-{_hashed(_user(client, Deadline.after_ms(limit_ms)), salt)}"


def _login(keeper: TokenKeeper, *, ask: bool) -> TokenLogin:
    if ask:
        keeper.forget_revoked()
    return keeper.login().login


def _locked(file: Path, patience_ms: float) -> BinaryIO:
    """``file``, opened: no other process of this machine has it until it is closed. Raises
    `DeadlineExceededError` if another one has it for longer than ``patience_ms``."""
    deadline = Deadline.after_ms(patience_ms)
    while True:
        opened = _opened_and_locked(file, deadline)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(opened.fileno()), file.stat()):
                return opened
        opened.close()  # the process before has removed it: others lock the file that is there now


def _opened_and_locked(file: Path, deadline: Deadline) -> BinaryIO:
    try:
        opened = os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
    except OSError as error:
        raise unusable(file.parent, error) from error

    def lock() -> None:
        with suppress(ImportError):  # Windows, where Spark plans in a process after the other
            import fcntl

            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise KafkaError(
                    f"another process of this Spark session asks the cluster for it, and has {file} locked"
                ) from None

    try:
        retry(
            lock,
            what="getting the delegation token that the session shares",
            deadline=deadline,
            backoff=_LOCK_BACKOFF,
            retriable=lambda _: True,
        )
    except BaseException:
        opened.close()
        raise
    return opened


def _salt_of(folder: Path | None, client: ClientConfig) -> bytes:
    if folder is None:
        return b""
    with _locked(folder / "pykafka-tokens", client.default_api_timeout_ms) as opened:
        return _salt(opened, folder)


def _salt(opened: BinaryIO, folder: Path) -> bytes:
    """Random bytes of the session. Raises `ConfigError` if they can't be kept for its other processes."""
    salt = opened.read(_SALT_BYTES)
    if len(salt) == _SALT_BYTES:
        return salt
    salt = os.urandom(_SALT_BYTES)
    try:
        opened.seek(0)
        if opened.write(salt) < _SALT_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise unusable(folder, error) from error
    return salt


def _hashed(text: str, salt: bytes) -> str:
    """It reveals nothing of ``text``."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=salt, digest_size=16).hexdigest()


def _settings(client: ClientConfig, options: TokenOptions, salt: bytes) -> str:
    """The part of `_key` that is known without a login. Raises `ConfigError` for files and variables that
    can't be read."""
    security = {
        one.name: value.reveal() if isinstance(value, Secret) else str(value)
        for one in fields(client.security)
        if (value := getattr(client.security, one.name)) is not None
    }
    referred = _referred(client.security, security)
    return _hashed(
        json.dumps([client.bootstrap_servers, security, repr(options), referred], sort_keys=True), salt
    )


def _referred(security: SecurityConfig, settings: Mapping[str, str]) -> list[str]:
    """The values of files and variables that ``settings`` name."""
    # A token of a file included, all of it: a token that names another user is easily written.
    given = [
        (one.metadata["property"], settings[one.name]) for one in fields(security) if one.name in settings
    ]
    found = [resolve(name, value) for name, value in given if takes_reference(name) and is_reference(value)]
    jaas = jaas_of(security) if security.uses_sasl else None
    options = {name: revealed(jaas, name) or "" for name in OPTIONS_WITH_REFERENCES}
    found += [
        resolve(f"sasl.jaas.config: {name}", text) for name, text in options.items() if is_reference(text)
    ]
    if security.encrypted:
        # The client certificate at the same place may be another user's by now.
        files = ((setting, getattr(security, name)) for name, setting in _CERTIFICATE_FILES.items())
        found += [_digest(setting, path) for setting, path in files if path is not None]
    return found


def _user(client: ClientConfig, deadline: Deadline) -> str:
    """The user, where only a ticket or a token from a provider says it, else nothing. Raises the client's
    errors."""
    security = client.security
    if security.uses_sasl and security.mechanism == "GSSAPI":
        from ..kafka.security.kerberos import log_in, login_of

        return log_in(login_of(security), deadline)[0]
    if security.uses_sasl and security.token_provider is not None:
        from ..kafka.security.tokens import current_token

        token = current_token(security, deadline).reveal()
        if (user := _subject(token)) == token:
            _LOG.warning(
                "%s: its tokens do not say whose they are, as a JWT does. Reads and writes of a session "
                "share a delegation token only while it returns the same one; else each creates one",
                security.token_provider,
            )
        return user
    return ""


def _digest(setting: str, path: str) -> str:
    return hashlib.sha256(read_file(setting, path)).hexdigest()


def _subject(token: str) -> str:
    """The user of a token: issuer and subject of a JWT; of another token all of it."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return json.dumps([claims.get("iss", ""), claims["sub"]])
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return token


def _read(file: Path) -> KeptTokens:
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
        failed = found["failed"]
        return KeptTokens(
            held=_held(found["held"]),
            coming=_held(found["coming"]),
            failed=None if failed is None else Moment(**failed),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return KeptTokens()  # another one is created


def _held(found: dict[str, Any] | None) -> HeldToken | None:
    from ..kafka.admin.delegation_tokens import DelegationToken

    if found is None:
        return None
    given = found["token"]
    token = DelegationToken(**given | {"hmac": Secret(given["hmac"]), "renewers": tuple(given["renewers"])})
    return HeldToken(**found | {"token": token, "since": Moment(**found["since"])})


def _keep(file: Path, keeper: TokenKeeper, before: KeptTokens) -> None:
    """Write what ``keeper`` knows. If that is not possible, a token that was created is ended and
    `ConfigError` raised: each other process would create one, too."""
    try:
        _write(file, keeper.kept)
    except ConfigError as error:
        if keeper.expire_new(before):
            raise
        _LOG.warning("%s", error)
    _remove_ended(file)


def _token_files(folder: Path, settings: str = "") -> list[Path]:
    return [file for file in folder.glob(f"{_PREFIX}{settings}*") if not file.name.endswith(_LOCK)]


def _lives(kept: KeptTokens) -> bool:
    return any(one is not None and one.left for one in (kept.held, kept.coming))


def _has_ended(file: Path) -> bool:
    return time.time() - file.stat().st_mtime > _ENDED_AFTER_S and not _lives(_read(file))


def _remove_ended(file: Path) -> None:
    """Remove the files beside ``file`` with tokens that have ended: logins that no process has any more. One
    that a process has locked is left: it gets another token.
    """
    for other in _token_files(file.parent):
        if other == file:
            continue
        with suppress(OSError, KafkaError):
            if not _has_ended(other):
                continue
            lock = other.with_name(other.name + _LOCK)
            with _locked(lock, 0):
                if _has_ended(other):  # still, now that it can't change
                    other.unlink()
                    lock.unlink()


def _write(file: Path, kept: KeptTokens) -> None:
    content = json.dumps(asdict(kept), default=Secret.reveal).encode()
    name = write_private(file.parent, "pykafka-", content)
    try:
        os.replace(name, file)
    except OSError as error:
        with suppress(OSError):
            os.unlink(name)
        raise unusable(file.parent, error) from error
