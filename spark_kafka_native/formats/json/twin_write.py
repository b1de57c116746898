"""`write_texts`: arrays as JSON with Arrow's text kernels, for where the C extension was not built."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import boolean, hide, numbers, strings, text_scalar, validity, wrap


def write_texts(array: pa.Array) -> pa.Array:
    """The JSON text (string) of each element, null for a null."""
    types = pa.types
    kind = array.type
    if types.is_struct(kind):
        texts = _object(array)
    elif types.is_map(kind):
        texts = _map(array)
    elif types.is_list(kind):
        texts = _list(array)
    else:
        return _scalar(array)
    return pc.if_else(array.is_valid(), texts, _NO_TEXT) if array.null_count else texts


_NO_TEXT: Final = pa.nulls(1, pa.string())[0]
_EMPTY, _NULL, _COMMA, _COLON, _QUOTE = map(text_scalar, ("", "null", ",", ":", '"'))
_BRACES: Final = (text_scalar("{"), text_scalar("}"))
_BRACKETS: Final = (text_scalar("["), text_scalar("]"))
_TRUE, _FALSE = text_scalar("true"), text_scalar("false")


def _part(array: pa.Array) -> pa.Array:
    texts = write_texts(array)
    return texts.fill_null(_NULL) if array.null_count else texts


def _object(array: pa.Array) -> pa.Array:
    """Objects without the members that are null; anything where the struct is null."""
    members = []
    for kind, child in zip(array.type, array.flatten(), strict=True):
        lead = text_scalar(f",{json.dumps(kind.name, ensure_ascii=False)}:")
        member = pc.binary_join_element_wise(lead, write_texts(child), _EMPTY)
        members.append(member.fill_null(_EMPTY) if child.null_count else member)
    joined = pc.binary_join_element_wise(*members, _EMPTY)
    # The first comma is the first character, if there is any.
    inner = pc.replace_substring(joined, ",", "", max_replacements=1)
    return pc.binary_join_element_wise(_BRACES[0], inner, _BRACES[1], _EMPTY)


def _list(array: pa.Array) -> pa.Array:
    """Empty for a null list, the elements of which are left out by `flatten`."""
    lengths = np.where(validity(array), np.diff(_offsets(array)), 0)
    offsets = wrap(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), pa.int32())
    elements = pa.ListArray.from_arrays(offsets, _part(array.flatten()))
    return pc.binary_join_element_wise(_BRACKETS[0], pc.binary_join(elements, _COMMA), _BRACKETS[1], _EMPTY)


def _map(array: pa.Array) -> pa.Array:
    edges = _offsets(array)
    first, count = int(edges[0]), int(edges[-1] - edges[0])
    keys, items = _part(array.keys.slice(first, count)), array.items.slice(first, count)
    if not pa.types.is_string(array.type.key_type):
        keys = _quoted(pc.utf8_trim(keys, '"'))
    texts = pc.binary_join_element_wise(keys, _part(items), _COLON)
    members = pa.ListArray.from_arrays(wrap(edges - edges[0], pa.int32()), texts)
    return pc.binary_join_element_wise(_BRACES[0], pc.binary_join(members, _COMMA), _BRACES[1], _EMPTY)


def _offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    offsets = array.buffers()[1]
    if offsets is None:
        return np.zeros(len(array) + 1, np.int32)
    return np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)


def _scalar(array: pa.Array) -> pa.Array:
    types = pa.types
    kind = array.type
    if types.is_string(kind):
        return _quoted(_escaped(array))
    if types.is_boolean(kind):
        return pc.if_else(array, _TRUE, _FALSE)
    if types.is_floating(kind):
        return _float(array)
    if types.is_binary(kind):
        encoded = strings([base64.b64encode(one or b"").decode() for one in array.to_pylist()])
        return _quoted(pc.if_else(array.is_valid(), encoded, _NO_TEXT) if array.null_count else encoded)
    if types.is_timestamp(kind):
        return _quoted(_time(array))
    return _quoted(_date(array)) if types.is_date(kind) else array.cast(pa.string())


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(_QUOTE, texts, _QUOTE, _EMPTY)


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
    if pc.all(pc.is_finite(array)).as_py() is not False:
        return texts
    for pattern, name in (("^-?nan$", "NaN"), ("^inf$", "Infinity"), ("^-inf$", "-Infinity")):
        texts = pc.replace_substring_regex(texts, pattern, f'"{name}"')
    return texts


_DAY_US: Final = 86_400_000_000
_FAR_DAYS: Final = 2_932_896
"""9999-12-31. Arrow's texts are wrong, or none, from the year 32,768 on."""


def _time(array: pa.Array) -> pa.Array:
    kind = array.type
    if kind.tz is not None:
        array = array.cast(pa.timestamp(kind.unit, "UTC"))
    if kind.unit != "us":
        return _near_time(array)
    return _with_far(array, pa.int64(), _DAY_US, _near_time, partial(_far_time, has_zone=kind.tz is not None))


def _near_time(array: pa.Array) -> pa.Array:
    return pc.replace_substring(array.cast(pa.string()), " ", "T")


def _date(array: pa.Array) -> pa.Array:
    if not pa.types.is_date32(array.type):
        return array.cast(pa.string())
    return _with_far(array, pa.int32(), 1, lambda near: near.cast(pa.string()), _far_day)


def _with_far(
    array: pa.Array,
    kind: pa.DataType,
    day: int,
    near_texts: Callable[[pa.Array], pa.Array],
    far_text: Callable[[int], str],
) -> pa.Array:
    """The texts of ``array``, the numbers of which are of ``kind``, ``day`` of them a day."""
    values = numbers(array.view(kind))
    far = ((values < -_FAR_DAYS * day) | (values > _FAR_DAYS * day)) & validity(array)
    if not far.any():
        return near_texts(array)
    texts = strings([far_text(one) for one in values[far].tolist()])
    return pc.replace_with_mask(near_texts(hide(array, far)), boolean(far), texts)


def _far_day(days: int) -> str:
    eras, day = divmod(days, 146_097)  # the days of 400 years
    near = dt.date(1970, 1, 1) + dt.timedelta(day)
    year = near.year + 400 * eras
    return f"{'-' if year < 0 else ''}{abs(year):04}{near:-%m-%d}"


def _far_time(micros: int, has_zone: bool) -> str:
    days, rest = divmod(micros, _DAY_US)
    near = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=rest)
    return f"{_far_day(days)}T{near:%H:%M:%S.%f}{'Z' if has_zone else ''}"
