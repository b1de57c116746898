"""`wait_for_any`: wait for responses from several brokers at once, without a thread for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..runtime.deadline import Deadline, Wakeup
from .pending import Pending
from .transport import READ, wait_for_streams


def wait_for_any(
    pendings: Sequence[Pending[Any]], deadline: Deadline, wakeup: Wakeup | None = None
) -> list[Pending[Any]]:
    """The ``pendings`` that are done (answered or failed), at least one unless ``deadline`` passes first or
    ``wakeup`` is set.

    With no ``pendings`` it waits for ``deadline``. Closes nothing at the deadline: the caller knows which
    request it has waited for how long. With a ``wakeup`` the connections must be the caller's alone: an
    answer that another thread reads does not end this wait.
    """
    if len(pendings) == 1 and wakeup is None:
        return [pendings[0]] if pendings[0].connection.wait_for(pendings[0], deadline) else []
    connections = {id(pending.connection): pending.connection for pending in pendings}
    while True:
        for connection in connections.values():
            connection.poll()
        done = [pending for pending in pendings if pending.done]
        if done or deadline.expired or (wakeup is not None and wakeup.is_set):
            return done
        streams = [(c.fileno(), c.waits_for) for c in connections.values() if not c.closed]
        if streams or not pendings:
            also = [] if wakeup is None else [(wakeup.fileno(), READ)]
            wait_for_streams([*streams, *also], deadline)
