"""`ProtobufFormat`: payloads that are protobuf messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrays import binaries, hide, offsets_and_data, validity
from ..errors import EncodeError, FormatError
from ..format import BadRows, Decoded, Decoder, Encoder, Resolved
from ..plain_types import as_payloads, nulls_as_text
from ..registry import RegistryDecoder, RegistryEncoder, SchemaRegistry
from .binding import bind
from .cells import Cells, Findings
from .descriptors import from_text, named_descriptor, require_libraries, to_text
from .message_types import RecursiveError, TypeChoices, message_type
from .messages import StructCodec
from .registered import LANGUAGE, IndexedDecoder, message_to_read, message_to_write
from .well_known import struct
from .wire import WireEngine, WireFile

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

MAX_EXPANDED_BYTES: Final = 1 << 30
"""What the columns of payloads that are read together may come to: an empty message in a list takes two bytes
of payload, and a value in every column of its type."""
_COLUMN_BYTES: Final = 9
_EMPTY_MESSAGE_BYTES: Final = 2
_TOO_DEEP: Final = "no protobuf message of this type: malformed, or groups in one another are too many"
_PREFIX: Final = "message.prefix"
"""The setting with what stands before each payload that is written, in hexadecimal."""


class ProtobufFormat:
    """One message in each payload, its fields are those of a struct.

    Settings: ``descriptorfile`` with ``message``, or ``messageclass``, or a registry's; and options of
    Spark's ``from_protobuf``. Workers get the descriptor itself, as ``descriptor``.
    """

    def resolve_read(self, settings: Mapping[str, str]) -> Resolved:
        """As `SchemaFormat.resolve_read`."""
        found = _look_up(settings)
        try:
            kind = message_type(found, TypeChoices.parse(settings))
        except RecursiveError:
            kind = None  # The user may say the type; and is asked to, or else to set the depth.
        return Resolved(kind, _carried(settings, found))

    def resolve_write(self, type: pa.DataType, settings: Mapping[str, str]) -> Resolved:
        """As `SchemaFormat.resolve_write`."""
        require_libraries()
        registry = SchemaRegistry.from_settings(settings)
        if registry is None:
            found, prefix = _look_up(settings), b""
        else:
            found, prefix = message_to_write(registry, settings, named_descriptor(settings))
        bind(found, type, reads=False)
        return Resolved(type, _carried(settings, found) | {_PREFIX: prefix.hex()})

    def decoder(self, type: pa.DataType, settings: Mapping[str, str]) -> Decoder:
        """A decoder into the struct ``type``, a part of the message. Raises `FormatError`."""
        emits = TypeChoices.parse(settings).emits_defaults
        found = _look_up(settings)
        decoder = ProtobufDecoder(bind(found, type, emits_defaults=emits))
        registry = SchemaRegistry.from_settings(settings)
        if registry is None:
            return decoder
        name = found.full_name
        return RegistryDecoder(type, registry, LANGUAGE, lambda schema: IndexedDecoder(schema, name, decoder))

    def encoder(self, type: pa.DataType, settings: Mapping[str, str]) -> Encoder:
        """An encoder of the struct ``type``, each field of which is one of the message. Raises
        `FormatError`."""
        known = settings if _PREFIX in settings else self.resolve_write(type, settings).settings
        encoder = ProtobufEncoder(bind(_look_up(known), type, reads=False))
        prefix = bytes.fromhex(known[_PREFIX])
        return RegistryEncoder.of(encoder, prefix, settings) if prefix else encoder


def _look_up(settings: Mapping[str, str]) -> Descriptor:
    require_libraries()
    if "descriptor" in settings:
        return from_text(settings["descriptor"], settings.get("message", ""))
    found = named_descriptor(settings)
    registry = SchemaRegistry.from_settings(settings) if found is None else None
    if registry is not None:
        return message_to_read(registry, settings)
    if found is None:
        raise FormatError("protobuf needs descriptorFile and message, or messageClass, or registry.url")
    return found


def _carried(settings: Mapping[str, str], found: Descriptor) -> dict[str, str]:
    kept = {name: text for name, text in settings.items() if name not in ("descriptorfile", "messageclass")}
    return kept | {"descriptor": to_text(found), "message": found.full_name}


class ProtobufDecoder:
    """Decodes messages into one struct type."""

    def __init__(self, codec: StructCodec) -> None:
        self._codec = codec
        file = WireFile()
        self._name = codec.declare(file)[1]
        self._file = file

    @property
    def type(self) -> pa.DataType:
        """As `Decoder.type`."""
        return self._codec.type

    @cached_property
    def _engine(self) -> WireEngine:
        return WireEngine(self._file, self._name)

    def decode(self, payloads: pa.Array) -> Decoded:
        """As `Decoder.decode`. An empty payload is a message without fields."""
        parts = [self._decode(part) for part in _parts(as_payloads(payloads), self._file.width())]
        if len(parts) == 1:
            return parts[0][1]
        rows = tuple(start + row for start, part in parts for row in part.bad.rows)
        reasons = tuple(reason for _, part in parts for reason in part.bad.reasons)
        return Decoded(pa.concat_arrays([part.array for _, part in parts]), BadRows(rows, reasons))

    def _decode(self, start_and_payloads: tuple[int, pa.Array]) -> tuple[int, Decoded]:
        start, payloads = start_and_payloads
        deep = dict.fromkeys(self._engine.too_deep(payloads), _TOO_DEEP)
        payloads, raw, problems = self._read(_without(payloads, deep) if deep else payloads)
        problems |= deep
        array, findings = self._convert(raw)
        if findings.conflicted:
            payloads, refused = self._normalized(payloads, findings.conflicted)
            payloads, raw, more = self._read(payloads)
            problems |= refused | more
            array, findings = self._convert(raw)
        problems |= {row: text for row, text in findings.problems.items() if row not in problems}
        rows = tuple(sorted(problems))
        return start, Decoded(array, BadRows(rows, tuple(problems[row] for row in rows)))

    def _convert(self, raw: pa.Array) -> tuple[pa.Array, Findings]:
        findings = Findings()
        return self._codec.read(raw, Cells(len(raw), findings)), findings

    def _read(self, payloads: pa.Array) -> tuple[pa.Array, pa.Array, dict[int, str]]:
        """The payloads, null where they are no messages; their raw columns; and why they are none."""
        try:
            return payloads, self._raw(payloads), {}
        except ValueError:
            pass
        suspects = [
            row
            for row, payload in enumerate(payloads.to_pylist())
            if payload is not None and not self._engine.is_message(payload)
        ]
        bad = self._refused(payloads, suspects)
        kept = _without(payloads, bad)
        try:
            return kept, self._raw(kept), bad
        except ValueError:  # The two implementations disagree about a payload.
            bad = self._refused(payloads, range(len(payloads)))
            kept = _without(payloads, bad)
            return kept, self._raw(kept), bad

    def _raw(self, payloads: pa.Array) -> pa.Array:
        """The raw columns as structs, null where a payload is: a null is no message that lacks its fields."""
        batch = self._engine.read(payloads)
        return struct(batch.columns, batch.schema.names, validity(payloads))

    def _refused(self, payloads: pa.Array, rows: Any) -> dict[int, str]:
        # Alone: the meaning of a payload must not depend on its neighbours.
        bad = {}
        for row in rows:
            try:
                self._engine.read(payloads.slice(row, 1))
            except ValueError as error:
                bad[row] = f"no protobuf message of this type: {str(error).rpartition(': ')[2][:100]}"
        return bad

    def _normalized(self, payloads: pa.Array, rows: set[int]) -> tuple[pa.Array, dict[int, str]]:
        """The payloads with one member of each oneof in ``rows``; and those of them that are no messages."""
        values = payloads.to_pylist()
        for row in rows:
            values[row] = self._engine.normalize(values[row])
        gone = np.array([one is None for one in values], np.bool_)
        refused = {row: "no protobuf message of this type" for row in rows if values[row] is None}
        return hide(binaries([one or b"" for one in values]), gone), refused


def _without(payloads: pa.Array, bad: Mapping[int, str]) -> pa.Array:
    gone = np.zeros(len(payloads), np.bool_)
    gone[list(bad)] = True
    # The bytes stay where they are, and `ptars` does not look at those of a null.
    return hide(payloads, gone)


def _parts(payloads: pa.Array, width: int) -> list[tuple[int, pa.Array]]:
    """``payloads`` in parts, with the place of each, that expand to `MAX_EXPANDED_BYTES` at most or are one
    payload."""
    limit = max(MAX_EXPANDED_BYTES * _EMPTY_MESSAGE_BYTES // (_COLUMN_BYTES * width), 1)
    offsets = offsets_and_data(payloads)[0].astype(np.int64)
    if len(offsets) < 2 or offsets[-1] - offsets[0] <= limit:
        return [(0, payloads)]
    parts, start = [], 0
    while start < len(payloads):
        end = int(np.searchsorted(offsets, offsets[start] + limit, "right")) - 1
        end = min(max(end, start + 1), len(payloads))
        parts.append((start, payloads.slice(start, end - start)))
        start = end
    return parts


class ProtobufEncoder:
    """Encodes structs of one type."""

    def __init__(self, codec: StructCodec) -> None:
        self._codec = codec

    @cached_property
    def _engine(self) -> WireEngine:
        file = WireFile()
        name = self._codec.declare(file)[1]
        return WireEngine(file, name)

    def encode(self, rows: pa.Array) -> pa.Array:
        """As `Encoder.encode`; fields that are null are left out."""
        findings = Findings()
        raw = self._codec.write(nulls_as_text(rows), Cells(len(rows), findings))
        if findings.problems:
            row = min(findings.problems)
            raise EncodeError(row, findings.problems[row])
        columns = [raw.field(index) for index in range(raw.type.num_fields)]
        names = [one.name for one in raw.type]
        return hide(self._engine.write(pa.record_batch(columns, names=names)), _absent(rows))


def _absent(rows: pa.Array) -> npt.NDArray[np.bool_]:
    return ~validity(rows)
