"""Codecs of messages, repeated fields and maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrays import bitmap, hide, numbers, validity, wrap
from .cells import Cells
from .scalars import TYPE_MESSAGE, ColumnCodec, EnumCodec, is_zero
from .well_known import fill, struct
from .wire import WireField, WireFile

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class MessageField:
    """One field of a message that the type asks for."""

    name: str
    number: int
    codec: ColumnCodec
    is_repeated: bool = False
    is_required: bool = False
    has_presence: bool = True
    """False if absent and zero are the same (proto3 without ``optional``)."""
    default: pa.Array | None = None
    """The raw value, alone in an array, where the field is absent; None for null."""
    oneof: int | None = None

    def declare(self, file: WireFile) -> WireField:
        """The field for `ptars`."""
        declared = self.codec.declare(file)
        return WireField(self.number, declared, self.is_repeated, self.oneof)

    def read(self, raw: pa.Array, present: npt.NDArray[np.bool_], cells: Cells) -> pa.Array:
        """The user's column; ``present`` says where the message is."""
        if self.is_repeated:
            return self.codec.read(raw, cells)
        if isinstance(self.codec, EnumCodec):
            raw = self.codec.without_unknown(raw)
        absent = ~validity(raw)
        if self.is_required:
            cells.refuse(absent & present, "is required and missing")
        if not self.has_presence and self.default is None:
            return self.codec.read(hide(raw, is_zero(raw)), cells)
        if self.default is None or not absent.any():
            return self.codec.read(raw, cells)
        return self.codec.read(fill(raw, absent, self.default), cells)

    def write(self, values: pa.Array, present: npt.NDArray[np.bool_], cells: Cells) -> pa.Array:
        """The raw column."""
        if self.is_required:
            cells.refuse(present & ~validity(values), "is required and missing")
        raw = self.codec.write(values, cells)
        return raw if self.is_repeated or self.has_presence else hide(raw, is_zero(raw))


@dataclass(frozen=True)
class StructCodec:
    """A message as a struct."""

    type: pa.DataType
    fields: tuple[MessageField, ...]
    """Those of ``type``, in its order."""
    unread: tuple[WireField, ...] = ()
    """Members of oneofs that the type does not ask for: one of them may have come last."""

    def declare(self, file: WireFile) -> tuple[int, str]:
        """As `ColumnCodec.declare`."""
        return TYPE_MESSAGE, file.add_message([*(one.declare(file) for one in self.fields), *self.unread])

    def read(self, raw: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.read`."""
        present = validity(raw)
        self._find_conflicts(raw, cells)
        columns = [
            one.read(raw.field(f"f{one.number}"), present, cells.field(one.name)) for one in self.fields
        ]
        return pa.Array.from_buffers(self.type, len(raw), [bitmap(present)], children=columns)

    def _find_conflicts(self, raw: pa.Array, cells: Cells) -> None:
        members: dict[int, list[int]] = {}
        taking = [(one.oneof, one.number) for one in self.fields]
        for oneof, number in [*taking, *((one.oneof, one.number) for one in self.unread)]:
            if oneof is not None:
                members.setdefault(oneof, []).append(number)
        for group in members.values():
            if len(group) > 1:
                counts = sum(validity(raw.field(f"f{number}")).astype(np.int32) for number in group)
                cells.conflict(np.asarray(counts) > 1)

    def write(self, values: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.write`."""
        present = validity(values)
        taken: dict[int, npt.NDArray[np.int32]] = {}
        columns, names = [], []
        for one, column in sorted(
            zip(self.fields, values.flatten(), strict=True), key=lambda pair: pair[0].number
        ):
            here = cells.field(one.name)
            columns.append(one.write(column, present, here))
            names.append(f"f{one.number}")
            if one.oneof is not None:
                count = taken.get(one.oneof, 0) + validity(column).astype(np.int32)
                here.refuse(count > 1, "is set, and so is another member of its oneof")
                taken[one.oneof] = count
        return struct(columns, names, present)


@dataclass(frozen=True)
class ListCodec:
    """A repeated field as a list."""

    type: pa.DataType
    element: ColumnCodec

    def declare(self, file: WireFile) -> tuple[int, str]:
        """As `ColumnCodec.declare`."""
        return self.element.declare(file)

    def read(self, raw: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.read`."""
        offsets, elements = _from_zero(raw)
        elements = self.element.read(elements, cells.elements(np.diff(offsets)))
        if isinstance(self.element, EnumCodec) and self.element.is_closed and elements.null_count:
            offsets, elements = keep(offsets, elements, validity(elements))
        return list_array(self.type, offsets, elements)

    def write(self, values: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.write`; a null list is an empty one."""
        offsets, elements = flattened(values)
        below = cells.elements(np.diff(offsets))
        below.refuse(~validity(elements), "is null, and a repeated field holds none")
        raw = self.element.write(elements, below)
        return list_array(pa.list_(pa.field("item", raw.type, nullable=False)), offsets, raw)


@dataclass(frozen=True)
class MapCodec:
    """A map; in payloads a list of entries."""

    type: pa.DataType
    key: ColumnCodec
    value: ColumnCodec

    def declare(self, file: WireFile) -> tuple[int, str]:
        """As `ColumnCodec.declare`."""
        fields = [WireField(1, self.key.declare(file)), WireField(2, self.value.declare(file))]
        return TYPE_MESSAGE, file.add_message(fields)

    def read(self, raw: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.read`. Of entries with the same key the last one counts."""
        offsets, entries = _from_zero(raw)
        below = cells.elements(np.diff(offsets))
        keys = self.key.read(_filled(entries.field(0)), below)
        values = self.value.read(_filled(entries.field(1)), below)
        if isinstance(self.value, EnumCodec) and self.value.is_closed:
            # First: an entry with an unknown number is none, and does not replace an earlier one.
            offsets, keys, values = _keep_entries(offsets, keys, values, validity(values))
        kept = validity(keys) & _last_of_each_key(offsets, keys)
        return map_array(self.type, *_keep_entries(offsets, keys, values, kept))

    def write(self, values: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.write`; a null map is an empty one."""
        entry = pa.struct([self.type.key_field, self.type.item_field])
        offsets, entries = flattened(_as_list(values, entry))
        below = cells.elements(np.diff(offsets))
        keys, items = entries.field(0), entries.field(1)
        below.refuse(~validity(items), "is null, and a map holds none")
        raw = struct(
            [self.key.write(keys, below), self.value.write(items, below)],
            ["f1", "f2"],
            np.ones(len(entries), np.bool_),
        )
        return list_array(pa.list_(pa.field("item", raw.type, nullable=False)), offsets, raw)


def _as_list(values: pa.Array, entry: pa.DataType) -> pa.Array:
    """A map's memory as a list of structs."""
    bits, offsets = values.buffers()[:2]
    children = pa.Array.from_buffers(entry, len(values.keys), [None], children=[values.keys, values.items])
    return pa.Array.from_buffers(
        pa.list_(entry), len(values), [bits, offsets], offset=values.offset, children=[children]
    )


def _filled(raw: pa.Array) -> pa.Array:
    """A part of an entry: the zero of its type, or an empty message, where it is absent."""
    absent = ~validity(raw)
    if not absent.any():
        return raw
    if not pa.types.is_struct(raw.type):
        return fill(raw, absent)
    return pa.Array.from_buffers(
        raw.type, len(raw), [None], children=[raw.field(i) for i in range(raw.type.num_fields)]
    )


def _last_of_each_key(offsets: I64, keys: pa.Array) -> npt.NDArray[np.bool_]:
    lengths = np.diff(offsets)
    if not len(keys) or lengths.max() < 2:
        return np.ones(len(keys), np.bool_)
    encoded = keys.dictionary_encode()
    distinct = len(encoded.dictionary)
    # A key that is null, as it did not fit, is equal to no other.
    codes = np.where(validity(keys), numbers(encoded.indices), distinct).astype(np.int64)
    codes += np.repeat(np.arange(len(lengths)), lengths) * (distinct + 1)
    last = len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]
    kept = np.zeros(len(codes), np.bool_)
    kept[last] = True
    return kept


def _keep_entries(
    offsets: I64, keys: pa.Array, values: pa.Array, kept: npt.NDArray[np.bool_]
) -> tuple[I64, pa.Array, pa.Array]:
    if kept.all():
        return offsets, keys, values
    remaining, kept_keys = keep(offsets, keys, kept)
    return remaining, kept_keys, keep(offsets, values, kept)[1]


def keep(offsets: I64, elements: pa.Array, kept: npt.NDArray[np.bool_]) -> tuple[I64, pa.Array]:
    """Offsets and elements of lists without the elements that are not ``kept``."""
    ends = np.concatenate([[0], np.cumsum(kept)])
    return ends[offsets], elements.take(wrap(np.flatnonzero(kept), pa.int64()))


def numbers_of_offsets(lists: pa.Array) -> I64:
    """The n + 1 offsets of lists."""
    data = lists.buffers()[1]
    if data is None:
        return np.zeros(len(lists) + 1, np.int64)
    return np.frombuffer(data, np.int32, len(lists) + 1, lists.offset * 4).astype(np.int64)


def _from_zero(lists: pa.Array) -> tuple[I64, pa.Array]:
    """Offsets that begin with 0, and the elements between them."""
    offsets = numbers_of_offsets(lists)
    return offsets - offsets[0], lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def flattened(lists: pa.Array) -> tuple[I64, pa.Array]:
    """As `_from_zero`, without the elements that lie under a null list."""
    if not lists.null_count:
        return _from_zero(lists)
    lengths = np.where(validity(lists), np.diff(numbers_of_offsets(lists)), 0)
    return np.concatenate([[0], np.cumsum(lengths)]), lists.flatten()


def list_array(kind: pa.DataType, offsets: I64, elements: pa.Array) -> pa.Array:
    """Lists without nulls."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[elements])


def map_array(kind: Any, offsets: I64, keys: pa.Array, items: pa.Array) -> pa.Array:
    """Maps without nulls."""
    entry = pa.struct([kind.key_field, kind.item_field])
    entries = pa.Array.from_buffers(entry, len(keys), [None], children=[keys, items])
    buffers = [None, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[entries])
