"""One record as its caller gives it -> bytes, checked. Pure."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ...records.arrow_arrays import build_binary, build_headers
from ...records.columns import RecordColumns
from ..errors import RecordError
from .single_records import RecordHeaders

_TOPIC_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_MAX_TOPIC_CHARACTERS = 249
_LAST_TIMESTAMP_MS = 2**63 - 1


def check_topic(topic: str) -> None:
    """Raise `RecordError` for a name that Kafka does not allow: the broker's own answer would come later."""
    right = 0 < len(topic) <= _MAX_TOPIC_CHARACTERS and _TOPIC_CHARACTERS.issuperset(topic)
    if not right or topic in (".", ".."):
        raise RecordError(
            f"{topic[:300]!r} is no topic name: it takes 1 to {_MAX_TOPIC_CHARACTERS} of "
            "a-z, A-Z, 0-9, '.', '_' and '-'"
        )


def as_bytes(content: Any, what: str) -> bytes:
    """``content`` as bytes, strings as UTF-8. Raises TypeError that names ``what``."""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"a record's {what} is bytes, str or None, not {type(content).__name__}: encode it first")


def checked_headers(headers: Any) -> list[tuple[str, bytes | None]]:
    """Pairs, or a mapping, as pairs of str and bytes. Raises TypeError."""
    checked: list[tuple[str, bytes | None]] = []
    for name, content in headers.items() if isinstance(headers, dict) else headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's key is str, not {type(name).__name__}")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise RecordError(f"the header key {name!r} has no UTF-8: {error}") from None
        checked.append((name, None if content is None else as_bytes(content, f"header {name!r}")))
    return checked


def check_partition(partition: Any) -> int:
    """``partition`` as an int. Raises TypeError."""
    try:
        return operator.index(partition)
    except TypeError:
        kind = type(partition).__name__
        raise TypeError(f"a record's partition is a whole number, not {kind}") from None


def check_timestamp(timestamp_ms: Any) -> int:
    """``timestamp_ms`` as an int. Raises TypeError, or `RecordError` for a timestamp that no record can
    carry."""
    try:
        number = operator.index(timestamp_ms)
    except TypeError:
        kind = type(timestamp_ms).__name__
        raise TypeError(f"a record's timestamp is a whole number of milliseconds, not {kind}") from None
    if not -1 <= number <= _LAST_TIMESTAMP_MS:
        raise RecordError(f"the timestamp {number} ms is not within 1970 and the end of int64")
    return number


def one_row(
    key: bytes | None, value: bytes | None, headers: RecordHeaders, timestamp_ms: int | None
) -> RecordColumns:
    """A single record as columns."""
    return RecordColumns(
        length=1,
        timestamp_ms=None if timestamp_ms is None else np.array([timestamp_ms], np.int64),
        key=build_binary([key]),
        value=build_binary([value]),
        headers=build_headers([headers]) if headers else None,
    )
