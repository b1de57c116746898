"""Records as a caller has them in a list -> columns, checked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...model import NO_TIMESTAMP_MS, Record
from ...records.arrow_arrays import build_binary, build_headers
from ...records.columns import RecordColumns
from ..errors import RecordError
from .record_input import as_bytes, check_timestamp, checked_headers

Content = bytes | str | None
Sendable = Record | Mapping[str, Any] | Content
"""What `Producer.send_many` takes: a `Record`, a mapping with the names that `send` has, or a value alone."""
_NAMES = frozenset({"value", "key", "headers", "timestamp_ms"})


def columns_of(records: Iterable[Sendable], now_ms: int) -> RecordColumns:
    """``records`` in their order; one without a timestamp gets ``now_ms`` where others have one.

    A Record's topic, partition and offset say where it came from, not where it goes. Raises `RecordError`
    with the row of what is no record.
    """
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[Any] = []
    timestamps: list[int] = []
    for row, record in enumerate(records):  # about 0.4 us each; `send` takes four times as long
        try:
            key, value, own_headers, timestamp_ms = _fields(record)
            keys.append(_content(key, "key"))
            values.append(_content(value, "value"))
            headers.append(checked_headers(own_headers) if own_headers else None)
            timestamps.append(check_timestamp(timestamp_ms))
        except TypeError as error:
            raise RecordError(str(error), None, row) from None
        except RecordError as error:
            raise error.at(row) from None
    times = np.array(timestamps, np.int64)
    missing = times == NO_TIMESTAMP_MS
    return RecordColumns(
        length=len(values),
        timestamp_ms=None if missing.all() else np.where(missing, now_ms, times),
        key=None if keys.count(None) == len(keys) else build_binary(keys),
        value=None if values.count(None) == len(values) else build_binary(values),
        headers=build_headers(headers) if any(headers) else None,
    )


def _fields(record: Any) -> tuple[Any, Any, Any, int]:
    if record is None or isinstance(record, bytes | str):
        return None, record, None, NO_TIMESTAMP_MS
    if isinstance(record, Record):
        return record.key, record.value, record.headers, record.timestamp_ms
    if isinstance(record, Mapping):
        if not _NAMES.issuperset(record):
            unknown = ", ".join(repr(name) for name in record if name not in _NAMES)
            raise TypeError(f"a record has value, key, headers and timestamp_ms, not {unknown}")
        timestamp_ms = record.get("timestamp_ms")
        stamped = NO_TIMESTAMP_MS if timestamp_ms is None else timestamp_ms
        return record.get("key"), record.get("value"), record.get("headers"), stamped
    if isinstance(record, tuple):
        # The other clients have the value first, and this one had the key: neither is to be guessed.
        raise TypeError(
            'a tuple does not say which part is the key: pass {"key": ..., "value": ...}, a Record, '
            "or a value alone"
        )
    return None, record, None, NO_TIMESTAMP_MS


def _content(content: Any, what: str) -> bytes | None:
    return content if content is None or content.__class__ is bytes else as_bytes(content, what)
