"""What a Python worker does when a task begins, whichever it is."""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from .user_messages import prefix_log_lines

_FDS: Final = Path("/proc/self/fd")
_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)
_FULL: Final = 2
_SLOW_COLLECTION_S: Final = 0.003
_settled = False


class LocalConnection(NamedTuple):
    """A TCP connection of this process to its own machine. It is no socket object: the connection has to end
    when its owner closes it."""

    descriptor: int
    device: int
    inode: int
    """What the descriptor stood for: once that is closed, its number is given to others."""


def settle_worker() -> None:
    """Called when a task begins: exempt all loaded modules from garbage collection, and (once) have the
    kernel deliver the JVM's messages without delay.

    PySpark's daemon runs a full collection after every task: 25 - 40 ms with numpy, pyarrow and pandas
    loaded, about 1 ms once those are frozen. They would live as long as the process anyway, so it costs
    nothing. Not all of it is loaded when the first task begins (pandas comes with the first Arrow array made
    of a list), so a worker is frozen again after a slow collection if modules have been loaded since:
    what else takes long is others' data, which will not live as long as the process.
    """
    global _settled
    if not _settled:
        _settled = True
        prefix_log_lines()
        if "SPARK_REUSE_WORKER" in os.environ:
            acknowledge_at_once(local_connections())
            gc.callbacks.append(_collections.observe)
        _freeze()
    elif _collections.last_s > _SLOW_COLLECTION_S and len(sys.modules) > _collections.modules:
        _freeze()


def _freeze() -> None:
    _collections.modules = len(sys.modules)
    gc.unfreeze()  # A frozen object that has become part of a garbage cycle would never be freed.
    gc.collect()
    gc.freeze()


@dataclass(slots=True)
class CollectionClock:
    """What the process's last full collection cost, in CPU seconds of its thread."""

    began_s: float = 0.0
    last_s: float = 0.0
    modules: int = 0
    """How many were loaded when the worker was frozen last."""

    def observe(self, phase: str, info: dict[str, Any]) -> None:
        """For `gc.callbacks`."""
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self.began_s = time.thread_time()
        else:
            self.last_s = time.thread_time() - self.began_s


_collections: Final = CollectionClock()


def acknowledge_at_once(connections: Iterable[LocalConnection]) -> None:
    """Have the kernel acknowledge the first message of each task at once.

    The JVM starts a task with two small messages. Over TCP its kernel holds the second one back until the
    first is acknowledged, which the worker's kernel does after 40 ms, to save a packet, unless an option
    forbids the delay. The option lasts only until the worker sends something. So it is set between two tasks,
    during the daemon's collection.
    """
    if _QUICKACK is None or not (kept := tuple(connections)):
        return
    gc.callbacks.append(partial(_acknowledge, kept, _QUICKACK))


def local_connections() -> Iterator[LocalConnection]:
    """The TCP connections of this process to its own machine, each once, on Linux: the JVM's are among
    them."""
    if not _FDS.is_dir() or socket.getdefaulttimeout() is not None:
        return  # With a default timeout, to look at a socket would change it.
    seen: set[LocalConnection] = set()
    for name in sorted(os.listdir(_FDS)):
        with suppress(OSError):  # what the folder was listed with
            found = _found(int(name))
            if found is not None and found._replace(descriptor=0) not in seen and _is_local(found):
                seen.add(found._replace(descriptor=0))
                yield found


def _found(descriptor: int) -> LocalConnection | None:
    """What it stands for now; None where that is no socket. Raises `OSError` where it is closed."""
    status = os.fstat(descriptor)
    if not stat.S_ISSOCK(status.st_mode):
        return None  # A file must not even be copied: closing the copy would give up locks on it.
    return LocalConnection(descriptor, status.st_dev, status.st_ino)


@contextmanager
def _copy(connection: LocalConnection) -> Iterator[socket.socket]:
    number = os.dup(connection.descriptor)
    try:
        copied = socket.socket(fileno=number)
    except OSError:
        os.close(number)
        raise
    with copied:
        yield copied


def _is_local(connection: LocalConnection) -> bool:
    with _copy(connection) as copied:
        if copied.family not in (socket.AF_INET, socket.AF_INET6) or copied.type != socket.SOCK_STREAM:
            return False
        return bool(copied.getpeername()[0] == copied.getsockname()[0])  # raises where it listens


def _acknowledge(kept: tuple[LocalConnection, ...], option: int, phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == _FULL and socket.getdefaulttimeout() is None:
        for one in kept:
            with suppress(OSError):  # closed
                if _found(one.descriptor) == one:
                    with _copy(one) as copied:
                        copied.setsockopt(socket.IPPROTO_TCP, option, 1)
