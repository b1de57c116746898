"""Many small record sets become columns in one pass.

A pass over columns costs the same for one record as for thousands, and a task over many quiet partitions gets
a few records of each. The result is that of `decode_record_set` for each set. Where anything is out of the
ordinary there is none at all: decoded alone, each set says for itself what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CorruptRecordError
from ..model import HeaderKeys
from .assemble import assemble_columns
from .batch import CONTROL, LOG_APPEND_TIME, BatchHeaders, Walk, pass_checks, read_headers, walk_batches
from .bodies import load_bodies
from .columns import RecordColumns
from .decode import ALL_COLUMNS
from .kernel import chosen as kernel
from .scanned import Scan, ScannedRecords

I64 = npt.NDArray[np.int64]


class SmallSet(NamedTuple):
    """A record set and which of its records are wanted. No aborted transaction may hide any of them."""

    data: memoryview
    fetch_offset: int
    until_offset: int


class DecodedSmallSet(NamedTuple):
    """Those records of a set that the reader sees."""

    columns: RecordColumns
    """Views: the sets of one call share their memory."""
    from_offset: int
    """The set's ``fetch_offset``."""
    next_offset: int
    """As that of `DecodedRecordSet`."""


class _AloneError(Exception):
    """The sets have to be decoded alone."""


def decode_small_sets(
    sets: Sequence[SmallSet],
    *,
    columns: frozenset[str] | None,
    header_keys: HeaderKeys,
    check_crcs: bool,
    max_bytes: int,
) -> list[DecodedSmallSet] | None:
    """Decode each of ``sets`` as `decode_record_set` does.

    None if they have to be decoded alone: that would raise an error for one of them, a set has no complete
    batch, or together they decompress to more than ``max_bytes`` and one batch.
    """
    wanted = ALL_COLUMNS if columns is None else columns
    walks = [walk_batches(one.data, one.until_offset) for one in sets]
    try:
        joined = _join(sets, walks, check_crcs=check_crcs)
        whole, edges = _decode(joined, sets, wanted, header_keys, max_bytes)
    except (_AloneError, CorruptRecordError):
        return None
    last = np.searchsorted(joined.owner, np.arange(len(sets)), "right") - 1
    last_offsets = joined.headers.last_offset[last].tolist()
    return [
        DecodedSmallSet(whole.slice(low, high), one.fetch_offset, _next_offset(one, walk, last_offset))
        for one, walk, last_offset, (low, high) in zip(
            sets, walks, last_offsets, pairwise(edges), strict=True
        )
    ]


class _Joined(NamedTuple):
    """The sets one after the other."""

    data: memoryview
    headers: BatchHeaders
    owner: I64
    """Which set each batch is in."""


def _join(sets: Sequence[SmallSet], walks: Sequence[Walk], *, check_crcs: bool) -> _Joined:
    if not all(walk.starts and walk.fault is None for walk in walks):
        raise _AloneError
    data = memoryview(b"".join([one.data for one in sets]))
    bases = accumulate((len(one.data) for one in sets), initial=0)
    starts = [base + start for base, walk in zip(bases, walks, strict=False) for start in walk.starts]
    headers = read_headers(data, Walk(starts))
    counts = np.array([len(walk.starts) for walk in walks])
    if not pass_checks(data, headers, counts.cumsum() - counts, check_crcs=check_crcs):
        raise _AloneError
    return _Joined(data, headers, np.arange(len(sets)).repeat(counts))


def _decode(
    joined: _Joined,
    sets: Sequence[SmallSet],
    wanted: frozenset[str],
    header_keys: HeaderKeys,
    max_bytes: int,
) -> tuple[RecordColumns, list[int]]:
    """The records of all sets, and where among them those of each set begin and end."""
    data, headers, owner = joined
    fetch = np.array([one.fetch_offset for one in sets])
    until = np.array([one.until_offset for one in sets])
    shown = (headers.last_offset >= fetch[owner]) & (headers.count > 0) & ~headers.has(CONTROL)
    asked = shown.nonzero()[0]
    bodies = load_bodies(data, headers, asked, wanted, max_bytes, max_bytes)
    if len(bodies.chosen) < len(asked):
        raise _AloneError
    sources, batches = kernel.join_sources(bodies.sources, bodies.batches)
    records = ScannedRecords.allocate(int(batches["count"].sum()), wanted)
    if kernel.scan_records(sources, batches, records) is not None:
        raise _AloneError
    in_batch = np.arange(len(batches)).repeat(batches["count"])
    in_set = owner[asked][in_batch]
    keep = (records.offset >= fetch[in_set]) & (records.offset < until[in_set])
    if not keep.all():
        records, in_set = records.where(keep), in_set[keep]
        batches["count"] = np.bincount(in_batch[keep], minlength=len(batches))
    scan = Scan(sources, batches, records, 0, len(in_set), cut=False)
    types = headers.has(LOG_APPEND_TIME)[asked].astype(np.int8)
    whole = assemble_columns(scan, wanted, types, header_keys)
    return whole, np.searchsorted(in_set, np.arange(len(sets) + 1)).tolist()


def _next_offset(one: SmallSet, walk: Walk, last_offset: int) -> int:
    behind = one.until_offset if walk.reached_until else min(last_offset + 1, one.until_offset)
    return max(behind, one.fetch_offset)
