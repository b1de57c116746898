"""Structures that Fetch and Produce responses share: the new leader of a partition (KIP-951)."""

from __future__ import annotations

from ..message import Struct, field
from ..wire import Int32, String


class LeaderIdAndEpoch(Struct):
    """The leader of a partition after it moved; -1 if the broker does not know it."""

    leader_id: Int32 = field(default=-1)
    leader_epoch: Int32 = field(default=-1)


class NodeEndpoint(Struct):
    """The address of a broker named in a `LeaderIdAndEpoch`."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None
