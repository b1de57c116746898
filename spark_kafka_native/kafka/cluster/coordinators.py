"""Requests to the coordinator of a group or transactional id, and to the controller. They are looked up, and
looked up again when they have moved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..error_code import ErrorCode
from ..errors import BrokerError, IncompleteResponseError, KafkaError, NetworkError
from ..protocol.api.find_coordinator import FindCoordinatorRequest
from ..protocol.message import Request, Response
from ..runtime.deadline import Deadline
from .router import CoordinatorKey, Router

R = TypeVar("R", bound=Response)
T = TypeVar("T")
_LOG = logging.getLogger("spark_kafka_native.cluster")


def send_to_coordinator(
    router: Router,
    key: CoordinatorKey,
    request: Request[R],
    read: Callable[[R], T],
    deadline: Deadline | None = None,
) -> T:
    """Send ``request`` to the coordinator of ``key`` and return ``read`` of the response, with retries.

    ``read`` raises the error in the response: a coordinator that has moved is looked up again, and one that
    is still loading is asked again. Raises the first failure that is not retriable, `DeadlineExceededError`
    for the others.
    """
    limit = deadline or router.deadline()
    what = f"{request.api_name()} to the coordinator of {key}"
    return retry_at_coordinator(
        router, key, lambda: read(ask_coordinator(router, key, request, limit)), what, limit
    )


def retry_at_coordinator(
    router: Router, key: CoordinatorKey, attempt: Callable[[], T], what: str, deadline: Deadline
) -> T:
    """`Router.retry` of an ``attempt`` that sends to the coordinator of ``key``: one that has moved is looked
    up again. Raises as `send_to_coordinator`.
    """
    return router.retry(
        attempt,
        what=what,
        deadline=deadline,
        between=lambda error: router.coordinators.learn(key, error),
    )


def ask_coordinator(
    router: Router,
    key: CoordinatorKey,
    request: Request[R],
    deadline: Deadline,
    timeout_ms: float | None = None,
    at_most: int | None = None,
) -> R:
    """One attempt at ``request`` to the coordinator of ``key``. Report its failure to `Coordinators.learn`.

    ``timeout_ms`` (None: the config's) is for requests that the coordinator may hold back, such as JoinGroup;
    ``at_most`` caps the version.
    """
    node_id = find_coordinator(router, key, deadline)
    return router.send_to(node_id, request, deadline, timeout_ms, at_most)


def find_coordinator(router: Router, key: CoordinatorKey, deadline: Deadline) -> int:
    """The node id of the coordinator of ``key``, looked up if it is not known. One attempt; most of its
    failures are retriable.
    """
    if (known := router.coordinators.get(key)) is not None:
        return known
    request = FindCoordinatorRequest(key_type=key.key_type, coordinator_keys=[key.name])
    response = router.look_up(request, deadline)
    found = next((one for one in response.coordinators if one.key == key.name), None)
    if found is None:
        raise IncompleteResponseError(f"coordinator of {key}: the response does not name it")
    if found.error_code:
        raise BrokerError(
            found.error_code, f"coordinator of {key}", found.error_message or None, operation="Describe"
        )
    if found.node_id not in router.snapshot.brokers:
        router.refresh((), deadline)
    router.coordinators.note(key, found.node_id)
    return found.node_id


def find_coordinators(router: Router, keys: Sequence[CoordinatorKey], deadline: Deadline) -> None:
    """Look up the coordinators of ``keys``, which are of one type, as far as they are not known: with one
    request, where brokers find many at once (Kafka 3.0).

    Only a saving: a key without an answer is looked up by the request that needs it, which then raises the
    error.
    """
    missing = {key.name: key for key in keys if router.coordinators.get(key) is None}
    if not missing:
        return
    request = FindCoordinatorRequest(key_type=keys[0].key_type, coordinator_keys=list(missing))
    try:
        found = [one for one in router.look_up(request, deadline).coordinators if not one.error_code]
        if any(one.node_id not in router.snapshot.brokers for one in found):
            router.refresh((), deadline)
    except KafkaError as error:
        _LOG.debug("%d coordinators are looked up one by one: %s", len(missing), error)
        return
    for one in found:
        if one.key in missing:
            router.coordinators.note(missing[one.key], one.node_id)


def ask_controller(router: Router, request: Request[R], deadline: Deadline) -> R:
    """One attempt at ``request`` to the controller in the metadata. Report its failure to `learn_controller`.
    Only the controller may serve some requests: KRaft brokers forward them by themselves, older brokers do
    not.
    """
    controller_id = router.metadata((), deadline=deadline).controller_id
    if controller_id is None or controller_id not in router.snapshot.brokers:
        return router.ask_any(request, deadline)
    return router.send_to(controller_id, request, deadline)


def learn_controller(router: Router, error: KafkaError, deadline: Deadline) -> None:
    """Refresh the metadata if ``error`` may mean that the controller has moved."""
    moved = isinstance(error, BrokerError) and error.error_code in (
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_NOT_AVAILABLE,
    )
    if moved or isinstance(error, NetworkError):
        router.refresh((), deadline)
