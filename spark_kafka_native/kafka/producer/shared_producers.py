"""`producer_for`: one producer per process and settings, so that callers share connections and buffers."""

from __future__ import annotations

import os
import threading
from typing import Any

from ..config.client_config import Bootstrap, ProducerConfig, configs_from
from .producer import Producer

_LOCK = threading.Lock()
_SHARED: dict[tuple[Any, ...], Producer] = {}


def producer_for(
    bootstrap: Bootstrap | None = None,
    name: str = "",
    *,
    producer: ProducerConfig | None = None,
    **settings: Any,
) -> Producer:
    """The producer of this process for these settings (as `Producer` takes them) and this ``name``; made when
    it is first asked for, or when the last one was closed. After a fork each process has its own.

    It does not have to be closed: all records are delivered when the process ends. Closing it closes it
    for all callers; use `Producer.flush`.
    """
    configs = configs_from(bootstrap, settings, producer or ProducerConfig)
    key = (os.getpid(), name, *configs)
    with _LOCK:
        found = _SHARED.get(key)
        if found is None or found.closed:
            for other in [other for other, shared in _SHARED.items() if other[0] != key[0] or shared.closed]:
                del _SHARED[other]
            found = _SHARED[key] = Producer(*configs)
        return found


def _after_fork_in_child() -> None:
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
