"""Transactions in the log: control batches (commit and abort markers), and the batches that an aborted
transaction hides (KIP-98).

Markers are never shown to a reader; their offsets count. Their contents matter to read_committed readers
only.
"""

from __future__ import annotations

import enum
import heapq
import struct
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import CorruptRecordError
from ..model import AbortedTransaction
from .batch import CONTROL, TRANSACTIONAL, BatchHeaders
from .varint import VARLONG_BYTES, read_varint

_CONTROL_KEY = struct.Struct(">hh")
"""The key of a marker: version, type."""


class ControlType(enum.IntEnum):
    """The type of a control record. Readers ignore Kafka's further types (leader change, snapshots)."""

    ABORT = 0
    COMMIT = 1
    UNKNOWN = -1


def find_aborted_batches(
    headers: BatchHeaders,
    aborted_transactions: Sequence[AbortedTransaction],
    read_body: Callable[[int], memoryview],
) -> tuple[npt.NDArray[np.bool_], tuple[AbortedTransaction, ...]]:
    """Return which batches belong to aborted transactions, and the transactions that matter behind them.

    ``aborted_transactions`` is the fetch response's list, in any order. ``read_body(index)`` returns the
    decompressed records of a batch. The second result replaces the list when reading continues behind these
    batches: after its abort marker, a transaction must not hide records that its producer committed later.
    """
    waiting = [(aborted.first_offset, aborted.producer_id) for aborted in aborted_transactions]
    heapq.heapify(waiting)
    open_since: dict[int, int] = {}
    hidden = np.zeros(len(headers.start), np.bool_)
    transactional = headers.has(TRANSACTIONAL)
    control = headers.has(CONTROL)
    # A loop over batches, only if the broker reports aborted transactions.
    for index in np.flatnonzero(transactional).tolist():
        last_offset = int(headers.last_offset[index])
        while waiting and waiting[0][0] <= last_offset:
            first_offset, producer_id = heapq.heappop(waiting)
            open_since.setdefault(producer_id, first_offset)
        producer_id = int(headers.producer_id[index])
        if producer_id not in open_since:
            continue
        if not control[index]:
            hidden[index] = True
        elif read_marker(headers, index, read_body) is ControlType.ABORT:
            del open_since[producer_id]
    left = [AbortedTransaction(producer_id=pid, first_offset=first) for pid, first in open_since.items()]
    left += [AbortedTransaction(producer_id=pid, first_offset=first) for first, pid in sorted(waiting)]
    return hidden, tuple(left)


def read_control_type(body: memoryview) -> ControlType:
    """Return the type of the first record of a control batch; ValueError if its key can't be read.

    An unknown version or type is accepted. Only the first record counts (as in Java).
    """
    position = read_varint(body, 0)[1] + 1
    position = read_varint(body, position, VARLONG_BYTES)[1]
    position = read_varint(body, position)[1]
    key_length, position = read_varint(body, position)
    if not _CONTROL_KEY.size <= key_length <= len(body) - position:
        raise ValueError(f"its key has {key_length} bytes, a marker's has at least {_CONTROL_KEY.size}")
    _, control_type = _CONTROL_KEY.unpack_from(body, position)
    return ControlType(control_type) if control_type in (0, 1) else ControlType.UNKNOWN


def read_marker(headers: BatchHeaders, index: int, read_body: Callable[[int], memoryview]) -> ControlType:
    """Return the type of the control batch ``index``. Raises `CorruptRecordError` if it can't be read."""
    if not headers.count[index]:
        return ControlType.UNKNOWN
    try:
        return read_control_type(read_body(index))
    except ValueError as error:
        # If it were skipped, an aborted transaction might never end and hide committed records.
        raise CorruptRecordError(
            f"an unreadable control record: {error}", int(headers.base_offset[index])
        ) from error
