"""`SteppedReader`: a `PartitionReader` and all below it, without its thread, sockets and a clock of its own:
the test calls each step, and its cluster answers the requests."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol
from unittest.mock import patch

from spark_kafka_native.kafka.cluster import router as router_module
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.reader_config import ReaderConfig
from spark_kafka_native.kafka.consumer import fetched_records, fetcher, partition_reader, prefetch_thread
from spark_kafka_native.kafka.consumer.fetcher import FetchClock
from spark_kafka_native.kafka.consumer.partition_reader import PartitionReader
from spark_kafka_native.kafka.consumer.prefetch_thread import PrefetchThread
from spark_kafka_native.kafka.errors import KafkaError, NetworkError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest, FetchResponse
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.runtime import background


class Cluster(Protocol):
    """What a test has in its place."""

    now: float
    version: int
    """Of Fetch."""

    def answer(self, request: Any, node_id: int, version: int) -> Any:
        """To any request; may raise a `NetworkError`."""

    def metadata(self, topics: list[str]) -> Any: ...

    def between_tries(self) -> None: ...

    def dial(self) -> None:
        """A broker is connected to; may raise a `NetworkError`."""

    def heard(self) -> KafkaError | None:
        """A response arrives; an error if it cannot be read."""

    def wait(self) -> None:
        """Time passes, in a wait of the fetch."""


@dataclass(eq=False)
class Pending:
    """A `PendingResponse`. The memory of a response is used again once it is released."""

    connection: Link
    request: Any
    version: int
    response: Any = None
    error: KafkaError | None = None
    frames: list[bytearray] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.response is not None or self.error is not None

    def result(self, _timeout_ms: float, _deadline: Any = None) -> Any:
        if self.error is not None:
            raise self.error
        return self.response

    def abandon(self) -> None:
        pass

    def release(self) -> None:
        for frame in self.frames:
            frame[:] = b"\xff" * len(frame)


@dataclass(eq=False)
class Link:
    """A `Connection` to a broker."""

    cluster: Cluster
    node_id: int
    sent: deque[Pending] = field(default_factory=deque)
    served: deque[tuple[Pending, Any]] = field(default_factory=deque)
    closed: bool = False
    muted_ms = 0.0
    buffers = SimpleNamespace(trim=lambda: None)

    @property
    def address(self) -> str:
        return f"broker:{self.node_id}"

    def version_of(self, request: Any, until: int | None = None) -> int:
        highest = self.cluster.version if request is FetchRequest else 5
        return highest if until is None else min(highest, until)

    def send(self, request: Any, _timeout_ms: float) -> Any:
        return self.cluster.answer(request, self.node_id, 4)

    def submit(self, request: Any, version: int, _deadline: Any = None) -> Pending:
        pending = Pending(self, request, version)
        if isinstance(request, ListOffsetsRequest):
            pending.response = self.cluster.answer(request, self.node_id, version)
        elif self.closed:
            pending.error = NetworkError("hung up")
        else:
            assert not self.sent, "two requests at a time"
            self.sent.append(pending)
        return pending

    def serve(self) -> None:
        """The broker answers the next request."""
        if self.sent:
            pending = self.sent.popleft()
            response = self.cluster.answer(pending.request, self.node_id, pending.version)
            self.served.append((pending, response))

    def hear(self) -> None:
        """The next response arrives, perhaps too late."""
        if self.served:
            pending, response = self.served.popleft()
            if not pending.ended:
                pending.error = self.cluster.heard()
                self.closed |= pending.error is not None
                pending.response, pending.frames = response, frames_of(response)

    def hang_up(self) -> None:
        for pending in [*self.sent, *(one for one, _ in self.served)]:
            pending.error = pending.error or NetworkError("lost")
        self.sent.clear()
        self.served.clear()
        self.closed = True

    def give_up(self, pending: Pending, after_ms: float, *, is_overdue: bool) -> None:
        assert is_overdue
        pending.error = NetworkError(f"no answer within {after_ms:.0f} ms")
        self.hang_up()


def frames_of(response: FetchResponse) -> list[bytearray]:
    data = [one for topic in response.responses for one in topic.partitions]
    return [one.records.obj for one in data if one.records is not None]  # type: ignore[misc]


class SteppedRouter(Router):
    """It asks the test's cluster, at once, and tries again without a pause."""

    def __init__(self, config: ClientConfig, cluster: Cluster) -> None:
        super().__init__(config)
        self.cluster = cluster
        self.links: dict[int, Link] = {}

    def look_up(self, request: Any, deadline: Any) -> Any:  # noqa: ARG002 - nothing takes time
        return self.cluster.metadata([topic.name for topic in request.topics])

    def retry(self, operation: Callable[[], Any], *, topics: Any = (), **_: Any) -> Any:
        failure: KafkaError | None = None
        for _attempt in range(100):
            try:
                return operation()
            except KafkaError as error:
                failure = error
            self.cluster.between_tries()
            with contextlib.suppress(KafkaError):
                self.refresh(topics, self.deadline())
        assert failure is not None
        raise failure

    def ready(self, node_id: int) -> Any:
        link = self.links.get(node_id)
        return None if link is None or link.closed else link

    def connection(self, node_id: int, deadline: Any = None, channel: str = "") -> Any:  # noqa: ARG002
        self.broker(node_id)
        if self.ready(node_id) is None:
            self.cluster.dial()
            self.links[node_id] = Link(self.cluster, node_id)
        return self.links[node_id]


class SteppedThread(PrefetchThread):
    """The thread, step by step."""

    def __init__(self, router: Any, *rest: Any) -> None:
        super().__init__(router, *rest)
        self.thread = SimpleNamespace(start=lambda: None)  # type: ignore[assignment]
        self._run._lookups._connections = router
        self._run._clock = FetchClock(lambda: router.cluster.now)

    def turn(self) -> None:
        """One round of its loop."""
        self._buffer.wakeup.clear()
        self._run.settle()
        self._follow()
        self._fetch()
        self._watch_metadata()

    def end(self) -> None:
        self._run.close()
        self.brokers.close()
        self._buffer.wakeup.close()
        self._buffer.ended = True


class Ordered(dict[TopicPartition, None]):
    """A set, the order of which does not depend on hashes: those of strings differ in each process."""

    def add(self, one: TopicPartition) -> None:
        self[one] = None

    def pop(self) -> TopicPartition:  # type: ignore[override]
        return self.popitem()[0]


class SteppedReader(PartitionReader):
    """`turn` is the step of its thread, `look_up` that of one of its helpers."""

    def __init__(self, cluster: Cluster, client: dict[str, Any], **config: Any) -> None:
        properties = ClientConfig.from_properties({"bootstrap.servers": "a:1"} | client)
        self.stepped_router = SteppedRouter(properties, cluster)
        self.asking: deque[Callable[[], object]] = deque()
        """Questions of the helpers, which are not answered yet."""
        self.resets: list[tuple[TopicPartition, int, int]] = []
        """Those that the policy has applied: the former position and the new one."""
        super().__init__(self.stepped_router, ReaderConfig(**config))
        self.buffer._changed = Ordered()  # type: ignore[assignment]
        reset = self.buffer.reset

        def noted(wanted: Any, moves: int, applied: Any) -> None:
            if self.buffer._is_current(wanted, moves):
                self.resets.append((wanted.topic_partition, applied.former, applied.offset))
            reset(wanted, moves, applied)

        self.buffer.reset = noted  # type: ignore[method-assign]

    def turn(self) -> None:
        thread: Any = self._prefetching
        thread.turn()

    def look_up(self) -> None:
        if self.asking:
            self.asking.popleft()()

    def end(self) -> None:
        self.close()


@contextlib.contextmanager
def stepped(
    cluster: Cluster, client: dict[str, Any], piece_bytes: int, **config: Any
) -> Iterator[SteppedReader]:
    """A reader of ``cluster``; records are decoded in pieces of ``piece_bytes``."""
    clock = SimpleNamespace(monotonic=lambda: cluster.now, time=lambda: cluster.now)

    def look(pendings: list[Pending], _until: object, wakeup: Any) -> list[Pending]:
        found = [pending for pending in pendings if pending.ended]
        if not found:
            cluster.wait()
            wakeup.set()  # as if the time were over
        return found

    reader: SteppedReader
    with contextlib.ExitStack() as stack:
        for module in (fetcher, prefetch_thread, router_module):
            stack.enter_context(patch.object(module, "time", clock))
        stack.enter_context(patch.object(fetcher, "wait_for_any", look))
        stack.enter_context(patch.object(prefetch_thread, "wait_for_streams", lambda *_: None))
        stack.enter_context(patch.object(partition_reader, "PrefetchThread", SteppedThread))
        stack.enter_context(patch.object(fetched_records, "DECODED_BYTES", piece_bytes))
        later: Any = lambda work, _name: reader.asking.append(work)  # noqa: E731
        stack.enter_context(patch.object(background, "start_thread", later))
        reader = SteppedReader(cluster, client, **config)
        try:
            yield reader
        finally:
            thread: Any = reader._prefetching
            thread.end()
            reader.close()
