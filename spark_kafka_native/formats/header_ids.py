"""Ids of schemas in headers of records, which leave the payload as it is.

Confluent's serializers can write them so (`HeaderSchemaIdSerializer`): the value of the header is what would
stand before the payload.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrays import text_scalar, wrap

NAMES: Final = {"key": "__key_schema_id", "value": "__value_schema_id"}


def header_ids(headers: pa.Array | None, payload: str) -> pa.Array | None:
    """The ids of the schemas of a ``payload`` (``key`` or ``value``), binary, as long as ``headers``; null
    where a record has none. None if no record has one.

    ``headers``: lists of structs of ``key`` (string or binary) and ``value`` (binary).
    """
    if headers is None or headers.null_count == len(headers):
        return None
    pairs = headers.flatten()
    names = pairs.field(0)
    is_id = pc.equal(
        names if pa.types.is_string(names.type) else names.view(pa.string()), text_scalar(NAMES[payload])
    )
    if is_id.true_count == 0:
        return None
    rows = pc.list_parent_indices(headers).filter(is_id).to_numpy()
    rows, first = np.unique(rows, return_index=True)  # of several headers the first one counts
    places = np.full(len(headers), -1, np.int64)
    places[rows] = first
    return pairs.field(1).filter(is_id).take(wrap(places, pa.int64(), places >= 0))
