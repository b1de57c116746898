"""`HeaderLists`: record headers on their way to the encoder, without Arrow's slices, nulls and type
variants."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


class HeaderLists(NamedTuple):
    """The headers of ``n`` records: those of record i are rows offsets[i] to offsets[i + 1] of ``key`` and
    ``value``."""

    offsets: npt.NDArray[np.int64]
    key: pa.Array
    """Never null."""
    value: pa.Array

    @classmethod
    def read(cls, headers: pa.Array) -> HeaderLists:
        """Take apart a list of structs of two fields, key and value, in that order.

        Null lists are empty ones. ValueError for another type, for a null header and for a header with a null
        key.
        """
        kind = headers.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not _is_header(kind.value_type):
            raise ValueError(f"headers must be list<struct<key: string, value: binary>>, not {kind}")
        counts = pc.fill_null(pc.list_value_length(headers), 0)
        offsets = np.zeros(len(headers) + 1, np.int64)
        np.cumsum(np.asarray(counts, np.int64), out=offsets[1:])
        structs = headers.flatten()
        key, value = structs.field(0), structs.field(1)
        if structs.null_count or key.null_count:
            missing = np.asarray(pc.or_(structs.is_null(), key.is_null()))
            row = int(np.searchsorted(offsets, int(np.argmax(missing)), side="right")) - 1
            raise ValueError(f"row {row} has a header with a null key; Kafka's header keys are never null")
        return cls(offsets, key, value)


def is_binary(kind: pa.DataType) -> bool:
    """Whether ``kind`` is binary, string or one of their large_ kinds."""
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_string(kind)
        or types.is_large_binary(kind)
        or types.is_large_string(kind)
    )


def _is_header(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_struct(kind)
        and kind.num_fields == 2
        and is_binary(kind.field(0).type)
        and is_binary(kind.field(1).type)
    )
