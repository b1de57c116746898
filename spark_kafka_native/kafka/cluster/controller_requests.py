"""`ask_controller`: what only the controller may do. Brokers of KRaft clusters forward it for themselves;
those before need to be told where it is.
"""

from __future__ import annotations

from typing import TypeVar

from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError, NetworkError
from ..protocol.message import Request, Response
from ..runtime.deadline import Deadline
from .router import Router

R = TypeVar("R", bound=Response)


def ask_controller(router: Router, request: Request[R], deadline: Deadline) -> R:
    """One attempt at ``request`` to the controller that the metadata name; report its failure to
    `learn_controller`.
    """
    controller_id = router.metadata((), deadline=deadline).controller_id
    if controller_id is None or controller_id not in router.snapshot.brokers:
        return router.ask_any(request, deadline)
    return router.send_to(controller_id, request, deadline)


def learn_controller(router: Router, error: KafkaError, deadline: Deadline) -> None:
    """Ask for new metadata if ``error`` may mean that the controller is another broker by now."""
    moved = isinstance(error, BrokerError) and error.error_code in (
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_NOT_AVAILABLE,
    )
    if moved or isinstance(error, NetworkError):
        router.refresh((), deadline)
