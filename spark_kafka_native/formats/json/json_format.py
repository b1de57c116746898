"""`JsonFormat`: payloads that are JSON objects, read by `JsonDecoder` and written by `JsonEncoder`.

A good batch costs no Python object per record: the compiled reader decides what it is sure of, `pyarrow.json`
reads the rest, and `JsonRows` what `pyarrow.json` refuses.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ..arrays import boolean, check_values, join_lines, offsets_and_data, spread, validity, wrap
from ..errors import FormatError
from ..format import BadRows, Decoded, Decoder, Encoder, Resolved
from ..isolate import NotTogetherError, decode_isolated
from ..plain_types import as_payloads, check_distinct, place_of_null, text_for_null
from ..registry import (
    REGISTERED,
    FramedDecoder,
    RegisteredSchema,
    RegistryEncoder,
    SchemaRegistry,
    frame_to_write,
    is_true,
    schema_to_read,
    schema_to_write,
)
from ..text_values import parse_zone
from .json_schema import json_schema_of, type_of_json_schema
from .read_kernel import Reader, choose_reader
from .read_program import ReadProgram, compile_read
from .rows import JsonRows
from .write import JsonEncoder

MAX_TOGETHER: Final = 2**30
"""Bytes that are read at once: a block of `pyarrow.json` is limited to 2 GiB."""


class JsonFormat:
    """One JSON object in each payload; its members are the fields of a struct.

    Settings: ``timezone``, the zone of timestamps that name none, default ``UTC``; ``schema``, a JSON Schema;
    those of `registry`. Records name their fields: a schema only says which there are, so ids of schemas are
    not looked up.
    """

    def decoder(self, type: pa.DataType, settings: Mapping[str, str]) -> Decoder:
        """A decoder into the struct ``type``. Raises `FormatError`."""
        _check_struct(type)
        _check_readable(type, "")
        plain = JsonDecoder(type=type, zone=parse_zone(settings.get("timezone", "UTC")))
        return plain if "registry.url" not in settings else FramedDecoder(type, plain)

    def encoder(self, type: pa.DataType, settings: Mapping[str, str]) -> Encoder:
        """An encoder of the struct ``type``. Raises `FormatError`."""
        _check_struct(type)
        kind = text_for_null(type)
        _check_readable(kind, "")
        plain = JsonEncoder(has_nulls=kind != type)
        if (written := settings.get(REGISTERED)) is None:
            return plain
        frame = frame_to_write(RegisteredSchema.from_json(written), settings)
        return RegistryEncoder.of(plain, frame, settings)

    def resolve_read(self, settings: Mapping[str, str]) -> Resolved:
        """As `SchemaFormat.resolve_read`."""
        registry = SchemaRegistry.from_settings(settings)
        if settings.get("typed") == "true":
            return Resolved(None, settings)
        if (text := settings.get("schema")) is not None:
            return Resolved(type_of_json_schema(text), settings)
        if registry is None:
            return Resolved(None, settings)
        found = schema_to_read(registry, settings, "JSON")
        return Resolved(_type_of(found), settings)

    def resolve_write(self, type: pa.DataType, settings: Mapping[str, str]) -> Resolved:
        """As `SchemaFormat.resolve_write`. Values are not checked against the schema."""
        registry = SchemaRegistry.from_settings(settings)
        if registry is None:
            return Resolved(type, settings)
        _check_struct(type)
        text, unknown = settings.get("schema"), None
        if text is None and is_true(settings, "registry.register"):
            unknown = place_of_null(type)
            text = json_schema_of(
                type, f"{settings.get('topic', 'record')}-{settings.get('payload', 'value')}"
            )
        found = schema_to_write(registry, settings, "JSON", text, unknown=unknown)
        _check_fields(type, found)
        return Resolved(type, {**settings, REGISTERED: found.to_json()})

    def infer(self, payloads: pa.Array, settings: Mapping[str, str]) -> pa.DataType:
        """As `InferringFormat.infer`; see `infer_json`."""
        from ..infer import infer_json

        if "registry.url" in settings:
            raise FormatError("the registry has the schema, and schema=infer is not needed")
        return infer_json(payloads)


def _type_of(schema: RegisteredSchema) -> pa.DataType:
    try:
        return type_of_json_schema(
            schema.text, {one.name: one.schema.text for one in schema.all_references()}
        )
    except FormatError as error:
        raise FormatError(f"{schema.shown}: {error}") from error


def _check_fields(kind: pa.DataType, schema: RegisteredSchema) -> None:
    """Raise `FormatError` for rows without a field that the schema requires, or with one that it excludes."""
    try:
        content = json.loads(schema.text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{schema.shown} is no JSON Schema: {error}") from error
    required = content.get("required") if isinstance(content, dict) else None
    names = [one.name for one in kind]
    missing = [name for name in required if name not in names] if isinstance(required, list) else []
    if missing:
        raise FormatError(f"{schema.shown} requires the fields {missing}, which the rows do not have")
    if isinstance(content, dict) and content.get("additionalProperties") is False:
        known = content.get("properties")
        excluded = (
            sorted(set(names) - known.keys())
            if isinstance(known, dict) and "patternProperties" not in content
            else []
        )
        if excluded:
            raise FormatError(f"{schema.shown} has no fields {excluded}, and allows no others")


def _check_struct(kind: pa.DataType) -> None:
    if not pa.types.is_struct(kind):
        raise FormatError(f"JSON needs a struct, not {kind}")


_SCALARS: Final = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "float", "double", "string", "binary", "date32[day]"]
)


def _check_readable(kind: pa.DataType, path: str) -> None:
    """Raise `FormatError` for what JSON has no rule for."""
    types = pa.types
    if types.is_struct(kind):
        _check_names([f.name for f in kind], path)
        for f in kind:
            _check_readable(f.type, f"{path}.{f.name}" if path else f.name)
    elif types.is_map(kind) and types.is_string(kind.key_type):
        _check_readable(kind.item_type, f"{path}{{}}")
    elif types.is_list(kind):
        _check_readable(kind.value_type, f"{path}[]")
    elif str(kind) not in _SCALARS and not types.is_decimal128(kind) and not _is_microseconds(kind):
        raise FormatError(f"JSON can't hold the type {kind} of `{path}`")


def _check_names(names: list[str], path: str) -> None:
    where = f"`{path}`" if path else ""
    if not names:
        raise FormatError(f"JSON needs a struct with at least one field{where and f' in {where}'}")
    check_distinct(names, where)


def _is_microseconds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.unit == "us")


@dataclass(frozen=True, kw_only=True)
class JsonDecoder:
    """Decodes JSON objects into one struct type."""

    type: pa.DataType
    zone: dt.tzinfo
    reader: Reader | None = field(default_factory=choose_reader)
    """The compiled one; None to do without."""

    def decode(self, payloads: pa.Array) -> Decoded:
        """As `Decoder.decode`. An empty payload, or one of white space, is null, as in ``from_json``."""
        payloads = as_payloads(payloads)
        if self.reader is None or self._program is None:
            return self._decode_with_arrow(payloads)
        array, unsure = self.reader(self._program, payloads)
        if not len(unsure):
            return Decoded(array)
        others = self._decode_with_arrow(payloads.take(wrap(unsure, pa.int64())))
        places = np.arange(len(array))
        places[unsure] = np.arange(len(array), len(array) + len(unsure))
        together = pa.concat_arrays([array, others.array]).take(wrap(places, pa.int64()))
        rows = tuple(unsure[list(others.bad.rows)].tolist())
        return Decoded(together, BadRows(rows, others.bad.reasons))

    @cached_property
    def _program(self) -> ReadProgram | None:
        """What the compiled reader runs; None if it can't read the type."""
        return compile_read(self.type, naive_is_utc=self.zone is dt.UTC)

    def _decode_with_arrow(self, payloads: pa.Array) -> Decoded:
        if self._together is None:
            return self._rows.read(payloads)
        return decode_isolated(payloads, self.read_together, self._rows.read)

    @cached_property
    def _rows(self) -> JsonRows:
        return JsonRows(self.type, self.zone)

    @cached_property
    def _together(self) -> pj.ParseOptions | None:
        """How `pyarrow.json` reads the type; None if it can't."""
        kind = _parsed_type(self.type, naive_is_utc=self.zone is dt.UTC)
        if kind is None:
            return None
        return pj.ParseOptions(explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="ignore")

    def read_together(self, payloads: pa.Array) -> pa.Array:
        """All ``payloads`` at once, nulls and empty ones included. Raises `NotTogetherError`."""
        if payloads.nbytes > MAX_TOGETHER:
            raise NotTogetherError
        try:
            # `pyarrow.json` does not check that text is UTF-8.
            texts = payloads.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise NotTogetherError from error
        if not texts.null_count and _first_that_is_no_object(texts) is None:
            return self._parse(texts)
        texts = pc.ascii_trim(texts, " \t\r\n")
        present = (np.diff(offsets_and_data(texts)[0]) > 0) & validity(texts)
        texts = texts.filter(boolean(present))
        try:
            if (bad := _first_that_is_no_object(texts)) is not None:
                raise NotTogetherError(bad)
            return spread(self._parse(texts), present)
        except NotTogetherError as error:
            row = None if error.row is None else int(np.flatnonzero(present)[error.row])
            raise NotTogetherError(row) from error

    def _parse(self, texts: pa.Array) -> pa.Array:
        """``texts``, each of which begins with a brace and ends with one, as structs."""
        if not len(texts):
            return pa.nulls(0, self.type)
        joined = join_lines(texts)
        try:
            table = pj.read_json(
                pa.BufferReader(joined),
                read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
                parse_options=self._together,
            )
            struct = table.to_struct_array().combine_chunks()
            struct = struct if struct.type == self.type else struct.cast(self.type)
            check_values(struct)
        except pa.ArrowInvalid as error:
            named = re.search(r" in row ([0-9]+)$", str(error))
            row = int(named[1]) if named else len(texts)
            raise NotTogetherError(row if row < len(texts) else None) from error
        # Each text is one object or more: `{` can't follow `}` inside an object, and a newline can't be in a
        # string. So with as many rows as texts, each row is that of its text.
        if len(struct) != len(texts):
            raise NotTogetherError
        return struct


def _parsed_type(kind: pa.DataType, *, naive_is_utc: bool) -> pa.DataType | None:
    """The type that `pyarrow.json` is asked for, which casts to ``kind``; None if there is none.

    It can't read dates and maps, takes text for binary values, and takes timestamps without a zone for UTC,
    even where the type has no zone. As a decimal `0e-999999999` ends the process: it takes a power of ten
    from far beyond the end of its table.
    """
    types = pa.types
    if types.is_struct(kind):
        fields = [(f.name, _parsed_type(f.type, naive_is_utc=naive_is_utc)) for f in kind]
        return None if any(one is None for _, one in fields) else pa.struct(fields)
    if types.is_list(kind):
        element = _parsed_type(kind.value_type, naive_is_utc=naive_is_utc)
        return None if element is None else pa.list_(element)
    if types.is_date32(kind) or (types.is_timestamp(kind) and kind.tz is None):
        return pa.string()
    if types.is_map(kind) or types.is_binary(kind) or types.is_decimal(kind):
        return None
    return kind if naive_is_utc or not types.is_timestamp(kind) else None


def _first_that_is_no_object(texts: pa.Array) -> int | None:
    """The first of ``texts`` that does not begin with ``{`` and end with ``}``; None if all do."""
    if not len(texts):
        return None
    offsets, data = offsets_and_data(texts)
    if not len(data):
        return 0
    # An empty text at an end of the data has no byte of its own there: its length says that it is bad.
    framed = (data[offsets[:-1].clip(max=len(data) - 1)] == ord("{")) & (data[offsets[1:] - 1] == ord("}"))
    framed &= np.diff(offsets) >= 2
    return None if framed.all() else int(np.argmin(framed))
