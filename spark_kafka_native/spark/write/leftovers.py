"""`end_leftovers`: transactions that tasks of a query have left open, and that no task of it takes over.

A task of a stream ends what an earlier attempt of the same number has left. With fewer tasks, or none, nobody
does so before `transactionTimeout`, and readers with read_committed wait for that.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ...kafka.admin import Admin
from ...kafka.cluster.router import Router
from ...kafka.errors import KafkaError, UnsupportedVersionError
from ...kafka.producer.sending.transaction_requests import init_producer_id
from ...kafka.runtime.deadline import Deadline

_LOG: Final = logging.getLogger("spark_kafka_native")
_AT_ONCE: Final = 16
_END_MS: Final = 15_000
"""Nothing waits for it but readers, and those no longer than for the transactions' timeout."""


def end_leftovers(router: Router, job: str, *, tasks: int, known: int, timeout_ms: int) -> None:
    """Abort what is open of the tasks of ``job`` from number ``tasks`` on. Where brokers can't list
    transactions (before Kafka 3.0), of those below ``known``.

    A failure is a warning: no row depends on it.
    """
    deadline = router.deadline(_END_MS)
    try:
        names = _open_names(router, job, tasks, known, deadline)
        if not names:
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
            list(pool.map(lambda name: init_producer_id(router, name, timeout_ms, None, deadline), names))
    except KafkaError as error:
        _LOG.warning(
            "transactions that an earlier run of the query may have left open could not be aborted; readers "
            "with read_committed wait for them until transactionTimeout: %s",
            error,
        )
        return
    _LOG.info("aborted what was left open: %s", ", ".join(names))


def _open_names(router: Router, job: str, tasks: int, known: int, deadline: Deadline) -> list[str]:
    """The transactional ids of tasks whose transaction is open."""
    try:
        found = Admin(router).list_transactions(deadline, states=["Ongoing"])
    except UnsupportedVersionError:
        return [f"{job}-{task}" for task in range(tasks, known)]
    lead = f"{job}-"
    numbers = [
        one.transactional_id.removeprefix(lead) for one in found if one.transactional_id.startswith(lead)
    ]
    return [
        f"{lead}{task}" for task in sorted(int(one) for one in numbers if one.isdecimal()) if task >= tasks
    ]
