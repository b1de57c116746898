"""`look_up`: the addresses of a host name, within a deadline; `FailedAddresses`: those to try last.

The system's resolver has no time limit and cannot be cancelled. So a thread of `Lookups` calls it: a name
that is never answered costs one thread however often it is asked for, and delays no other name.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - `getaddrinfo` needs it: a fork could cut its import in a thread short
import ipaddress
import socket
import time
from collections.abc import Callable, Hashable
from typing import Any, Final

from ..config.client_config import ClientConfig
from ..errors import NetworkError, UnreachableError
from .background import Lookups
from .deadline import Deadline
from .fork import in_forked_child

_FAMILIES: Final = {"any": socket.AF_UNSPEC, "v4": socket.AF_INET, "v6": socket.AF_INET6}

AVOIDED_S: Final = 300.0
"""How long an address is tried last after a handshake with it failed; an attempt may take 10 s."""
MAX_FAILED: Final = 1024
"""Limit of the addresses that are noted; the oldest one is removed first."""

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
"""Family, type, protocol, canonical name, address: as `socket.getaddrinfo` returns it."""


_lookups = Lookups()


class FailedAddresses:
    """Addresses that took a connection and failed in the handshake: of a name with several addresses they are
    tried last for a while. Else one that takes connections, and closes them, would be chosen each time.

    Any thread may use it. It has no lock: each change is a single operation on a dict.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed_at: dict[tuple[Any, ...], float] = {}

    def add(self, address: tuple[Any, ...]) -> None:
        """The handshake with ``address`` has failed."""
        self._failed_at.pop(address, None)
        self._failed_at[address] = self._clock()
        for oldest in list(self._failed_at)[:-MAX_FAILED]:
            self._failed_at.pop(oldest, None)

    def discard(self, address: tuple[Any, ...]) -> None:
        """The handshake with ``address`` has succeeded."""
        self._failed_at.pop(address, None)

    def last(self, found: list[AddressInfo]) -> list[AddressInfo]:
        """``found`` in the order to try them: the one that failed last is the last."""
        since = self._clock() - AVOIDED_S
        failed_at = {address: at for address, at in list(self._failed_at.items()) if at > since}
        return sorted(found, key=lambda info: failed_at.get(info[4], since))


failed_addresses = FailedAddresses()


def look_up(host: str, port: int, config: ClientConfig, deadline: Deadline) -> list[AddressInfo]:
    """The addresses of ``host`` of the configured family, in the order to try them.

    Raises `UnreachableError` if there are none, and `NetworkError` if there was no answer in time.
    """
    return _interleaved(_answer(host, port, config, deadline))


def canonical_names(host: str, port: int, config: ClientConfig, deadline: Deadline) -> list[str]:
    """The name of each address of ``host`` according to the name server (or the address, if it has no name),
    for ``client.dns.lookup=resolve_canonical_bootstrap_servers_only``. Raises as `look_up`.
    """
    targets = [info[4] for info in _answer(host, port, config, deadline)]

    def question() -> list[str]:
        return [socket.getnameinfo(target, socket.NI_NUMERICSERV)[0] for target in targets]

    return list(dict.fromkeys(_asked(("names", *targets), question, f"{host}:{port}", config, deadline)))


def resolved(host: str, port: int, deadline: Deadline) -> list[AddressInfo]:
    """The addresses of a host that is not a broker, from the system's resolver. Raises as `look_up`."""
    key = (None, host, port, socket.AF_UNSPEC)
    return _asked(key, lambda: _system(host, port, socket.AF_UNSPEC), f"{host}:{port}", None, deadline)


def _answer(host: str, port: int, config: ClientConfig, deadline: Deadline) -> list[AddressInfo]:
    family = _FAMILIES[config.broker_address_family]
    if config.source_address is not None:
        family = socket.AF_INET6 if ":" in config.source_address else socket.AF_INET
    own = config.resolver

    def question() -> list[AddressInfo]:
        if own is None:
            return _system(host, port, family)
        return [info for info in own(host, port) if family in (socket.AF_UNSPEC, info[0])]

    where = f"{host}:{port}"
    key = None if own is None and _is_literal(host) else (own, host, port, family)
    found: list[AddressInfo] = _asked(key, question, where, config, deadline)
    if not found:
        raise UnreachableError(f"cannot resolve the host of {where} (no address of the family to be used)")
    return found


def _asked(
    key: Hashable,
    question: Callable[[], list[Any]],
    where: str,
    config: ClientConfig | None,
    deadline: Deadline,
) -> list[Any]:
    """The answer to ``question``. Without a ``key`` it is called in this thread: it involves no resolver."""
    limit = deadline if config is None else deadline.within_ms(config.connection_setup_timeout_ms)
    waits_ms = limit.remaining_ms
    try:
        found = question() if key is None else _lookups.ask(key, question, limit)
    except NetworkError as error:
        raise NetworkError(f"cannot resolve the host of {where} ({error}; is the name server up?)") from None
    except (OSError, UnicodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise UnreachableError(f"cannot resolve the host of {where} ({cause or error})") from error
    if found is None:
        raise NetworkError(
            f"cannot resolve the host of {where} (no answer in {waits_ms:.0f} ms; is the name server up?)"
        )
    return list(found)


def _system(host: str, port: int, family: int) -> list[Any]:
    if family == socket.AF_UNSPEC:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _interleaved(found: list[AddressInfo]) -> list[AddressInfo]:
    """The families alternate, starting with that of the first address (RFC 8305, section 4)."""
    by_family: dict[int, list[AddressInfo]] = {}
    for info in found:
        by_family.setdefault(info[0], []).append(info)
    longest = max((len(infos) for infos in by_family.values()), default=0)
    return [infos[i] for i in range(longest) for infos in by_family.values() if i < len(infos)]


def _after_fork() -> None:
    global _lookups
    _lookups = Lookups()  # its threads are the parent's


in_forked_child(_after_fork)
