"""What a format is: `Decoder`, `Encoder` and `Format`, the table of ours, and the look-up by name."""

from __future__ import annotations

import difflib
import importlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Final, Protocol, cast, runtime_checkable

import pyarrow as pa

from .errors import FormatError

ENTRY_POINT: Final = "spark_kafka_native.formats"
"""The entry point group under which a package offers a `Format`, by its name."""


@dataclass(frozen=True, slots=True)
class BadRows:
    """The rows that can't be decoded, in ascending order, and why."""

    rows: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    """As long as ``rows``. Short: a reason quotes no more than a few characters of the data."""
    passing: tuple[int, ...] = ()
    """Those of ``rows`` that may be read another time, as the registry does not know their schema yet."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Payloads as an array."""

    array: pa.Array
    """As long as the payloads, of the decoder's type. Null for a null payload. A bad row has what could be
    read of it, and nulls for the rest."""
    bad: BadRows = field(default=BadRows())


class Decoder(Protocol):
    """Turns payloads into one array. Stateless for its caller: any batch may be given in any order."""

    @property
    def type(self) -> pa.DataType:
        """The type of what `decode` returns."""

    def decode(self, payloads: pa.Array) -> Decoded:
        """``payloads`` (binary, nulls allowed) as an array of the same length, row for row.

        Never raises because of a payload: `Decoded.bad` lists those that can't be read.
        """


@runtime_checkable
class HeaderDecoder(Decoder, Protocol):
    """A decoder of payloads, the schema of which may be named in a header of the record instead."""

    takes_headers: bool
    """Always true."""

    def decode(self, payloads: pa.Array, headers: pa.Array | None = None) -> Decoded:
        """As `Decoder.decode`. ``headers``: the header's value for each payload, binary, null for those that
        have no such header."""


class Encoder(Protocol):
    """Turns an array into payloads."""

    def encode(self, rows: pa.Array) -> pa.Array:
        """A binary array as long as ``rows``; null for a null row. Raises `EncodeError`."""


@runtime_checkable
class HeaderEncoder(Encoder, Protocol):
    """An encoder of payloads that name their schema, in front or in a header of the record."""

    header: bytes | None
    """The value of the header; None if the schema stands in front."""


@runtime_checkable
class Format(Protocol):
    """Makes decoders and encoders. Implement this for a format of your own.

    ``settings`` are the options of the key or the value without their prefix, in lower case:
    ``value.timeZone`` is ``timezone``. A format ignores those that it does not know.
    """

    def decoder(self, type: pa.DataType, settings: Mapping[str, str]) -> Decoder:
        """A decoder into ``type``. Raises `FormatError` for a type or a setting that is not supported."""

    def encoder(self, type: pa.DataType, settings: Mapping[str, str]) -> Encoder:
        """An encoder of rows of ``type``. Raises as `decoder`."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the settings of a read or a write mean, looked up once for the whole query."""

    type: pa.DataType | None
    """Of the payloads, as the schema that the settings name says it; None if they name none."""
    settings: Mapping[str, str]
    """The settings for the decoders or encoders of all workers, the schema that was found included."""


@runtime_checkable
class SchemaFormat(Format, Protocol):
    """A format with schemas of its own: given as text or a file, or kept by a registry.

    Its settings have more names: ``payload`` (``key`` or ``value``); where all records are of one topic,
    ``topic``; and ``typed=true`` in a read, the type of which is known already. A schema in the format's own
    language is the setting ``schema``.
    """

    def resolve_read(self, settings: Mapping[str, str]) -> Resolved:
        """The type to read where the user gives none, and the schema that workers read under.

        Runs in the driver, once per query: a schema that changes later changes nothing. Raises `FormatError`.
        """

    def resolve_write(self, type: pa.DataType, settings: Mapping[str, str]) -> Resolved:
        """The schema under which workers write rows of ``type``. Runs in the driver. Raises `FormatError`."""


@runtime_checkable
class InferringFormat(Format, Protocol):
    """A format that finds a type for payloads of which the user gives none."""

    def infer(self, payloads: pa.Array, settings: Mapping[str, str]) -> pa.DataType:
        """The type of ``payloads`` (binary, none of them null), a sample. Raises `FormatError` if none of
        them has a type."""


def is_own_schema(text: str, found: Format) -> bool:
    """True if ``text`` is a schema in the language of the format ``found``, instead of Spark's."""
    if not isinstance(found, SchemaFormat) or not text.lstrip().startswith(("{", "[", '"')):
        return False
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return True  # The format says better than Spark why it is none.
    return not (isinstance(content, Mapping) and content.get("type") == "struct" and "fields" in content)


_OURS: Final = {
    "arrow-ipc": "arrow_ipc:ArrowIpcFormat",
    "avro": "avro.avro_format:AvroFormat",
    "csv": "csv.csv_format:CsvFormat",
    "json": "json.json_format:JsonFormat",
    "protobuf": "protobuf.protobuf_format:ProtobufFormat",
    "string": "string_format:StringFormat",
}
"""Module and class, loaded when the format is used."""

ABOUT_SCHEMAS: Final = (
    "subject",
    "subjectStrategy",
    "schemaVersion",
    "schemaId",
    "schemaReferences",
    "schemaIdIn",
)
"""Settings that only a registry gives a meaning: without one, payloads would name no schema."""
OF_REGISTRY: Final = (
    "registry.url",
    "registry.user",
    "registry.password",
    "registry.token",
    "registry.allowHttp",
    "registry.ssl.ca",
    "registry.ssl.certificate",
    "registry.ssl.key",
    "registry.ssl.keyPassword",
    "registry.register",
    *ABOUT_SCHEMAS,
)
SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "arrow-ipc": (),
    "avro": ("schema", "avroSchema", *OF_REGISTRY),
    "csv": ("sep", "delimiter", "quote", "escape", "nullValue", "timeZone"),
    "json": ("schema", "timeZone", *OF_REGISTRY),
    "protobuf": (
        "descriptorFile",
        "message",
        "messageClass",
        "enums.as.ints",
        "upcast.unsigned.ints",
        "unwrap.primitive.wrapper.types",
        "emit.default.values",
        "recursive.fields.max.depth",
        "convert.any.fields.to.json",
        "retain.empty.message.types",
        *OF_REGISTRY,
    ),
    "string": (),
}
"""What users may set of each of ours, written as the data source's options are, without ``value.``."""


def check_settings(name: str, given: Iterable[str]) -> None:
    """Raise `FormatError` for the first of the settings ``given``, names in any case, that the format
    ``name`` does not know. A format of another package may have any."""
    if name not in SETTINGS:
        return
    known = {one.lower(): one for one in SETTINGS[name]}
    for one in given:
        if one.lower() not in known:
            bare = re.sub(r"^(key|value)\.", "", one.lower())  # the prefix of an option, left on
            nearest = difflib.get_close_matches(bare, known, n=1)
            hint = f"; did you mean '{known[nearest[0]]}'?" if nearest else ""
            raise FormatError(f"The format '{name}' has no setting '{one}'{hint}")


def format_names() -> tuple[str, ...]:
    """The names that `load_format` takes, sorted."""
    return tuple(sorted({*_OURS, *(entry.name for entry in entry_points(group=ENTRY_POINT))}))


def load_format(name: str) -> Format:
    """The format called ``name``. Raises `FormatError` for a name that does not exist, and for an entry point
    that can't be loaded or is no `Format`."""
    if name in _OURS:
        module, _, attribute = _OURS[name].partition(":")
        return cast(Format, getattr(importlib.import_module(f".{module}", __package__), attribute)())
    for entry in entry_points(group=ENTRY_POINT, name=name):
        try:
            found = entry.load()
            made = found() if isinstance(found, type) else found
        except Exception as error:
            raise FormatError(f"Format '{name}' ({entry.value}) can't be loaded: {error}") from error
        if not isinstance(made, Format):
            raise FormatError(f"Format '{name}' ({entry.value}) has no methods `decoder` and `encoder`")
        return made
    nearest = difflib.get_close_matches(name, format_names(), n=1)
    hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
    raise FormatError(f"There is no format '{name}'{hint} (formats: {', '.join(format_names())})")
