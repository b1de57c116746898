"""Formats of keys and values in `tail` and `produce`: options, records as JSON, and JSON as records."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ..kafka.errors import ConfigError
from ..kafka.model import CORRUPT_COLUMN, ERROR_COLUMN, BadRecordMode
from .options import all_properties, is_of_format, wrong_usage
from .record_lines import ShownRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from ..formats import ColumnFormat, Decoder, Encoder
    from ..kafka.consumer.fetched_records import FetchedRecords
    from ..kafka.consumer.typed_records import TypedRecords


def add_format_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declare the options that name the formats of keys and values; returns their group."""
    group = parser.add_argument_group("formats")
    for payload in ("value", "key"):
        group.add_argument(
            f"--{payload}-format", metavar="NAME",
            help=f"of the {payload}s: json, string, avro, protobuf or another one (docs/formats.md); "
            f"settings are properties, as -X {payload}.timeZone=Europe/Berlin",
        )  # fmt: skip
        group.add_argument(
            f"--{payload}-schema", metavar="TEXT",
            help="'id bigint, name string', or in the format's own language, or file:PATH with either",
        )  # fmt: skip
    group.add_argument(
        "--registry", metavar="URL",
        help="a schema registry; its user, password or token are the properties registry.user, "
        "registry.password and registry.token (as env:NAME or file:/path)",
    )  # fmt: skip
    return group


def given_formats(arguments: argparse.Namespace) -> dict[str, ColumnFormat]:
    """The formats by payload: ``key`` and ``value``. Wrong usage, or `ConfigError`, for what can't be."""
    found = {}
    for payload in ("key", "value"):
        name, schema = getattr(arguments, f"{payload}_format"), getattr(arguments, f"{payload}_schema")
        if name is None:
            if schema is not None:
                wrong_usage(arguments, f"--{payload}-schema needs --{payload}-format")
        elif name != "raw":
            found[payload] = _format(arguments, payload, name, schema)
    if arguments.registry is not None and not found:
        wrong_usage(arguments, "--registry needs --value-format or --key-format")
    return found


def _format(arguments: argparse.Namespace, payload: str, name: str, schema: str | None) -> ColumnFormat:
    from ..formats import ColumnFormat, FormatError
    from ..formats.format import check_settings
    from ..formats.json.json_text import JsonText

    given = {key: text for key, text in all_properties(arguments).items() if is_of_format(key)}
    settings = {key: text for key, text in given.items() if key.startswith("registry.")}
    if arguments.registry is not None:
        settings["registry.url"] = arguments.registry
    # Those of the payload alone come before those of both, as in the options of Spark.
    prefix = f"{payload}."
    settings |= {key.removeprefix(prefix): text for key, text in given.items() if key.startswith(prefix)}
    in_properties = settings.pop("schema", None)
    schema = in_properties if schema is None else schema
    settings = _without_others(name, settings)
    try:
        if name == "json" and schema is None and "registry.url" not in settings:
            check_settings(name, settings)
            return JsonText()
        return ColumnFormat(name, None if schema is None else _text_of(schema), settings)
    except FormatError as error:
        raise ConfigError(f"--{payload}-format {name}: {error}") from None


OF_DATA_FRAMES: Final = frozenset(["format", "layout", "prefix", "inferrecords"])
"""Options of the data source that stand beside the settings of a format, and mean nothing here."""


def _without_others(name: str, settings: dict[str, str]) -> dict[str, str]:
    """Without those that only other formats or data frames have: one file may serve several topics."""
    from ..formats.format import SETTINGS

    if name not in SETTINGS:
        return settings
    known = {one: {setting.lower() for setting in SETTINGS[one]} for one in SETTINGS}
    others = OF_DATA_FRAMES.union(*known.values()) - known[name]
    return {key: text for key, text in settings.items() if key.lower() not in others}


def _text_of(schema: str) -> str:
    if not schema.startswith("file:"):
        return schema
    path = schema.removeprefix("file:")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the schema in {path} can't be read: {reason}") from None


# --- records as JSON ----------------------------------------------------------------------------------------


class TypedLines:
    """Decodes records to be shown."""

    def __init__(self, formats: Mapping[str, ColumnFormat], mode: str, *, warns: bool) -> None:
        """``warns``: errors of records go to standard error, as the output has no place for them."""
        from ..kafka.consumer.typed_records import RecordTyping

        self._formats = formats
        self._mode = mode
        self.warns = warns
        self._typing = RecordTyping(formats, mode)
        self.left_out = 0
        """How many records could not be decoded, with ``dropmalformed``."""

    def parts(self, fetched: FetchedRecords) -> Iterator[tuple[Iterator[ShownRecord], int]]:
        """The records of ``fetched``, and the offset after them; with ``failfast`` first the records before
        one that can't be decoded, and then its error."""
        rest: FetchedRecords | None = fetched
        while rest is not None:
            typed, rest = self._typing.decode(rest)
            yield self._records(typed, fetched), typed.next_offset

    def _records(self, typed: TypedRecords, fetched: FetchedRecords) -> Iterator[ShownRecord]:
        """The records of ``typed``, which were decoded from ``fetched``."""
        import pyarrow as pa

        batch, (topic, partition) = typed.batch, typed.topic_partition
        if self._mode == BadRecordMode.DROPMALFORMED:
            self.left_out += typed.bad
        columns = {name: self._shown(batch[name], name) for name in ("key", "value")}
        times = batch["timestamp"].cast(pa.int64()).fill_null(-1).to_pylist()
        offsets, headers = batch["offset"].to_pylist(), batch["headers"].to_pylist()
        errors, corrupt = (
            batch[name].to_pylist() if name in batch.schema.names else [None] * len(offsets)
            for name in (ERROR_COLUMN, CORRUPT_COLUMN)
        )
        for row, offset in enumerate(offsets):
            yield ShownRecord(
                topic,
                partition,
                offset,
                times[row],
                columns["key"][row].text,
                columns["value"][row].text,
                [(one["key"], one["value"]) for one in headers[row] or ()],
                {name: one for name in columns if (one := columns[name][row].json) is not None},
                errors[row],
                corrupt[row],
                {
                    name: data
                    for name in self._formats
                    if columns[name][row].is_null and (data := _payload(fetched, name, offset)) is not None
                },
            )

    def _shown(self, column: pa.Array, name: str) -> list[_Shown]:
        from ..formats.json.json_text import JsonText

        given = self._formats.get(name)
        if given is None:
            return [_Shown(data, None) for data in column.to_pylist()]
        return list(_shown_column(column, is_json=isinstance(given, JsonText)))


class _Shown(NamedTuple):
    """A key or a value."""

    text: bytes | None
    """By itself: a string without quotes, anything else as JSON."""
    json: bytes | None
    """As JSON; None where it was not decoded."""

    @property
    def is_null(self) -> bool:
        """True if its JSON is null."""
        return self.json is not None and self.json.strip() == b"null"


def _payload(fetched: FetchedRecords, name: str, offset: int) -> bytes | None:
    """The bytes of the key or value at ``offset``."""
    import numpy as np

    column, offsets = getattr(fetched.columns, name), fetched.columns.offset
    assert offsets is not None  # every read has it
    found: bytes | None = column[int(np.searchsorted(offsets, offset))].as_py()
    return found


def _shown_column(column: pa.Array, *, is_json: bool) -> Iterator[_Shown]:
    import pyarrow as pa

    from ..formats.json.write import json_texts

    plain = column.to_pylist() if pa.types.is_string(column.type) else None
    texts = plain if is_json and plain is not None else json_texts(column).to_pylist()
    for row, valid in enumerate(column.is_valid().to_pylist()):
        if valid:
            yield _Shown((texts if plain is None else plain)[row].encode(), texts[row].encode())
        else:
            yield _Shown(None, b"null")


# --- JSON as records ----------------------------------------------------------------------------------------

Headers = tuple[tuple[str, bytes | None], ...]


class TypedInput:
    """Encodes the keys or values that lines have."""

    def __init__(self, given: ColumnFormat, payload: str, topic: str) -> None:
        """The schemas that ``given`` names are looked up. Raises `ConfigError`."""
        import pyarrow as pa

        from ..formats import load_format
        from ..formats.json.json_text import JsonText
        from ..kafka.consumer.typed_records import config_errors
        from ..kafka.security.config_providers import resolve_registry

        self.is_text = given.name == "string"
        """True if a line has it as plain text, not as JSON."""
        self._decoder: Decoder | None = None
        self._encoder: Encoder | None = None
        self._kind: pa.DataType | None = None
        self._wrapped = False
        self._payload = payload
        self._given = given
        if self.is_text or isinstance(given, JsonText):
            return
        known = given.with_settings(resolve_registry)
        with config_errors(payload, given):
            kind = known.type if known.type is not None else known.decoder(payload, topic)[1]
            self._encoder = known.encoder(kind, payload, topic)
            self._wrapped = not pa.types.is_struct(kind)
            self._kind = kind
            in_json = _type_in_json(kind)
            read_as = pa.struct([("v", in_json)]) if self._wrapped else in_json
            zone = {name: text for name, text in given.settings if name == "timezone"}
            self._decoder = load_format("json").decoder(read_as, zone)

    def encode(self, texts: Sequence[bytes | None]) -> tuple[list[bytes | None], str | None]:
        """The bytes of records, out of JSON (or of plain text), up to the first that does not fit; and why it
        does not. None stays None."""
        found: list[bytes | None] = []
        present, reason = self._checked(texts)
        given = [text for text in present if text is not None]
        encoded, unfit = (given, None) if self._encoder is None else self._encoded(given)
        left = iter(encoded)
        for text in present:
            one = None if text is None else next(left, None)
            if text is not None and one is None:
                return found, unfit
            found.append(one)
        return found, reason

    def _checked(self, texts: Sequence[bytes | None]) -> tuple[list[bytes | None], str | None]:
        """The texts as the decoder takes them, up to the first that is none, and why it is none."""
        from ..formats.json.json_text import checked_json

        found: list[bytes | None] = []
        for text in texts:
            if text is not None and self._kind is not None and (unknown := _unknown(text, self._kind)):
                return found, f"its schema has no {unknown}"
            try:
                if text is None or (self._encoder is not None and not self._wrapped):
                    found.append(text)
                elif self._wrapped:  # checked alone: more members would go in with it
                    found.append(b'{"v":' + checked_json(text).encode() + b"}")
                else:
                    found.append(_checked_text(text) if self.is_text else checked_json(text).encode())
            except ValueError as error:
                return found, str(error)
        return found, None

    def _encoded(self, texts: Sequence[bytes]) -> tuple[list[bytes], str | None]:
        """JSON in the format, up to the first that does not fit. Raises `ConfigError` for what a format
        must not give."""
        import numpy as np

        from ..formats import EncodeError
        from ..formats.arrays import binaries, validity
        from ..formats.bad_records import decode_column, encode_column
        from ..kafka.consumer.typed_records import config_errors

        assert self._decoder is not None
        assert self._encoder is not None
        what = f"'{self._given.name}' of the {self._payload}"
        with config_errors(self._payload, self._given):
            decoded = decode_column(self._decoder, binaries(texts), self._decoder.type, what)
            rows = decoded.array.field(0) if self._wrapped else decoded.array
            end, reason = len(rows), None
            if rows.null_count:
                end, reason = int(np.argmin(validity(rows))), "it is empty"
            if decoded.bad.rows and decoded.bad.rows[0] <= end:
                end, reason = decoded.bad.rows[0], decoded.bad.reasons[0].removeprefix("`v` ")
            if rows.type != self._kind:
                rows, unfit = _cast(rows[:end], self._kind)
                end, reason = (end, reason) if unfit is None else (len(rows), unfit)
            while True:
                try:
                    return encode_column(self._encoder, rows[:end], what).to_pylist(), reason
                except EncodeError as error:  # perhaps not of the first that does not fit
                    end, reason = error.row, error.reason

    def headers(self, headers: Headers) -> Headers:
        """Those of a record with such a payload, as `with_header_ids` has them."""
        from ..formats import HeaderEncoder
        from ..formats.header_ids import NAMES

        if not isinstance(self._encoder, HeaderEncoder):
            return headers
        name, id = NAMES[self._payload], self._encoder.header
        return (*(one for one in headers if one[0] != name), *([] if id is None else [(name, id)]))


def _type_in_json(kind: pa.DataType) -> pa.DataType:
    """``kind`` with the types that JSON has instead, as `tail` shows them: keys of maps are text, and a
    duration is its number of microseconds.
    """
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_type_in_json(one.type)) for one in kind])
    if pa.types.is_map(kind):
        item = kind.item_field.with_type(_type_in_json(kind.item_type))
        return pa.map_(kind.key_field.with_type(pa.string()), item)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_json(kind.value_type)))
    return pa.int64() if kind == pa.duration("us") else kind


def _cast(rows: pa.Array, kind: pa.DataType) -> tuple[pa.Array, str | None]:
    """``rows`` of `_type_in_json` as ``kind``, up to the first that does not fit, and why it does not."""
    import pyarrow as pa

    # Copied: with a part of an array, a cast also converts the keys of the rows beside it.
    alone = rows.take(pa.array(range(len(rows)), pa.int64()))
    try:
        found = alone.cast(kind)
        # 01 and 0x1 are 1, too: a key could be there twice, and readers keep one.
        reason = None if found.cast(rows.type).equals(alone) else "it is spelt otherwise"
    except pa.ArrowInvalid as error:
        reason = str(error)
    if reason is None:
        return found, None
    if len(rows) == 1:
        return pa.array([], kind), f"a key of a map does not fit: {reason}"
    half = len(rows) // 2
    first, reason = _cast(rows[:half], kind)
    if reason is not None:
        return first, reason
    rest, reason = _cast(rows[half:], kind)
    return pa.concat_arrays([first, rest]), reason


def _unknown(text: bytes, kind: pa.DataType) -> str | None:
    """A member in JSON that is no field of ``kind``: to ignore it might write a null in its place."""
    import json

    try:
        given = json.loads(text)
    except (ValueError, RecursionError):  # the decoder says why
        return None
    return next(_unknown_in(given, kind, ""), None)


def _unknown_in(given: object, kind: pa.DataType, place: str) -> Iterator[str]:
    import pyarrow as pa

    if pa.types.is_struct(kind) and isinstance(given, dict):
        for name, one in given.items():
            inner = f"{place}.{name}" if place else name
            index = kind.get_field_index(name)
            if index < 0:
                yield f"`{inner}`"
            else:
                yield from _unknown_in(one, kind.field(index).type, inner)
    elif pa.types.is_map(kind) and isinstance(given, dict):
        for name, one in given.items():
            yield from _unknown_in(one, kind.item_type, f"{place}.{name}")
    elif isinstance(given, list) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        for one in given:
            yield from _unknown_in(one, kind.value_type, f"{place}[]")


def _checked_text(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    return text
