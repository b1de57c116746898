"""One request to several brokers at once, or about several partitions, with a response or an error from
each.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TypeVar

from ..errors import AuthenticationError, ClientClosedError, KafkaError
from ..model import TopicPartition
from ..network.connection import Connection
from ..network.pending_response import PendingResponse
from ..protocol.message import Request, Response
from ..runtime.deadline import Deadline
from .metadata import ClusterMetadata, metadata_of, topics_named, topics_request
from .router import Router

P = TypeVar("P")
R = TypeVar("R", bound=Response)
T = TypeVar("T")
K = TypeVar("K")
A = TypeVar("A")


def ask_each_broker(
    router: Router,
    node_ids: Collection[int],
    ask: Callable[[int, Connection], P],
    read: Callable[[int, P], None],
    deadline: Deadline,
) -> dict[int, KafkaError]:
    """Call ``ask``, which sends a request, and ``read``, which waits for its response, for each broker;
    returns the errors of the brokers that did not answer.

    Connected brokers are asked first, all before the first response is awaited. The others are connected to
    at the same time, in threads: an unreachable broker delays no other.
    """
    failures: dict[int, KafkaError] = {}
    bugs: list[BaseException] = []

    def ask_and_read(node_id: int) -> None:
        with _collecting(failures, node_id):
            read(node_id, ask(node_id, router.connection(node_id, deadline)))

    ready = _ready(router, node_ids)
    others = [node for node in node_ids if node not in ready]
    threads, left = _start(ask_and_read, others, bugs, alone=len(node_ids) == 1)
    asked: dict[int, P] = {}
    for node_id, connection in ready.items():
        with _collecting(failures, node_id):
            asked[node_id] = ask(node_id, connection)
    for node_id, pending in asked.items():
        with _collecting(failures, node_id):
            read(node_id, pending)
    for node_id in left:
        ask_and_read(node_id)
    for thread in threads:
        thread.join()
    if bugs:
        raise bugs[0]
    return failures


@contextlib.contextmanager
def _collecting(failures: dict[int, KafkaError], node_id: int) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        failures[node_id] = error


def _ready(router: Router, node_ids: Collection[int]) -> dict[int, Connection]:
    found: dict[int, Connection] = {}
    for node_id in node_ids:
        with contextlib.suppress(KafkaError):  # raised when the broker is connected to
            if (connection := router.ready(node_id)) is not None:
                found[node_id] = connection
    return found


def _start(
    ask_and_read: Callable[[int], None], node_ids: list[int], bugs: list[BaseException], *, alone: bool
) -> tuple[list[threading.Thread], list[int]]:
    """The threads, and the brokers without one: a broker that is ``alone`` needs none, and no thread can be
    started while the interpreter ends.
    """

    def run(node_id: int) -> None:
        try:
            ask_and_read(node_id)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            bugs.append(error)

    threads: list[threading.Thread] = []
    with contextlib.suppress(RuntimeError):
        for node_id in node_ids if not alone else ():
            thread = threading.Thread(target=run, args=(node_id,), name="kafka-ask", daemon=True)
            thread.start()
            threads.append(thread)
    return threads, node_ids[len(threads) :]


def ask_every_broker(
    router: Router,
    request: Request[R],
    read: Callable[[int, R], Iterable[T]],
    *,
    what: str,
    deadline: Deadline,
    give_up_after_ms: float = float("inf"),
) -> tuple[list[T], dict[int, KafkaError]]:
    """The results of ``read`` for the response of each broker of the cluster, in the order of their ids. A
    broker that does not answer is asked again until it has left the cluster.

    ``give_up_after_ms`` means the same as in `ask_each_partition`; no attempt takes longer.
    """
    wanted = sorted(router.metadata((), refresh=True, deadline=deadline).brokers)

    def ask(_missing: list[int], found: dict[int, list[T]]) -> dict[int, KafkaError]:
        limit, brokers = deadline.within_ms(give_up_after_ms), router.snapshot.brokers
        if not brokers.keys() >= set(wanted):
            # Others have the coordinators of a broker that has left, and may have answered before.
            wanted[:] = sorted(brokers)
            found.clear()

        def submit(_node_id: int, connection: Connection) -> PendingResponse[R]:
            return connection.submit(request, deadline=limit)

        def take(node_id: int, pending: PendingResponse[R]) -> None:
            response = pending.result(router.config.request_timeout_ms, limit)
            found[node_id] = list(read(node_id, response))

        unheard = [node_id for node_id in wanted if node_id not in found]
        return ask_each_broker(router, unheard, submit, take, limit)

    def refresh(_: KafkaError) -> None:
        router.refresh((), deadline)

    retry = partial(router.retry, what=what, deadline=deadline, between=refresh)
    found, failures = _ask_each(retry, wanted, ask, give_up_after_ms)
    return [one for node_id in wanted for one in found.get(node_id, ())], failures


def metadata_of_each_broker(
    router: Router, topics: Collection[str], *, deadline: Deadline, give_up_after_ms: float
) -> list[ClusterMetadata]:
    """What each broker knows about ``topics``: that one knows nothing may mean that it lags behind.

    Brokers that have not answered after ``give_up_after_ms`` are left out if any has.
    """
    answers, _ = ask_every_broker(
        router,
        topics_request(sorted(topics)),
        lambda node_id, response: [metadata_of(response, node_id)],
        what=f"asking each broker for {topics_named(topics)}",
        deadline=deadline,
        give_up_after_ms=give_up_after_ms,
    )
    return answers


def ask_each_partition(
    router: Router,
    wanted: Collection[TopicPartition],
    ask: Callable[[list[TopicPartition], dict[TopicPartition, A]], dict[TopicPartition, KafkaError]],
    *,
    what: str,
    deadline: Deadline,
    give_up_after_ms: float = float("inf"),
) -> tuple[dict[TopicPartition, A], dict[TopicPartition, KafkaError]]:
    """``ask`` puts the responses about some partitions into a dict, and returns the errors of the others; it
    is called again for those that are missing.

    With ``give_up_after_ms`` the retries end after this time if any partition has a response: the errors of
    the others are returned with it. Otherwise the first error is raised.
    """
    retry = partial(router.retry, what=what, deadline=deadline, topics={tp.topic for tp in wanted})
    return _ask_each(retry, wanted, ask, give_up_after_ms)


def _ask_each(
    retry: Callable[[Callable[[], None]], None],
    wanted: Collection[K],
    ask: Callable[[list[K], dict[K, A]], dict[K, KafkaError]],
    give_up_after_ms: float,
) -> tuple[dict[K, A], dict[K, KafkaError]]:
    found: dict[K, A] = {}
    failures: dict[K, KafkaError] = {}
    patient = Deadline.after_ms(give_up_after_ms)

    def attempt() -> None:
        failed = ask([one for one in wanted if one not in found], found)
        failures.clear()  # only now: if `ask` raises, those of the attempt before are returned
        failures.update(failed)
        if failures and not (found and patient.expired):
            errors = list(failures.values())
            # A refused login first, which ends it: each further one may lock the account.
            raise next((one for one in errors if isinstance(one, AuthenticationError)), errors[0])

    try:
        retry(attempt)
    except ClientClosedError:
        raise
    except KafkaError as error:
        if not found or give_up_after_ms == float("inf"):
            raise
        # `ask` may have raised it before it came to some of them.
        return found, {one: failures.get(one, error) for one in wanted if one not in found}
    return found, {one: error for one, error in failures.items() if one not in found}
