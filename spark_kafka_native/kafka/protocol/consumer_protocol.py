"""The consumer protocol: the data that members of a classic group exchange inside JoinGroup and SyncGroup.

A two-byte version, then the structure at that version. A version later than ours is read as our latest,
because new fields are only ever added at the end.
"""

from __future__ import annotations

import struct
from typing import TypeVar

from ..errors import ProtocolError
from .message import Data, Struct, field
from .message_codec import codec
from .wire import Bytes, Int32, String

PROTOCOL_TYPE = "consumer"
"""The ``protocol_type`` of consumer groups; Kafka Connect uses another."""

_VERSION = struct.Struct(">h")


class ProtocolTopicPartitions(Struct, spec_name="TopicPartition"):
    """Partitions of one topic."""

    topic: String
    partitions: list[Int32]


class ConsumerProtocolSubscription(Data, versions=(0, 3)):
    """The topics of a member, and the partitions it owns while it joins (cooperative assignors, KIP-429)."""

    topics: list[String]
    user_data: Bytes | None = field(nullable=0, default=None)
    owned_partitions: list[ProtocolTopicPartitions] = field(since=1, ignorable=True, default_factory=list)
    generation_id: Int32 = field(since=2, ignorable=True, default=-1)
    rack_id: String | None = field(since=3, nullable=3, ignorable=True, default=None)


class ConsumerProtocolAssignment(Data, versions=(0, 3)):
    """The partitions that the leader has assigned to a member."""

    assigned_partitions: list[ProtocolTopicPartitions]
    user_data: Bytes | None = field(nullable=0, default=None)


D = TypeVar("D", bound=Data)


def write_versioned(message: Data) -> bytes:
    """Return the bytes of ``message`` at the latest version; older readers ignore fields they do not know."""
    version = message.versions[1]
    return _VERSION.pack(version) + b"".join(codec(type(message), version).write(message))


def read_versioned(data_class: type[D], data: bytes) -> D:
    """Read a message of ``data_class`` from its bytes. Raises `ProtocolError`."""
    if len(data) < _VERSION.size or (version := _VERSION.unpack_from(data)[0]) < data_class.versions[0]:
        raise ProtocolError(f"{data_class.__name__}: {data[:8]!r} does not begin with a version")
    known = codec(data_class, min(version, data_class.versions[1]))
    message, _ = known.read_start(memoryview(data)[_VERSION.size :])
    return message
