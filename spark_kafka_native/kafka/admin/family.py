"""`AdminFamily`: the base of all families: a router, and one request about several items with a result for
each.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from ..cluster.coordinators import ask_controller, learn_controller
from ..cluster.fan_out import ask_each_broker
from ..cluster.router import Router
from ..error_code import ErrorCode
from ..errors import (
    BrokerError,
    IncompleteResponseError,
    KafkaError,
    NetworkError,
    UnreachableError,
    with_refused,
)
from ..model import TopicPartition
from ..network.connection import Connection
from ..network.pending_response import PendingResponse
from ..protocol.message import Request, Response
from ..runtime.deadline import Deadline, Timeout

R = TypeVar("R", bound=Response)

BROKER_SHARE = 0.8
"""The share of the remaining time that a broker may spend on a request, so that its response arrives in
time.
"""

TRY_AGAIN = frozenset(
    (
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    )
)
"""A request that was refused with one of these was not carried out. After other retriable codes it may have
been (REQUEST_TIMED_OUT), or the code is the final response of the controller (UNKNOWN_TOPIC_OR_PARTITION).
"""

_MAY_BE_DONE = "attempt, of which the response was lost, may have been carried out"


class ItemResult(NamedTuple):
    """The result for one item of a request."""

    name: object
    error_code: ErrorCode
    message: str | None = None


class AdminFamily:
    """Base of the families; each has the methods for one kind of resource."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def _limit(self, timeout: Timeout) -> Deadline:
        if isinstance(timeout, Deadline):
            return timeout
        return self._router.deadline(None if timeout is None else timeout * 1000)

    def _ask_controller(self, request: Request[R], deadline: Deadline) -> R:
        with before_sending():
            controller_id = self._router.metadata((), deadline=deadline).controller_id
            if controller_id not in self._router.snapshot.brokers:  # any broker gets the request
                self._router.refresh((), deadline)
                controller_id = self._router.snapshot.controller_id
            if controller_id is not None and controller_id in self._router.snapshot.brokers:
                self._router.connection(controller_id, deadline)
        return ask_controller(self._router, request, deadline)

    def _ask_leaders(
        self,
        wanted: list[TopicPartition],
        build: Callable[[list[TopicPartition]], Request[R]],
        read: Callable[[R], Mapping[TopicPartition, KafkaError]],
        limit: Deadline,
        lost: set[TopicPartition] | None = None,
    ) -> dict[TopicPartition, KafkaError]:
        """Ask the leaders of partitions once, side by side; ``build`` gets those of one leader. Returns the
        errors of partitions: those that ``read`` has found, or why their leader has not answered. ``lost``
        gets the partitions of a request that was sent, and has no response.
        """
        timeout_ms = self._router.config.request_timeout_ms
        self._router.metadata({tp.topic for tp in wanted}, deadline=limit)
        failed: dict[TopicPartition, KafkaError] = {}
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        for tp, leader in self._router.known_leaders(wanted).items():
            if isinstance(leader, KafkaError):
                failed[tp] = leader
            else:
                led[leader.node_id].append(tp)

        def ask(node_id: int, connection: Connection) -> PendingResponse[R]:
            return connection.submit(build(led[node_id]), deadline=limit)

        def take(node_id: int, pending: PendingResponse[R]) -> None:
            try:
                response = pending.result(timeout_ms, limit)
            except KafkaError:
                if lost is not None:
                    lost.update(led[node_id])
                raise
            failed.update(read(response))

        for node_id, error in ask_each_broker(self._router, led, ask, take, limit).items():
            failed.update(dict.fromkeys(led[node_id], error))
        return failed

    def _settle(
        self,
        names: Iterable[object],
        ask: Callable[[list[object]], Iterable[ItemResult]],
        task: Task,
        deadline: Deadline,
        between: Callable[[KafkaError], None] | None = None,
    ) -> None:
        """Call ``ask`` to do ``task`` to each of ``names``, again for those with a temporary error
        (`TRY_AGAIN`).

        Raises the error of the first item that was refused, after all others have a result; its notes, and
        those of an error that ends it before, name the others that were refused. An error after an attempt
        with a lost response says that it may have been carried out.
        """
        open_ones = _Settlement(names, task)
        if open_ones.pending:
            learn = between or (lambda error: learn_controller(self._router, error, deadline))
            try:
                self._router.retry(
                    lambda: open_ones.attempt(ask),
                    what=f"{task.doing} {_some(open_ones.pending)}",
                    deadline=deadline,
                    between=learn,
                )
            except KafkaError as error:
                raise with_refused(with_lost(error, open_ones.lost), open_ones.refused) from error.__cause__
        if open_ones.refused:
            raise with_refused(open_ones.refused[0], open_ones.refused[1:])


class NotSentError(KafkaError):
    """An error from before a request was written: no broker can have carried it out."""

    def __init__(self, reason: KafkaError) -> None:
        super().__init__(reason)
        self.reason = reason


@contextlib.contextmanager
def before_sending() -> Iterator[None]:
    """For `AdminFamily._settle`: errors in this block are not those of a request with a lost response."""
    try:
        yield
    except KafkaError as error:
        raise NotSentError(error) from error.__cause__


@contextlib.contextmanager
def noting_lost(lost: list[NetworkError]) -> Iterator[None]:
    """Wraps one attempt at a request; ``lost`` gets an error after which it may have been carried out."""
    try:
        yield
    except NotSentError as not_sent:
        raise not_sent.reason from not_sent.reason.__cause__
    except UnreachableError:
        raise
    except NetworkError as error:
        lost.append(error)
        raise


def with_lost(error: KafkaError, lost: Collection[NetworkError]) -> KafkaError:
    """``error`` with a note if the response to an attempt was ``lost``."""
    if lost:
        error.add_note(f"an {_MAY_BE_DONE}")
    return error


class _Settlement:
    """The items without a result, and those that were refused."""

    def __init__(self, names: Iterable[object], task: Task) -> None:
        self.pending = dict.fromkeys(names)
        self._order = list(self.pending)
        self._refused: dict[object, BrokerError] = {}
        self._task = task
        self.lost: list[NetworkError] = []

    @property
    def refused(self) -> list[BrokerError]:
        """The refused items in the order of the request: brokers answer in another order."""
        return [self._refused[name] for name in self._order if name in self._refused]

    def attempt(self, ask: Callable[[list[object]], Iterable[ItemResult]]) -> None:
        """Ask about the items without a result. Raises a retriable error if some still have none."""
        with noting_lost(self.lost if self._task.changes else []):
            outcomes = list(ask(list(self.pending)))
        put_off = [error for one in outcomes if (error := self._take(one)) is not None]
        if put_off:
            raise put_off[0]
        if self.pending:
            raise IncompleteResponseError(
                f"{self._task.doing} {next(iter(self.pending))}: the response lacks it"
            )

    def _take(self, outcome: ItemResult) -> BrokerError | None:
        name, error_code, message = outcome
        if name not in self.pending:
            return None
        if self.lost:
            message = f"{message or error_code.description}; an earlier {_MAY_BE_DONE}"
        error = BrokerError(error_code, f"{self._task.doing} {name}", message or None, self._task.operation)
        if error_code in TRY_AGAIN:
            return error
        del self.pending[name]
        if error_code and not (self.lost and error_code is self._task.done_by_lost):
            self._refused[name] = error
        return None


class Task(NamedTuple):
    """The action on each item."""

    doing: str
    """For messages, as in "deleting topic"."""
    operation: str | None = None
    """The operation that an ACL would have to allow."""
    done_by_lost: ErrorCode | None = None
    """The code that means, after an attempt with a lost response, that this attempt succeeded."""
    changes: bool = True
    """False for a question, and for a dry run: a lost response is of no consequence."""


def broker_share(deadline: Deadline) -> int:
    """The milliseconds that a broker may spend on a request."""
    return int(deadline.remaining_ms * BROKER_SHARE)


def names_of(given: Iterable[str], what: str) -> list[str]:
    """``given`` as a list of distinct names. Raises `ValueError` for a single str, which would pass for a
    collection of its letters, and for items that are not str.
    """
    if isinstance(given, str | bytes):
        raise ValueError(f"{what} must be a collection of names, as [{given!r}], not {given!r}")
    names = list(dict.fromkeys(given))
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{what} must be names, not {name!r}")
    return names


def refuse(outcome: ItemResult, doing: str, operation: str | None = None) -> None:
    """Raise `BrokerError` if ``outcome`` is an error."""
    if outcome.error_code:
        where = f"{doing} {outcome.name}"
        raise BrokerError(outcome.error_code, where, outcome.message or None, operation)


def _some(names: Collection[object]) -> str:
    first = str(next(iter(names)))
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"
