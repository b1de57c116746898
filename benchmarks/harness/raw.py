"""The socket alone: Fetch and Produce requests made by hand, one connection, records never looked into.

This is the other half of the "combined limit": what the broker and the loopback give when the client does
nothing at all with the bytes. It shares no code with the package, so that a slow client can't slow its own
yardstick.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

PRODUCE, FETCH = 0, 1
PRODUCE_VERSION, FETCH_VERSION = 7, 10  # the first that carry zstd
RECEIVE_BUFFER_BYTES = 4 << 20
BATCH_HEAD = struct.Struct(">qi")
BATCH_LOG_OVERHEAD = 12
LAST_OFFSET_DELTA = struct.Struct(">i")
LAST_OFFSET_DELTA_AT = 23


@dataclass(slots=True)
class RawConnection:
    """One blocking connection with one reused receive buffer."""

    host: str
    port: int
    buffer: bytearray = field(default_factory=bytearray)
    sock: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self.sock = socket.create_connection((self.host, self.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)

    def send(self, api_key: int, api_version: int, body: Sequence[bytes | memoryview]) -> None:
        header = struct.pack(">hhih", api_key, api_version, 0, -1)
        length = struct.pack(">i", len(header) + sum(map(len, body)))
        send_all(self.sock, [length + header, *body])

    def receive(self) -> memoryview:
        """The next response without its correlation id; valid until the next call."""
        prefix = bytearray(4)
        receive_exactly(self.sock, memoryview(prefix))
        (length,) = struct.unpack(">i", prefix)
        if len(self.buffer) < length:
            self.buffer = bytearray(length)
        frame = memoryview(self.buffer)[:length]
        receive_exactly(self.sock, frame)
        return frame[4:]

    def close(self) -> None:
        self.sock.close()


def send_all(sock: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
    sent = sock.sendmsg(parts)
    for part in parts:
        if sent < len(part):
            sock.sendall(memoryview(part)[sent:])
            sent = 0
        else:
            sent -= len(part)


def receive_exactly(sock: socket.socket, view: memoryview) -> None:
    while view:
        received = sock.recv_into(view, len(view), socket.MSG_WAITALL)
        if not received:
            raise ConnectionError("the broker closed the connection")
        view = view[received:]


def connect(bootstrap_servers: str) -> RawConnection:
    host, port = bootstrap_servers.split(",")[0].rsplit(":", 1)
    return RawConnection(host, int(port))


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def fetch_record_sets(
    connection: RawConnection, topic: str, ends: Mapping[int, int], fetch_bytes: int, in_flight: int = 2
) -> Iterator[memoryview]:
    """Every record set of the topic from 0 to ``ends`` (partition -> offset), each valid until the next."""
    waiting: deque[int] = deque()
    idle = deque(partition for partition, end in ends.items() if end > 0)
    positions = dict.fromkeys(ends, 0)
    while idle or waiting:
        while idle and len(waiting) < in_flight:
            partition = idle.popleft()
            connection.send(
                FETCH, FETCH_VERSION, [build_fetch(topic, partition, positions[partition], fetch_bytes)]
            )
            waiting.append(partition)
        partition = waiting.popleft()
        record_set = read_fetch(connection.receive(), topic)
        positions[partition] = next_offset(record_set, positions[partition])
        if positions[partition] < ends[partition]:
            idle.append(partition)
        yield record_set


def build_fetch(topic: str, partition: int, position: int, fetch_bytes: int) -> bytes:
    """A request outside of any fetch session for one partition."""
    head = struct.pack(">iiiibiii", -1, 500, 1, fetch_bytes, 0, 0, -1, 1)
    return head + string(topic) + struct.pack(">iiiqqii", 1, partition, -1, position, -1, fetch_bytes, 0)


def read_fetch(frame: memoryview, topic: str) -> memoryview:
    at = 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4
    (error_code,) = struct.unpack_from(">h", frame, at)
    if error_code:
        raise RuntimeError(f"fetching {topic}: error code {error_code}")
    (aborted,) = struct.unpack_from(">i", frame, at + 26)
    at += 30 + 16 * max(aborted, 0)
    (length,) = struct.unpack_from(">i", frame, at)
    return frame[at + 4 : at + 4 + length]


def split_batches(record_set: memoryview) -> Iterator[memoryview]:
    """The complete record batches of a record set."""
    at = 0
    while at + BATCH_LOG_OVERHEAD <= len(record_set):
        _, length = BATCH_HEAD.unpack_from(record_set, at)
        end = at + BATCH_LOG_OVERHEAD + length
        if end > len(record_set):
            return
        yield record_set[at:end]
        at = end


def next_offset(record_set: memoryview, position: int) -> int:
    for batch in split_batches(record_set):
        position = (
            BATCH_HEAD.unpack_from(batch)[0]
            + LAST_OFFSET_DELTA.unpack_from(batch, LAST_OFFSET_DELTA_AT)[0]
            + 1
        )
    return position


def count_records(batch: bytes | memoryview) -> int:
    return int(LAST_OFFSET_DELTA.unpack_from(batch, LAST_OFFSET_DELTA_AT)[0]) + 1


def produce_batches(
    connection: RawConnection,
    topic: str,
    partitions: int,
    batches: Sequence[bytes],
    records: int,
    in_flight: int = 5,
) -> int:
    """Send ``batches`` over and over, round robin over the partitions, until ``records`` are acknowledged."""
    sent = waiting = number = 0
    while sent < records or waiting:
        while sent < records and waiting < in_flight:
            batch = batches[number % len(batches)]
            body = struct.pack(">hhii", -1, -1, 30_000, 1) + string(topic)
            connection.send(
                PRODUCE,
                PRODUCE_VERSION,
                [body, struct.pack(">iii", 1, number % partitions, len(batch)), batch],
            )
            sent += count_records(batch)
            number, waiting = number + 1, waiting + 1
        read_produce(connection.receive(), topic)
        waiting -= 1
    return sent


def read_produce(frame: memoryview, topic: str) -> None:
    (error_code,) = struct.unpack_from(">h", frame, 4 + 2 + len(topic) + 4 + 4)
    if error_code:
        raise RuntimeError(f"producing to {topic}: error code {error_code}")
