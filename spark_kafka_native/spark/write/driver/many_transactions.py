"""`ask_for_each`: what a driver asks about each transaction of a job, many at once.

A broker answers the requests of one connection one after the other. So the number of coordinators limits many
transactions, and not that of threads: those are to keep all coordinators busy. The look-ups of coordinators
would wait in the same lines, and are one request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from ....kafka.cluster.coordinators import find_coordinators
from ....kafka.cluster.router import CoordinatorKey, Router
from ....kafka.runtime.deadline import Deadline

T = TypeVar("T")

R = TypeVar("R")

AT_ONCE: Final = 64
"""More than the 50 partitions of ``__transaction_state``, which is how many coordinators there can be."""


def ask_for_each(
    router: Router,
    items: Sequence[T],
    transactional_id: Callable[[T], str],
    ask: Callable[[T], R],
    deadline: Deadline,
) -> list[R]:
    """The answers of ``ask`` for ``items``, in their order. Raises what the first of those that failed has
    raised; then items that were not begun are left out.
    """
    if not items:
        return []
    if len(items) > 1:
        find_coordinators(
            router, [CoordinatorKey.transaction(transactional_id(one)) for one in items], deadline
        )
    with ThreadPoolExecutor(min(AT_ONCE, len(items))) as pool:
        return list(pool.map(ask, items))
