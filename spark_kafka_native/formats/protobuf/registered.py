"""Messages of a schema registry: its schemas as descriptors, and the indexes that stand before messages."""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import binaries, hide, offsets_and_data, validity
from ..errors import FormatError, SetupError
from ..format import BadRows, Decoded, Decoder
from ..registry import RegisteredSchema, SchemaRegistry, frame_to_write, schema_to_read, schema_to_write
from .compile import KNOWN_FILES, compile_proto, is_synthetic
from .descriptors import find_message, in_order

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

LANGUAGE: Final = "PROTOBUF"
_MAX_INDEXES: Final = 32
"""How deep a message may stand in others."""
_MAX_KINDS: Final = 16
_MAIN: Final = "schema.proto"
Path = tuple[int, ...]
"""Where a message stands in its file: its place, or that of the message around it, and so on inward."""


def message_to_read(registry: SchemaRegistry, settings: Mapping[str, str]) -> Descriptor:
    """The message ``message`` of the registered schema that the settings name, by default its first. Raises
    `FormatError`."""
    return _message(schema_to_read(registry, settings, LANGUAGE), settings.get("message"))


def message_to_write(
    registry: SchemaRegistry, settings: Mapping[str, str], own: Descriptor | None
) -> tuple[Descriptor, bytes]:
    """The message to write, and what stands before each. ``own`` is that of the user, None to write under
    the registered schema. Raises `FormatError`."""
    text = None if own is None else _text(own)
    record = None if own is None else own.full_name
    schema = schema_to_write(registry, settings, LANGUAGE, text, record)
    name = settings.get("message") if own is None else own.full_name
    found = _message(schema, name)
    return found, frame_to_write(schema, settings) + _indexes(_path_of(schema, found.full_name))


def _text(own: Descriptor) -> str:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto()
    own.file.CopyToProto(file)
    return base64.b64encode(file.SerializeToString()).decode()


def _message(schema: RegisteredSchema, name: str | None) -> Descriptor:
    main = _main_file(schema)
    if not main.message_type:
        raise FormatError(f"{schema.shown} has no message")
    first = f"{main.package}.{main.message_type[0].name}".lstrip(".")
    return find_message(_files(schema), name or first)


def messages_at(schema: RegisteredSchema, path: Path) -> list[str]:
    """The full names of the messages that ``path`` may mean. Raises `FormatError`.

    There may be two: Confluent's Java clients count the messages that stand in the schema's text, those for
    Python, .NET and Go the entries of each ``map<>``, too.
    """
    found = (_message_at(schema, path, counts_all) for counts_all in (False, True))
    return list(dict.fromkeys(name for name in found if name is not None))


def _message_at(schema: RegisteredSchema, path: Path, counts_all: bool) -> str | None:
    main = _main_file(schema)
    names, messages = [main.package] if main.package else [], list(main.message_type)
    for index in path:
        counted = messages if counts_all else _in_text(messages)
        if not 0 <= index < len(counted) or is_synthetic(counted[index]):
            return None
        names.append(counted[index].name)
        messages = list(counted[index].nested_type)
    return ".".join(names)


def _in_text(messages: Iterable[DescriptorProto]) -> list[DescriptorProto]:
    return [one for one in messages if not is_synthetic(one)]


def _main_file(schema: RegisteredSchema) -> FileDescriptorProto:
    main = _main_name(schema)
    return next(file for file in _files(schema).file if file.name == main)


def _main_name(schema: RegisteredSchema) -> str:
    """That of the schema's own file, which a registry has no name for."""
    taken = {one.name for one in schema.all_references()}
    return next(name for n in itertools.count() if (name := "_" * n + _MAIN) not in taken)


# In each worker, too, where each schema id is met for the first time.
@functools.lru_cache(maxsize=64)
def _files(schema: RegisteredSchema) -> Any:
    """The descriptors of a schema and of those that it imports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    main = _main_name(schema)
    texts = {one.name: one.schema.text for one in schema.all_references()} | {main: schema.text}
    compiled = FileDescriptorSet()
    for name, text in list(texts.items()):
        file = _parse(text)
        if file is not None:
            file.name = name
            compiled.file.append(file)
            del texts[name]
    imported = {name for file in compiled.file for name in file.dependency}
    if texts or KNOWN_FILES.keys() & imported - {file.name for file in compiled.file}:
        return compile_proto(main, texts, compiled)
    complete = FileDescriptorSet()
    complete.file.extend(in_order(compiled))
    return complete


def _parse(text: str) -> FileDescriptorProto | None:
    """The descriptor, if ``text`` is one in Base64, as Confluent's Python client registers them."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        file = FileDescriptorProto()
        file.ParseFromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return file


def _path_of(schema: RegisteredSchema, name: str) -> Path:
    """Where the message ``name`` stands in the text of ``schema``, as Java's deserializer looks it up."""
    main = _main_file(schema)
    path, messages = [], _in_text(main.message_type)
    for part in name.removeprefix(f"{main.package}.").split("."):
        names = [one.name for one in messages]
        if part not in names:
            raise FormatError(f"{schema.shown} only imports the message {name}: it can't be written")
        path.append(names.index(part))
        messages = _in_text(messages[path[-1]].nested_type)
    return tuple(path)


def _indexes(path: Path) -> bytes:
    """As zigzag varints, with their number; a single byte 0 for the first message of a file."""
    if path == (0,):
        return b"\0"
    return b"".join(_varint(2 * one) for one in (len(path), *path))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _read_indexes(body: bytes) -> tuple[Path, int]:
    """The path that ``body`` begins with, and its length. Raises `ValueError`."""
    count, at = _read_varint(body, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MAX_INDEXES:
        raise ValueError(f"{count} message indexes")
    path = []
    for _ in range(count):
        index, at = _read_varint(body, at)
        path.append(index)
    return tuple(path), at


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    raw = 0
    for shift in range(0, 35, 7):
        if at >= len(body):
            break
        raw |= (body[at] & 0x7F) << shift
        at += 1
        if body[at - 1] < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
    raise ValueError("message indexes that break off")


class IndexedDecoder:
    """Decodes bodies of one registered schema: message indexes, then a message.

    Fields are known by their numbers, so every version of a message is read under the reader's.
    """

    def __init__(self, schema: RegisteredSchema, name: str, decoder: Decoder) -> None:
        """``decoder`` reads messages with the full name ``name``."""
        self._schema = schema
        self._name = name
        self._decoder = decoder
        self._refusals: dict[Path, str | None] = {}

    @property
    def type(self) -> pa.DataType:
        """As `Decoder.type`."""
        return self._decoder.type

    def decode(self, payloads: pa.Array) -> Decoded:
        """As `Decoder.decode`; a message of another type is bad."""
        prefixes = np.zeros(len(payloads), np.int64)
        bad: dict[int, str] = {}
        for rows, head in _by_head(payloads):
            try:
                path, length = _read_indexes(head)
                reason = self._refusal(path)
                prefixes[rows] = length
            except SetupError:
                raise
            except ValueError as error:
                reason = str(error)
            if reason is not None:
                bad.update(dict.fromkeys(rows.tolist(), reason))
        return self._decode(payloads, prefixes, bad)

    def _decode(self, payloads: pa.Array, prefixes: npt.NDArray[np.int64], bad: dict[int, str]) -> Decoded:
        gone = ~validity(payloads)
        gone[list(bad)] = True
        decoded = self._decoder.decode(hide(_cut(payloads, prefixes), gone))
        reasons = dict(zip(decoded.bad.rows, decoded.bad.reasons, strict=True)) | bad
        rows = tuple(sorted(reasons))
        return Decoded(decoded.array, BadRows(rows, tuple(reasons[row] for row in rows)))

    def _refusal(self, path: Path) -> str | None:
        """Why messages at ``path`` are not read."""
        if path not in self._refusals:
            if len(self._refusals) > 1_000:
                self._refusals.clear()
            self._refusals[path] = _refusal(messages_at(self._schema, path), path, self._name)
        return self._refusals[path]


def _refusal(found: list[str], path: Path, name: str) -> str | None:
    if len(found) > 1:
        return f"its indexes {list(path)} mean a message {found[0]}, or {found[1]} if entries of maps count"
    what = found[0] if found else f"with the indexes {list(path)}"
    return None if what == name else f"it is a message {what}, not {name}"


def _by_head(payloads: pa.Array) -> Iterator[tuple[npt.NDArray[np.int64], bytes]]:
    """The rows that are not null by what they begin with: those of few kinds together, the others one by
    one."""
    rest = np.flatnonzero(validity(payloads))
    offsets, data = offsets_and_data(payloads)
    for _ in range(_MAX_KINDS):
        if not len(rest):
            return
        head = _head(data, offsets, rest[0])
        try:
            kind = np.frombuffer(head[: _read_indexes(head)[1]], np.uint8)
        except ValueError:
            yield rest[:1], head
            rest = rest[1:]
            continue
        starts = offsets[rest].astype(np.int64)
        alike = offsets[rest + 1] - starts >= len(kind)
        for place, byte in enumerate(kind.tolist()):
            alike[alike] = data[starts[alike] + place] == byte
        yield rest[alike], kind.tobytes()
        rest = rest[~alike]
    for row in rest:
        yield np.array([row]), _head(data, offsets, row)


def _head(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32], row: Any) -> bytes:
    return data[offsets[row] : min(offsets[row + 1], int(offsets[row]) + 5 * (_MAX_INDEXES + 1))].tobytes()


def _cut(payloads: pa.Array, prefixes: npt.NDArray[np.int64]) -> pa.Array:
    """``payloads`` without as many bytes in front as ``prefixes`` says."""
    lengths = np.unique(prefixes[validity(payloads)])
    if len(lengths) <= 1:
        # The kernel needs an end.
        return pc.binary_slice(payloads, int(lengths[0]) if len(lengths) else 0, 2**31 - 1)
    pairs = zip(payloads.to_pylist(), prefixes.tolist(), strict=True)
    return hide(binaries([(one or b"")[length:] for one, length in pairs]), ~validity(payloads))
