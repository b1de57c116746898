"""The wire format of schema registries: what stands before a payload, for a whole column at once.

- Version 0: byte 0, and the schema's id, big-endian in 4 bytes.
- Version 1: byte 1, and the schema's GUID in 16 bytes.

Protobuf's message indexes follow; they belong to the body here.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import offsets_and_data, validity, wrap

ID_LENGTH: Final = 5
GUID_LENGTH: Final = 17
_GLUE_LENGTH: Final = 18
"""AWS Glue: byte 3, a byte for the compression (0 or 5), and the schema version's UUID."""
_MAX_BINARY: Final = 2**31 - 1

SchemaKey = int | str
"""An id or a GUID."""


@dataclass(frozen=True, slots=True)
class Framed:
    """The rows of a column that were written under one schema."""

    key: SchemaKey
    rows: npt.NDArray[np.int64] | None
    """None: all rows, nulls included."""
    bodies: pa.Array
    """The payloads of ``rows`` without what stands before them."""


@dataclass(frozen=True, slots=True)
class Unframed:
    """Rows without a schema, and why."""

    rows: npt.NDArray[np.int64]
    reason: str


def frame_id(id: int) -> bytes:
    """What stands before a payload of the schema with this id."""
    return b"\0" + id.to_bytes(4, "big")


def frame_guid(guid: str) -> bytes:
    """The same with a GUID. Raises ValueError for another text."""
    return b"\1" + uuid.UUID(guid).bytes


def with_prefix(payloads: pa.Array, prefix: bytes) -> pa.Array:
    """``payloads`` (binary), ``prefix`` before each; nulls stay nulls."""
    return pc.binary_join_element_wise(_binary_scalar(prefix), payloads, _binary_scalar(b""))


def split(payloads: pa.Array, headers: pa.Array | None = None) -> Iterator[Framed | Unframed]:
    """``payloads`` by the schemas under which they were written. Rows that are null are in none of the
    parts, except in one that has all rows.

    ``headers``: the schemas of payloads that have theirs in a header of the record (binary, framed as
    above), null for the others.
    """
    present = validity(payloads)
    if headers is None or headers.null_count == len(headers):
        yield from _split_part(payloads, payloads, present, is_in_front=True)
        return
    in_header = validity(headers)
    yield from _split_part(payloads, headers, present & in_header, is_in_front=False)
    yield from _split_part(payloads, payloads, present & ~in_header, is_in_front=True)


def _split_part(
    payloads: pa.Array, framed: pa.Array, chosen: npt.NDArray[np.bool_], *, is_in_front: bool
) -> Iterator[Framed | Unframed]:
    """The rows that are ``chosen``. ``framed`` begins with the schema of each; with ``is_in_front`` it is
    the payload. What follows the schema in a header (protobuf's message indexes) comes before the body."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return
    is_whole = len(rows) == len(payloads) - payloads.null_count
    offsets, data = offsets_and_data(framed)
    starts, lengths = offsets[rows].astype(np.int64), np.diff(offsets)[rows]
    magic = np.full(len(rows), -1, np.int16)
    magic[lengths > 0] = data[starts[lengths > 0]]
    for version, length, keys_of in ((0, ID_LENGTH, _ids), (1, GUID_LENGTH, _guids)):
        ours = (magic == version) & (lengths >= length)
        if not ours.any():
            continue
        keys, groups = keys_of(data, starts if ours.all() else starts[ours])
        if len(keys) == 1 and is_whole and ours.all():
            yield Framed(keys[0], None, _bodies(payloads, framed, length, is_in_front=is_in_front))
            return
        mine = rows[ours]
        order = np.argsort(groups, kind="stable")
        ends = np.cumsum(np.bincount(groups, minlength=len(keys)))
        for key, part in zip(keys, np.split(mine[order], ends[:-1]), strict=True):
            places = wrap(part, pa.int64())
            bodies = _bodies(payloads.take(places), framed.take(places), length, is_in_front=is_in_front)
            yield Framed(key, part, bodies)
    yield from _unframed(rows, magic, lengths)


def _ids(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> tuple[list[Any], npt.NDArray[Any]]:
    """The different ids, and the place among them of that of each row."""
    ids = np.zeros(len(starts), np.uint32)
    for place in range(1, ID_LENGTH):
        ids = (ids << np.uint32(8)) | data[starts + place]
    if (ids == ids[0]).all():  # without sorting
        return [int(ids[0].view(np.int32))], np.zeros(len(ids), np.int64)
    found, groups = np.unique(ids, return_inverse=True)
    return found.view(np.int32).tolist(), groups


def _guids(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> tuple[list[Any], npt.NDArray[Any]]:
    raw = data[starts[:, None] + np.arange(1, GUID_LENGTH)]
    found, groups = np.unique(raw, axis=0, return_inverse=True)
    return [str(uuid.UUID(bytes=one.tobytes())) for one in found], groups.reshape(-1)


def _unframed(
    rows: npt.NDArray[np.int64], magic: npt.NDArray[np.int16], lengths: npt.NDArray[np.int32]
) -> Iterator[Unframed]:
    short = ((magic == 0) & (lengths < ID_LENGTH)) | ((magic == 1) & (lengths < GUID_LENGTH)) | (magic == -1)
    for length in np.unique(lengths[short]).tolist():
        yield Unframed(
            rows[short & (lengths == length)], f"{length} bytes are too few for a registered schema's id"
        )
    glue = (magic == 3) & (lengths >= _GLUE_LENGTH)
    if glue.any():
        yield Unframed(
            rows[glue],
            "it was written with AWS Glue's schema registry (byte 3 in front), which is not supported",
        )
    for first in np.unique(magic[(magic > 1) & ~glue]).tolist():
        yield Unframed(
            rows[(magic == first) & ~glue],
            f"its first byte is {first}, not 0 or 1: it was not written with a schema registry",
        )


def _bodies(payloads: pa.Array, framed: pa.Array, length: int, *, is_in_front: bool) -> pa.Array:
    # The kernel needs an end.
    rest = pc.binary_slice(framed, length, _MAX_BINARY)
    return rest if is_in_front else pc.binary_join_element_wise(rest, payloads, _binary_scalar(b""))


def _binary_scalar(data: bytes) -> pa.Scalar:
    ends = pa.py_buffer(np.array([0, len(data)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(data)])[0]
