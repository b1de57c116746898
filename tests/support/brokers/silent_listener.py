"""An address that answers nothing: not even that it is there, nor that it is not."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def silent_listener() -> Iterator[socket.socket]:
    """A listener that has no room for another connection: the system drops what asks for one."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.3", 0))
        sock.listen(0)
        waiting = []
        for _ in range(64):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(sock.getsockname())
            waiting.append(one)
            poller = select.poll()
            poller.register(one, select.POLLOUT)
            if not poller.poll(200):
                break
        else:
            pytest.skip("this system takes any number of connections")
        yield sock
        for one in waiting:
            one.close()
