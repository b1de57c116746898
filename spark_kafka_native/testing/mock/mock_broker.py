"""`MockBroker`: brokers in this process, for tests of what a real one does too rarely."""

from __future__ import annotations

import itertools
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

from ...kafka.model import Record, TopicPartition
from .exchange import Exchange
from .groups import GroupCoordinator
from .listener import Listener
from .message_spec import message_specs
from .mock_cluster import MockCluster, topic_responders
from .partition_log import PartitionLog, build_batch, read_records
from .record_responses import record_responders
from .script import Fault, MockRequest
from .transactions import TransactionCoordinator

Value = Record | bytes | str | None


class MockBroker:
    """One broker or several, which keep topics, records and groups in memory and misbehave as scripted.

        with MockBroker() as broker:
            broker.create_topic("orders", partitions=2)
            broker.on("Produce", partition=0, times=2).fail("NOT_LEADER_OR_FOLLOWER")

    They speak what producers, consumers, `GroupConsumer` (the classic protocol) and the topics' part of
    `Admin` need, at every version that Kafka has; transactions are those before KIP-890, and never expire.
    Other clients may use them too.
    Messages are read and written by Kafka's own specification, from a ``kafka-clients`` jar; no Java runs.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        versions: Mapping[str, tuple[int, int]] | None = None,
        tls: ssl.SSLContext | None = None,
        users: Mapping[str, str] | None = None,
        socket_buffer_bytes: int | None = None,
        jar: Path | None = None,
    ) -> None:
        """Start listening on 127.0.0.1; node ids begin with 1.

        ``versions`` narrows an API to a lowest and a highest version, ``{"Fetch": (4, 11)}``, as an older
        broker has it. ``tls`` is a server's context. ``users`` are the names and passwords that
        SASL PLAIN accepts. ``socket_buffer_bytes`` is the size of the sockets' buffers: a client soon fills
        small ones when a broker does not read. ``jar`` is a ``kafka-clients`` jar; by default that of
        the embedded broker, which is fetched on the first call ever. Raises `JarsUnavailableError` if there
        is none, `JavaUnavailableError` if it would have to be fetched and there is no Java to do that.
        """
        if brokers < 1:
            raise ValueError(f"brokers is {brokers}: at least one is needed")
        self.cluster = MockCluster()
        """Topics with their logs and leaders. With the lock ``cluster.changed`` held, a test may change it,
        `groups` and `transactions`, to make a state that no client could.
        """
        self.groups = GroupCoordinator(self.cluster)
        self.transactions = TransactionCoordinator(self.cluster, self.groups)
        self._seen: list[MockRequest] = []
        responders = {
            **topic_responders(self.cluster),
            **record_responders(self.cluster, self.transactions),
            **self.groups.responders(),
            **self.transactions.responders(),
        }
        self._exchange = Exchange(
            message_specs(jar), self.cluster, responders, users, versions or {}, self._see
        )
        numbers = itertools.count(1)
        self._number: Callable[[], int] = lambda: next(numbers)
        self._listeners = {
            node_id: Listener(node_id, self.cluster, self._exchange.serve, tls, socket_buffer_bytes)
            for node_id in range(1, brokers + 1)
        }
        try:
            for node_id in self._listeners:
                self.start(node_id)
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        self._end()
        if error is None:  # one of the test itself says more
            self._exchange.check()

    def close(self) -> None:
        """Stop all brokers and wait for their threads; what waits at a gate or for a group goes on.

        Raises `RuntimeError` if a fault could not be carried out, as where a function given to it raised
        or a `Fault.reply` has a field that the response has not: its request found the connection closed.
        """
        self._end()
        self._exchange.check()

    def _end(self) -> None:
        self._exchange.closed.set()
        for node_id, listener in self._listeners.items():
            self.stop(node_id)
            listener.stop(for_good=True)
        with self.cluster.changed:
            self.groups.disband()
        for listener in self._listeners.values():
            listener.join()

    # --- contents ---

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, also of those that are stopped."""
        return ",".join(f"127.0.0.1:{listener.port}" for listener in self._listeners.values())

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str | None] | None = None
    ) -> None:
        """Create a topic; the brokers lead its partitions in turn."""
        if partitions < 1:
            raise ValueError(f"partitions is {partitions}: a topic has at least one")
        with self.cluster.changed:
            if name in self.cluster.topics:
                raise ValueError(f"the topic {name} is there already")
            self.cluster.create_topic(name, partitions, configs or {})

    def append(self, topic: str, values: Iterable[Value], *, partition: int = 0) -> int:
        """Append records in one batch, as if a producer had; the offset of the first.

        A record is its value, or a `Record`; its topic, partition and offset are ignored.
        """
        records = [_record(value) for value in values]
        if not records:
            raise ValueError(f"there is no record to append to {topic}")
        batch = build_batch(records, time.time_ns() // 1_000_000)
        with self.cluster.changed:
            code, offset = self._log(topic, partition).append(batch)
            self.cluster.changed.notify_all()
        if code:
            raise ValueError(f"the records can't be appended: {code.name}")
        return offset

    def records(self, topic: str, partition: int = 0, *, committed: bool = False) -> list[Record]:
        """The records of the log, open and aborted transactions included, or only the ``committed`` ones."""
        with self.cluster.changed:
            log = self._log(topic, partition)
            batches, start = list(log.batches), log.log_start_offset
            if committed:
                batches = [batch for batch in batches if log.is_visible(batch)]
        found = [record for batch in batches for record in read_records(topic, partition, batch)]
        return [record for record in found if record.offset >= start]

    def batches(self, topic: str, partition: int = 0) -> list[bytes]:
        """The record batches of the log as they are stored, headers included."""
        with self.cluster.changed:
            return list(self._log(topic, partition).batches)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a partition; -1 while none does."""
        with self.cluster.changed:
            return self._log(topic, partition).leader

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets that a group has committed."""
        with self.cluster.changed:
            known = self.groups.by_id.get(group)
            committed = {} if known is None else known.committed
            return {TopicPartition(*place): part["committed_offset"] for place, part in committed.items()}

    # --- what happens to them ---

    def on(  # noqa: PLR0913 - conditions, each of them a word
        self,
        api: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        node_id: int | None = None,
        times: int | None = 1,
        after: int = 0,
        when: Callable[[MockRequest], bool] | None = None,
    ) -> Fault:
        """Say what happens to the next ``times`` requests of an API (None: to all), by the methods of the
        `Fault`.

        Only those count that are about ``topic`` and ``partition``, at broker ``node_id``, and for which
        ``when(request)`` is true; the first ``after`` of them are spared. Faults with the same conditions
        happen one after the other. An API that the mock does not know is offered to clients as soon as there
        is a fault of it, such as `Fault.reply`.
        """
        self._exchange.check_api(api)
        conditions = {"topic": topic, "partition": partition, "node_id": node_id}
        with self.cluster.changed:
            lock = self.cluster.changed
            fault = Fault(api, conditions, times=times, after=after, when=when, lock=lock)
            return self._exchange.script.add(fault)

    def respond(self, api: str, body: bytes, *, version: int, node_id: int = 1) -> bytes:
        """A broker's response to a request that came over no connection: the bytes behind the headers.

        It is carried out; faults do not count. For a function given to `Fault.reply` that changes a response.
        """
        self._exchange.check_api(api)
        return self._exchange.respond(api, body, version, node_id)

    def stop(self, node_id: int, *, is_noticed: bool = True) -> None:
        """Refuse and close the connections of a broker; others lead its partitions from now on.

        Not ``is_noticed``: the cluster still counts on it, as in the first seconds after a broker has died.
        """
        if not is_noticed:
            self._listeners[node_id].stop()
            return
        with self.cluster.changed:
            self.cluster.running.discard(node_id)
            self.cluster.elect()
            self.cluster.changed.notify_all()
        self._listeners[node_id].stop()

    def start(self, node_id: int) -> None:
        """Let a stopped broker listen again, on the port that it had."""
        listener = self._listeners[node_id]
        with self.cluster.changed:
            if not listener.is_listening:
                listener.start(self._number)
            if node_id in self.cluster.running:
                return
            self.cluster.addresses[node_id] = ("127.0.0.1", listener.port)
            self.cluster.running.add(node_id)
            self.cluster.elect()

    def refuse(self, node_id: int) -> None:
        """Refuse new connections to a broker until it is started again; those that are open stay."""
        self._listeners[node_id].refuse()

    def hang_up(self, node_id: int | None = None) -> None:
        """Close the connections of a broker, or of all; they may come again."""
        for one in self._listeners if node_id is None else [node_id]:
            self._listeners[one].hang_up()

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Let another broker lead a partition, in a new leader epoch."""
        with self.cluster.changed:
            if node_id not in self.cluster.running:
                raise ValueError(f"broker {node_id} does not run")
            self.cluster.lead(self._log(topic, partition), node_id)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the start of a partition's log, as retention does."""
        with self.cluster.changed:
            log = self._log(topic, partition)
            if not log.log_start_offset <= before <= log.end_offset:
                within = f"{log.log_start_offset} to {log.end_offset}"
                raise ValueError(f"the log's start can't move to {before}: the log has the offsets {within}")
            log.delete_before(before)

    def cut_log(self, topic: str, partition: int, end: int) -> None:
        """Let the log end at ``end``, in a new leader epoch: its leader lacks the rest (an unclean election).
        A batch that reaches beyond is lost as a whole.
        """
        with self.cluster.changed:
            log = self._log(topic, partition)
            if not log.log_start_offset <= end <= log.end_offset:
                within = f"{log.log_start_offset} to {log.end_offset}"
                raise ValueError(f"the log can't end at {end}: it has the offsets {within}")
            log.cut(end)
            self.cluster.lead(log, log.leader)

    # --- recorded requests ---

    @property
    def requests(self) -> list[MockRequest]:
        """All requests so far, in the order in which they came."""
        with self.cluster.changed:
            return list(self._seen)

    def asked(self, api: str) -> list[MockRequest]:
        """The requests of one API so far."""
        self._exchange.check_api(api)
        return [request for request in self.requests if request.api == api]

    def wait_for(self, api: str, count: int = 1, timeout: float = 60) -> list[MockRequest]:
        """Wait until there have been ``count`` requests of an API; them. Raises `TimeoutError` after
        ``timeout`` seconds.
        """
        self._exchange.check_api(api)

        def enough() -> bool:
            return sum(request.api == api for request in self._seen) >= count

        with self.cluster.changed:
            if not self.cluster.changed.wait_for(enough, timeout):
                seen = sum(request.api == api for request in self._seen)
                raise TimeoutError(f"{seen} of {count} requests of {api} came within {timeout:g} s")
        return self.asked(api)

    def _see(self, request: MockRequest) -> None:
        with self.cluster.changed:
            self._seen.append(request)
            self.cluster.changed.notify_all()

    def _log(self, topic: str, partition: int) -> PartitionLog:
        log = self.cluster.log(topic, partition)
        if log is None:
            raise ValueError(f"there is no partition {partition} of a topic {topic}")
        return log

    def __repr__(self) -> str:
        return f"<MockBroker {self.bootstrap_servers}: {len(self.cluster.topics)} topics>"


def _record(value: Value) -> Record:
    if isinstance(value, Record):
        return value
    return Record("", -1, -1, None, value.encode() if isinstance(value, str) else value)
