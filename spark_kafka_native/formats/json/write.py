"""`JsonEncoder`: rows as JSON objects, built by Arrow's text kernels, column by column."""

from __future__ import annotations

import base64
import json
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc


class JsonEncoder:
    """Writes what Spark's ``to_json`` writes: members that are null are left out, binary values are Base64.

    Timestamps keep their microseconds (``2020-01-01T00:00:00.000000Z``).
    """

    def encode(self, rows: pa.Array) -> pa.Array:
        """As `Encoder.encode`; ``rows`` are structs."""
        texts = _object(rows)
        return (pc.if_else(rows.is_valid(), texts, None) if rows.null_count else texts).cast(pa.binary())


def json_texts(array: pa.Array) -> pa.Array:
    """The JSON text (string) of each element of any type that `JsonEncoder` writes, ``null`` for a null."""
    types = pa.types
    kind = array.type
    if types.is_struct(kind):
        texts = _object(array)
    elif types.is_map(kind):
        texts = _map(array)
    elif types.is_list(kind):
        texts = _list(array)
    else:
        texts = scalar_texts(array)
    return pc.if_else(array.is_valid(), texts, "null") if array.null_count else texts


def _object(array: pa.Array) -> pa.Array:
    """Objects without the members that are null; anything where the struct is null."""
    members = []
    for kind, child in zip(array.type, array.flatten(), strict=True):
        member = pc.binary_join_element_wise(
            f",{json.dumps(kind.name, ensure_ascii=False)}:", json_texts(child), ""
        )
        members.append(pc.if_else(child.is_valid(), member, "") if child.null_count else member)
    joined = pc.binary_join_element_wise(*members, "")
    # The first comma is the first character, if there is any.
    inner = pc.replace_substring(joined, ",", "", max_replacements=1)
    return pc.binary_join_element_wise("{", inner, "}", "")


def _list(array: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise("[", _join(array, json_texts(array.flatten())), "]", "")


def _map(array: pa.Array) -> pa.Array:
    offsets = array.offsets
    first = offsets[0].as_py()
    count = offsets[-1].as_py() - first
    keys, items = array.keys.slice(first, count), array.items.slice(first, count)
    texts = pc.binary_join_element_wise(json_texts(keys), json_texts(items), ":")
    members = pa.ListArray.from_arrays(pc.subtract(offsets, first), texts)
    return pc.binary_join_element_wise("{", pc.binary_join(members, ","), "}", "")


def _join(array: pa.Array, texts: pa.Array) -> pa.Array:
    """``texts``, one for each element of each list of ``array``, joined by commas; empty for a null list."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    return pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")


def scalar_texts(array: pa.Array) -> pa.Array:
    """The JSON text of each element of a type without parts; null for a null."""
    types = pa.types
    kind = array.type
    if types.is_string(kind):
        return _quoted(_escaped(array))
    if types.is_boolean(kind):
        return pc.if_else(array, "true", "false")
    if types.is_floating(kind):
        return _float(array)
    if types.is_binary(kind):
        encoded = [None if one is None else base64.b64encode(one).decode() for one in array.to_pylist()]
        return _quoted(pa.array(encoded, pa.string()))
    if types.is_timestamp(kind):
        if kind.tz is not None:
            array = array.cast(pa.timestamp("us", "UTC"))
        return _quoted(pc.replace_substring(array.cast(pa.string()), " ", "T"))
    texts = array.cast(pa.string())
    return _quoted(texts) if types.is_date(kind) else texts


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


_CONTROLS: Final = r'["\\\x00-\x1f]'


def _escaped(texts: pa.Array) -> pa.Array:
    """As they stand between the quotes of a JSON string."""
    if not _any_match(texts, _CONTROLS):
        return texts
    texts = pc.replace_substring(texts, "\\", "\\\\")
    texts = pc.replace_substring(texts, '"', '\\"')
    for code in range(32):
        # Few texts have any of them: one look for all saves 32.
        if code == 0 and not _any_match(texts, r"[\x00-\x1f]"):
            break
        texts = pc.replace_substring(texts, chr(code), json.dumps(chr(code))[1:-1])
    return texts


def _any_match(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _float(array: pa.Array) -> pa.Array:
    """Finite numbers with a point or an exponent, as Java writes them; the others as quoted names."""
    texts = pc.replace_substring_regex(array.cast(pa.string()), r"^(-?[0-9]+)$", r"\1.0")
    finite = pc.is_finite(array)
    if pc.all(finite).as_py() is not False:
        return texts
    names = pc.case_when(
        pc.make_struct(pc.is_nan(array), pc.greater(array, 0)), '"NaN"', '"Infinity"', '"-Infinity"'
    )
    return pc.if_else(finite, texts, names)
