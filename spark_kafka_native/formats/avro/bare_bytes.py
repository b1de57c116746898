"""Bytes that are a whole payload of a schema registry: without the length that Avro has before them.

Confluent's Java client, and with it Kafka Connect, writes and reads them so (`AbstractKafkaAvroSerializer`,
type BYTES). Its clients for other languages write the length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrays import bitmap, offsets_and_data, validity
from ..format import Decoded, Decoder, Encoder
from ..plain_types import as_payloads
from .schema import AvroType

_LENGTH_BYTES = 5
"""At most, of the length of a payload, which is an int32."""


def reads_bare_bytes(written: AvroType, decoder: Decoder) -> Decoder:
    """``decoder`` for payloads that ``written`` wrote, as a registry keeps them."""
    return _BareBytesDecoder(decoder) if written.kind == "bytes" else decoder


def writes_bare_bytes(written: AvroType, encoder: Encoder) -> Encoder:
    """``encoder`` for payloads of ``written``, as a registry keeps them."""
    return _BareBytesEncoder(encoder) if written.kind == "bytes" else encoder


@dataclass(frozen=True, slots=True)
class _BareBytesDecoder:
    decoder: Decoder

    @property
    def type(self) -> pa.DataType:
        return self.decoder.type

    def decode(self, payloads: pa.Array) -> Decoded:
        payloads = as_payloads(payloads)
        ends, data = offsets_and_data(payloads)
        lengths = np.diff(ends).astype(np.int64)
        counts = _count_bytes(lengths)
        starts = _sums(lengths + counts)
        out = np.empty(starts[-1], np.uint8)
        is_length = np.zeros(len(out), np.bool_)
        for place in range(_LENGTH_BYTES):
            has = counts > place
            more = np.where(counts[has] > place + 1, 0x80, 0)
            out[starts[:-1][has] + place] = (lengths[has] << 1 >> 7 * place) & 0x7F | more
            is_length[starts[:-1][has] + place] = True
        out[~is_length] = data[ends[0] : ends[-1]]
        return self.decoder.decode(_binary(out, starts, payloads))


@dataclass(frozen=True, slots=True)
class _BareBytesEncoder:
    encoder: Encoder

    def encode(self, rows: pa.Array) -> pa.Array:
        payloads = self.encoder.encode(rows)
        ends, data = offsets_and_data(payloads)
        lengths = np.diff(ends).astype(np.int64)
        is_length = np.zeros(len(data), np.bool_)
        rows = np.flatnonzero(validity(payloads))
        for place in range(_LENGTH_BYTES):
            at = ends[rows].astype(np.int64) + place
            is_length[at] = True
            lengths[rows] -= 1
            rows = rows[data[at] >= 0x80]
        used = slice(int(ends[0]), int(ends[-1]))
        return _binary(data[used][~is_length[used]], _sums(lengths), payloads)


def _count_bytes(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of each length as a zigzag varint."""
    counts = np.ones(len(lengths), np.int64)
    for place in range(1, _LENGTH_BYTES):
        counts += lengths << 1 >= 1 << 7 * place
    return counts


def _sums(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _binary(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], like: pa.Array) -> pa.Array:
    """Null where ``like`` is."""
    valid = bitmap(validity(like)) if like.null_count else None
    buffers = [valid, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(like), buffers)
