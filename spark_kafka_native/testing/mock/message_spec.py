"""Kafka's messages, read and written by its own specification, which comes out of a ``kafka-clients`` jar.

`MessageSpecs` opens the jar as a zip: no Java runs, and nothing of the specification is kept in this package.
A `MessageSpec` reads and writes one message by following it. A value is a dict from field names (snake-cased:
``error_code``) to ints, strs, bytes, bools, `uuid.UUID`, lists and dicts. Fields that are left out have
Kafka's default.

Slow and plain on purpose, and nothing of ``kafka.protocol`` is used: what both read alike is Kafka's format,
not one mistake made twice. *Compact* lengths (KIP-482) are unsigned varints of length + 1.
"""

from __future__ import annotations

import functools
import json
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from ..errors import JarsUnavailableError
from ..java import jars

Fields = dict[str, Any]
_FOLDER = "common/message/"
_NUMBERS = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
}


class MessageSpecs:
    """All messages of one version of Kafka. Get it from `message_specs`."""

    def __init__(self, jar: Path) -> None:
        """Read them from ``jar``. Raises `JarsUnavailableError` if they are not in it."""
        try:
            with zipfile.ZipFile(jar) as opened:
                names = [
                    name
                    for name in opened.namelist()
                    if name.startswith(_FOLDER) and name.endswith(("Request.json", "Response.json"))
                ]
                self._texts = {
                    name[len(_FOLDER) : -len(".json")]: opened.read(name).decode() for name in names
                }
        except (OSError, zipfile.BadZipFile) as error:
            raise JarsUnavailableError(f"{jar} can't be read as a jar: {error}") from error
        if "ApiVersionsRequest" not in self._texts:
            raise JarsUnavailableError(f"{jar} has no specification of Kafka's messages in {_FOLDER}")
        self._specs: dict[str, MessageSpec] = {}
        self._apis = {
            int(key[1]): name.removesuffix("Request")
            for name, text in self._texts.items()
            if name.endswith("Request") and (key := re.search(r'"apiKey": *(\d+)', text))
        }

    def __getitem__(self, name: str) -> MessageSpec:
        """That of ``FetchRequest``. Raises `KeyError`."""
        if name not in self._specs:
            # The files are JSON with comments on lines of their own.
            text = re.sub(r"^\s*//.*$", "", self._texts[name], flags=re.MULTILINE)
            self._specs[name] = MessageSpec.from_json(json.loads(text))
        return self._specs[name]

    @property
    def apis(self) -> dict[int, str]:
        """The name of each API, as ``Fetch``, by its key."""
        return self._apis


@functools.cache
def message_specs(jar: Path | None = None) -> MessageSpecs:
    """Kafka's messages, from ``jar``, or by default from the one that the embedded broker uses, too.

    Raises `JarsUnavailableError` when there is none and none can be fetched.
    """
    if jar is None:
        jar = next(one for one in jars() if one.name.startswith("kafka-clients-"))
    return MessageSpecs(jar)


@dataclass(frozen=True)
class VersionRange:
    """A range of the specifications: ``4+``, ``0-7``, ``3`` or ``none``."""

    lowest: int
    highest: int

    @classmethod
    def parse(cls, text: str | None) -> VersionRange:
        """Read a range; None is an empty one."""
        if text is None or text == "none":
            return cls(0, -1)
        lowest, _, highest = text.replace("+", "-32767").partition("-")
        return cls(int(lowest), int(highest or lowest))

    def __contains__(self, version: int) -> bool:
        return self.lowest <= version <= self.highest


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """A field: its name, and in which versions it is there, may be null, and is tagged."""

    name: str
    kind: str
    """A primitive type or the name of a struct, without the ``[]`` of an array."""
    is_array: bool
    versions: VersionRange
    nullable: VersionRange
    tagged: VersionRange
    tag: int
    default: Any
    fields: tuple[FieldSpec, ...]
    """Of the struct; empty for a primitive type."""

    def initial(self) -> Any:
        """The value it has until it gets another."""
        if self.fields and not self.is_array and self.default is not None:
            return {field.name: field.initial() for field in self.fields}
        return list(self.default) if self.is_array and self.default is not None else self.default


@dataclass(frozen=True, kw_only=True)
class MessageSpec:
    """A request, a response, or data of its own inside one."""

    name: str
    api_key: int | None
    versions: VersionRange
    """Those that are stable."""
    flexible: VersionRange
    fields: tuple[FieldSpec, ...]

    @classmethod
    def from_json(cls, spec: Mapping[str, Any]) -> MessageSpec:
        """Take what stands in one of Kafka's files."""
        structs = {struct["name"]: struct["fields"] for struct in spec.get("commonStructs", ())}
        versions = VersionRange.parse(spec["validVersions"])
        if spec.get("latestVersionUnstable"):
            versions = VersionRange(versions.lowest, versions.highest - 1)
        return cls(
            name=spec["name"],
            api_key=spec.get("apiKey"),
            versions=versions,
            flexible=VersionRange.parse(spec.get("flexibleVersions")),
            fields=tuple(_field(one, structs) for one in spec.get("fields", ())),
        )

    def read(self, data: bytes, version: int) -> Fields:
        """Read a message that fills ``data``. Raises `ValueError` if it does not."""
        reader = MessageReader(bytes(data))
        values = self._read_struct(reader, self.fields, version)
        if reader.at != len(data):
            raise ValueError(f"{self.name} v{version} ends at byte {reader.at} of {len(data)}")
        return values

    def write(self, values: Mapping[str, Any], version: int) -> bytes:
        """Write a message. A value that ``version`` has no field for is dropped, a name that no version has
        is a `ValueError`.
        """
        writer = MessageWriter()
        try:
            self._write_struct(writer, self.fields, values, version)
        except (TypeError, AttributeError, OverflowError, ArithmeticError) as error:
            raise ValueError(f"{self.name} v{version} can't be written: {error}") from error
        return bytes(writer.data)

    def _read_struct(self, reader: MessageReader, fields: tuple[FieldSpec, ...], version: int) -> Fields:
        values = {field.name: field.initial() for field in fields if version in field.versions}
        for field in fields:
            if version in field.versions and version not in field.tagged:
                values[field.name] = self._read_value(reader, field, version)
        if version not in self.flexible:
            return values
        tags = {field.tag: field for field in fields if version in field.tagged}
        for _ in range(reader.varint()):
            tag, size = reader.varint(), reader.varint()
            within = MessageReader(reader.take(size))
            if tag in tags:
                values[tags[tag].name] = self._read_value(within, tags[tag], version)
        return values

    def _read_value(self, reader: MessageReader, field: FieldSpec, version: int) -> Any:
        if not field.is_array:
            return self._read_element(reader, field, version)
        count = reader.length("array", compact=version in self.flexible)
        return None if count == -1 else [self._read_element(reader, field, version) for _ in range(count)]

    def _read_element(self, reader: MessageReader, field: FieldSpec, version: int) -> Any:
        if not field.fields:
            return reader.primitive(field.kind, compact=version in self.flexible)
        if _has_presence(field, version) and reader.primitive("int8") == -1:
            return None
        return self._read_struct(reader, field.fields, version)

    def _write_struct(
        self,
        writer: MessageWriter,
        fields: tuple[FieldSpec, ...],
        values: Mapping[str, Any],
        version: int,
    ) -> None:
        unknown = set(values) - {field.name for field in fields}
        if unknown:
            names = ", ".join(field.name for field in fields)
            raise ValueError(f"{self.name} has no {sorted(unknown)} there; it has {names}")
        for field in fields:
            if version in field.versions and version not in field.tagged:
                self._write_value(writer, field, values.get(field.name, field.initial()), version)
        if version in self.flexible:
            self._write_tags(writer, fields, values, version)

    def _write_tags(
        self,
        writer: MessageWriter,
        fields: tuple[FieldSpec, ...],
        values: Mapping[str, Any],
        version: int,
    ) -> None:
        """Those that are not as by default, in the order of their numbers."""
        tagged = sorted((field for field in fields if version in field.tagged), key=lambda field: field.tag)
        differing = [field for field in tagged if values.get(field.name, field.initial()) != field.initial()]
        writer.varint(len(differing))
        for field in differing:
            within = MessageWriter()
            self._write_value(within, field, values[field.name], version)
            writer.varint(field.tag)
            writer.varint(len(within.data))
            writer.data += within.data

    def _write_value(self, writer: MessageWriter, field: FieldSpec, value: Any, version: int) -> None:
        if value is None and version not in field.nullable:
            raise ValueError(f"{field.name} of {self.name} v{version} can't be null")
        if not field.is_array:
            self._write_element(writer, field, value, version)
            return
        writer.length("array", -1 if value is None else len(value), compact=version in self.flexible)
        for one in value or ():
            self._write_element(writer, field, one, version)

    def _write_element(self, writer: MessageWriter, field: FieldSpec, value: Any, version: int) -> None:
        if not field.fields:
            writer.primitive(field.kind, value, compact=version in self.flexible)
            return
        if _has_presence(field, version):
            writer.primitive("int8", -1 if value is None else 1)
        if value is not None:
            self._write_struct(writer, field.fields, value, version)


def _has_presence(field: FieldSpec, version: int) -> bool:
    """True if a byte marks the presence of the struct (KIP-893)."""
    return not field.is_array and version in field.nullable


def _field(spec: Mapping[str, Any], structs: Mapping[str, Any]) -> FieldSpec:
    kind = spec["type"].removeprefix("[]")
    within = spec.get("fields") or structs.get(kind, ())
    return FieldSpec(
        name=_snake_cased(spec["name"]),
        kind=kind,
        is_array=spec["type"].startswith("[]"),
        versions=VersionRange.parse(spec["versions"]),
        nullable=VersionRange.parse(spec.get("nullableVersions")),
        tagged=VersionRange.parse(spec.get("taggedVersions")),
        tag=spec.get("tag", -1),
        default=_default(spec),
        fields=tuple(_field(one, structs) for one in within),
    )


def _default(spec: Mapping[str, Any]) -> Any:
    kind, default = spec["type"], spec.get("default")
    if default == "null":
        return None
    if kind.startswith("[]"):
        return ()
    if kind == "bool":
        return str(default) == "true"
    if kind.startswith(("int", "uint")):
        return int(str(default or 0), 0)
    return {"bytes": b"", "records": None, "uuid": UUID(int=0), "float64": 0.0}.get(kind, default or "")


def _snake_cased(name: str) -> str:
    """``TopicIdsAndNames`` as topic_ids_and_names, ``ISRNodes`` as isr_nodes."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class MessageReader:
    """Reads values from the front of ``data``. Raises `ValueError` if ``data`` ends before a value does."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if size < 0 or self.at + size > len(self.data):
            raise ValueError(f"{size} bytes are wanted at byte {self.at} of {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        """An unsigned varint."""
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def length(self, kind: str, *, compact: bool) -> int:
        """How long the string, bytes or array that follows is; -1 for null."""
        if compact:
            return self.varint() - 1
        return int(self.primitive("int16" if kind == "string" else "int32"))

    def primitive(self, kind: str, *, compact: bool = False) -> Any:
        """A value of one of Kafka's primitive types; None for a null string or null bytes."""
        if kind == "uuid":
            return UUID(bytes=self.take(16))
        if kind in _NUMBERS:
            form = _NUMBERS[kind]
            return struct.unpack(form, self.take(struct.calcsize(form)))[0]
        size = self.length(kind, compact=compact)
        if size == -1:
            return None
        value = self.take(size)
        return value.decode() if kind == "string" else value


class MessageWriter:
    """Appends values to ``data``."""

    def __init__(self) -> None:
        self.data = bytearray()

    def varint(self, value: int) -> None:
        """An unsigned varint."""
        while value > 127:
            self.data.append(value & 127 | 128)
            value >>= 7
        self.data.append(value)

    def length(self, kind: str, size: int, *, compact: bool) -> None:
        """How long the string, bytes or array that follows is; -1 for null."""
        if compact:
            self.varint(size + 1)
        else:
            self.primitive("int16" if kind == "string" else "int32", size)

    def primitive(self, kind: str, value: Any, *, compact: bool = False) -> None:
        """A value of one of Kafka's primitive types; None is a null string or null bytes."""
        if kind == "uuid":
            self.data += value.bytes
        elif kind in _NUMBERS:
            self.data += struct.pack(_NUMBERS[kind], value)
        elif value is None:
            self.length(kind, -1, compact=compact)
        else:
            written = value.encode() if kind == "string" else bytes(value)
            self.length(kind, len(written), compact=compact)
            self.data += written
