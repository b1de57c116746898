"""Structures that Fetch and Produce responses share: where a partition's new leader is (KIP-951)."""

from __future__ import annotations

from ..message import Struct, field
from ..wire import Int32, String


class LeaderIdAndEpoch(Struct):
    """The leader of a partition after it moved; -1 where the broker did not say."""

    leader_id: Int32 = field(default=-1)
    leader_epoch: Int32 = field(default=-1)


class NodeEndpoint(Struct):
    """Where a broker named in a `LeaderIdAndEpoch` listens."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None
