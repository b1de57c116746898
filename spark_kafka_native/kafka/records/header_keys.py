"""Header keys that are not UTF-8. Kafka's spec says they are text, and no broker looks."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from ..model import HeaderKeys

MAX_KEYS_BYTES = 2**31 - 1
"""What the int32 offsets of a string column can hold: a malformed byte becomes the three of U+FFFD."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""A UTF-16 surrogate in UTF-8's clothes, also a cut off one: one malformed sequence to Java, two or three to
Python."""


class HeaderKeyError(ValueError):
    """A key that can't be given in the form asked for; ``index`` counts keys."""

    def __init__(self, reason: str, index: int) -> None:
        super().__init__(reason, index)
        self.reason = reason
        self.index = index


def read_header_keys(keys: pa.Array, form: HeaderKeys) -> pa.Array:
    """Turn ``keys`` (binary, no nulls) into what ``form`` says: strings, or bytes as they are.

    `HeaderKeyError` for the first key that is not UTF-8 where ``form`` is strict, and where the keys exceed
    `MAX_KEYS_BYTES` with what replaces their malformed bytes.
    """
    if form is HeaderKeys.BYTES:
        return keys
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        if form is HeaderKeys.STRICT:
            raise _find_malformed(keys) from None
    return _replace_malformed(keys)


def replace_malformed(key: bytes) -> bytes:
    """Return ``key`` as UTF-8, U+FFFD for what is none, as many as Java's ``new String(bytes, UTF_8)``
    gives."""
    return _SURROGATE.sub(_REPLACEMENT, key).decode(errors="replace").encode()


def _replace_malformed(keys: pa.Array) -> pa.Array:
    # A Python object per distinct key, and only where one of them is malformed.
    encoded = keys.dictionary_encode()
    distinct = [replace_malformed(key) for key in encoded.dictionary.to_pylist()]
    lengths = np.array([len(key) for key in distinct], np.int64)
    if int(lengths[np.asarray(encoded.indices)].sum()) > MAX_KEYS_BYTES:
        raise HeaderKeyError("not UTF-8, and more than 2 GiB with U+FFFD for what is malformed", 0)
    edges = np.zeros(len(distinct) + 1, np.int32)
    np.cumsum(lengths, out=edges[1:])
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(b"".join(distinct))]
    return pa.Array.from_buffers(pa.string(), len(distinct), buffers).take(encoded.indices)


def _find_malformed(keys: pa.Array) -> HeaderKeyError:
    for index, key in enumerate(keys.to_pylist()):
        try:
            key.decode()
        except UnicodeDecodeError as error:
            return HeaderKeyError(f"not UTF-8: {key[:64]!r} ({error.reason})", index)
    raise AssertionError("Arrow refused keys that are UTF-8")
