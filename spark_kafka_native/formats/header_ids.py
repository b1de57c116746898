"""Ids of schemas in headers of records, which leave the payload as it is.

Confluent's serializers can write them so (`HeaderSchemaIdSerializer`): the value of the header is what would
stand before the payload.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .arrays import binaries, boolean, numbers, strings, text_scalar, validity, wrap
from .format import Encoder, HeaderEncoder

NAMES: Final = {"key": "__key_schema_id", "value": "__value_schema_id"}


def header_ids(headers: pa.Array | None, payload: str) -> pa.Array | None:
    """The ids of the schemas of a ``payload`` (``key`` or ``value``), binary, as long as ``headers``; null
    where a record has none. None if no record has one.

    ``headers``: lists of structs of ``key`` (string or binary) and ``value`` (binary).
    """
    if headers is None or headers.null_count == len(headers):
        return None
    pairs = headers.flatten()
    is_id = _is_id(pairs, payload)
    if is_id.true_count == 0:
        return None
    rows = _parents(headers)[is_id.to_numpy(zero_copy_only=False)]
    places = np.full(len(headers), -1, np.int64)
    # Of several headers the last one counts, as in Java: a copy of a record may keep those of its original.
    places[rows] = np.arange(len(rows))
    return pairs.field(1).filter(is_id).take(wrap(places, pa.int64(), places >= 0))


def with_header_ids(
    encoder: Encoder, payload: str, payloads: pa.Array, headers: pa.Array | None
) -> pa.Array | None:
    """The ``headers`` of records, for their ``payloads`` (binary), which ``encoder`` has given: with the
    schema of those that are not null, if the encoder wants it there. All other headers stay; None if there
    are none.

    ``headers``: as in `header_ids`, or with large strings and binary. A schema that they name already is that
    of another payload, as in a record that is copied: it would be taken for the new one's, and is left out.
    """
    if not isinstance(encoder, HeaderEncoder):
        return headers
    present = validity(payloads)
    if headers is None:
        if encoder.header is None:
            return None
        headers = pa.ListArray.from_arrays(wrap(np.zeros(len(payloads) + 1, np.int32), pa.int32()), _NO_PAIRS)
    pairs = headers.flatten()
    parents = _parents(headers)
    places = np.flatnonzero(~(_is_id(pairs, payload).to_numpy(zero_copy_only=False) & present[parents]))
    if encoder.header is None and len(places) == len(pairs):
        return headers
    rows, lists = parents[places], validity(headers)
    if encoder.header is not None:
        children = [strings([NAMES[payload]]), binaries([encoder.header])]
        fields = list(pairs.type)
        own = [child.cast(field.type) for child, field in zip(children, fields, strict=True)]
        pairs = pa.concat_arrays([pairs, pa.StructArray.from_arrays(own, fields=fields)])
        marked = np.flatnonzero(present)
        rows = np.concatenate([rows, marked])
        places = np.concatenate([places, np.full(len(marked), len(pairs) - 1)])
        places = places[np.argsort(rows, kind="stable")]  # last in its row
        lists = lists | present
    ends = np.zeros(len(payloads) + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=len(payloads)), out=ends[1:])
    return pa.ListArray.from_arrays(
        wrap(ends, pa.int32()), pairs.take(wrap(places, pa.int64())), mask=boolean(~lists)
    )


_FALSE: Final = boolean(np.zeros(1, np.bool_))[0]
_PAIR: Final = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
_NO_PAIRS: Final = pa.StructArray.from_arrays([strings([]), binaries([])], fields=_PAIR)


def _parents(headers: pa.Array) -> npt.NDArray[np.int64]:
    """The row of each header that `flatten` gives: not of those behind a null list, which
    `list_parent_indices` has, too."""
    counts = numbers(pc.list_value_length(headers)) * validity(headers)
    return np.repeat(np.arange(len(headers)), counts)


def _is_id(pairs: pa.Array, payload: str) -> pa.Array:
    """Which of the headers are ids of the schemas of a ``payload``."""
    names = pairs.field(0)
    if pa.types.is_binary(names.type):
        names = names.view(pa.string())
    found = pc.equal(names, text_scalar(NAMES[payload]).cast(names.type))
    return pc.fill_null(found, _FALSE)  # a name that is null is an error of later
