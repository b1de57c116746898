"""`one_reader`: a second thread that reads from a consumer while another one does is refused.

Each would get a part of every partition's records, and a member of a group would follow the group twice.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class ReadByOne(Protocol):
    """What has reads that are decorated so."""

    _read_by: dict[str, int]
    """The thread that is in one of them, if any: one entry, set at a stroke without a lock, so that an
    interrupt leaves nothing locked."""


S = TypeVar("S", bound=ReadByOne)
P = ParamSpec("P")
R = TypeVar("R")


def one_reader(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """``call``, which raises `RuntimeError` where another thread is in such a call of the same object."""

    @functools.wraps(call)
    def called(self: S, /, *args: P.args, **settings: P.kwargs) -> R:
        here, read_by = threading.get_ident(), self._read_by
        outermost = read_by.get("thread") != here
        try:
            if (reader := read_by.setdefault("thread", here)) != here:
                raise RuntimeError(
                    f"thread {_name(reader)!r} is reading from this consumer, and {_name(here)!r} may not at "
                    "the same time: read in one thread, or give each thread a consumer of its own"
                )
            return call(self, *args, **settings)
        finally:
            # Without a call: nothing here can be interrupted.
            if outermost and "thread" in read_by and read_by["thread"] == here:
                del read_by["thread"]

    return called


def _name(thread_id: int) -> str:
    return next((one.name for one in threading.enumerate() if one.ident == thread_id), str(thread_id))
