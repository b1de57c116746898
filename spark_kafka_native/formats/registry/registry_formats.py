"""`RegistryDecoder` and `RegistryEncoder`: a format's decoders and encoders, for payloads that name their
schema."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrays import wrap
from ..errors import FormatError, SetupError
from ..format import BadRows, Decoded, Decoder, Encoder
from ..plain_types import as_payloads
from .errors import RegistryError, UnknownSchemaError
from .framing import Framed, SchemaKey, split, with_prefix
from .registered_schema import RegisteredSchema
from .schema_choice import ids_in_headers
from .schema_registry import SchemaRegistry

MAX_DECODERS: Final = 256
_Decoders = Mapping[SchemaKey, Decoder | str | UnknownSchemaError]
"""By schema; or why there is none."""


class RegistryDecoder:
    """Decodes payloads, each under the schema that it names, into one type."""

    takes_headers: Final = True

    def __init__(
        self,
        type: pa.DataType,
        registry: SchemaRegistry,
        language: str,
        make: Callable[[RegisteredSchema], Decoder],
    ) -> None:
        """``language``: ``AVRO``, ``PROTOBUF`` or ``JSON``, of all schemas. ``make`` makes the decoder of the
        payloads of one schema, of the type ``type``; a `FormatError` that it raises makes them bad."""
        self.type = type
        self._registry = registry
        self._language = language
        self._make = make
        self._decoders: OrderedDict[SchemaKey, Decoder | str] = OrderedDict()
        """By id or GUID, the one that was used last at the end; or why there is none."""

    def decode(self, payloads: pa.Array, headers: pa.Array | None = None) -> Decoded:
        """As `Decoder.decode`. ``headers``: see `framing.split`.

        Raises `RegistryError` if the registry can't be asked for a schema, and `SetupError`.
        """
        return _decode_parts(self.type, payloads, headers, self._decoders_of)

    def _decoders_of(self, keys: Collection[SchemaKey]) -> _Decoders:
        missing = [key for key in keys if key not in self._decoders and (isinstance(key, str) or key >= 0)]
        schemas = self._registry.schemas_of_records(missing)
        found: dict[SchemaKey, Decoder | str | UnknownSchemaError] = {}
        for key in keys:
            schema = schemas.get(key)
            if isinstance(schema, UnknownSchemaError):
                found[key] = schema
                continue
            if key not in self._decoders:
                self._decoders[key] = self._new(schema) if schema else f"{key} is no id of a schema"
            self._decoders.move_to_end(key)
            found[key] = self._decoders[key]
        while len(self._decoders) > MAX_DECODERS:
            self._decoders.popitem(last=False)
        return found

    def _new(self, schema: RegisteredSchema) -> Decoder | str:
        if schema.type != self._language:
            return f"{schema.shown} is of type {schema.type}, not {self._language}"
        try:
            return self._make(schema)
        except (RegistryError, SetupError):
            raise
        except FormatError as error:
            return f"{schema.shown}: {error}"


@dataclass(frozen=True, slots=True)
class FramedDecoder:
    """Decodes payloads that name their schema, in a format that can be read without it."""

    type: pa.DataType
    decoder: Decoder
    takes_headers: ClassVar[bool] = True

    def decode(self, payloads: pa.Array, headers: pa.Array | None = None) -> Decoded:
        """As `Decoder.decode`. ``headers``: see `framing.split`."""
        return _decode_parts(self.type, payloads, headers, lambda keys: dict.fromkeys(keys, self.decoder))


class _FirstSchemas:
    """The schema of the first records of each type, to say once in a process that others came."""

    def __init__(self) -> None:
        self._keys: dict[pa.DataType, SchemaKey] = {}
        self._said: set[pa.DataType] = set()

    def note(self, kind: pa.DataType, key: SchemaKey) -> None:
        """Records of ``kind`` are under this schema."""
        if len(self._keys) >= _MAX_NOTED and kind not in self._keys:
            return
        first = self._keys.setdefault(kind, key)
        if key != first and kind not in self._said:
            self._said.add(kind)
            _LOG.warning(
                "Records are under schema %s, others under schema %s. All of them are read under the schema "
                "that was chosen when the query began; schemaVersion keeps it.",
                first,
                key,
            )


_LOG: Final = logging.getLogger("spark_kafka_native.formats")
_MAX_NOTED: Final = 64
_first_schemas: Final = _FirstSchemas()


def _decode_parts(
    kind: pa.DataType,
    payloads: pa.Array,
    headers: pa.Array | None,
    decoders_of: Callable[[Collection[SchemaKey]], _Decoders],
) -> Decoded:
    """``payloads`` as an array of ``kind``, each with the decoder for its schema, or bad for the reason why
    there is none."""
    payloads = as_payloads(payloads)
    headers = None if headers is None else as_payloads(headers)
    parts = _Parts(kind, len(payloads))
    split_parts = list(split(payloads, headers))
    decoders = decoders_of(dict.fromkeys(part.key for part in split_parts if isinstance(part, Framed)))
    for part in split_parts:
        if not isinstance(part, Framed):
            parts.add_bad(part.rows, part.reason)
            continue
        decoder = decoders[part.key]
        if isinstance(decoder, str | UnknownSchemaError):
            is_passing = not isinstance(decoder, str)
            parts.add_bad(_rows(part, payloads), str(decoder), is_passing=is_passing)
            continue
        _first_schemas.note(kind, part.key)
        if part.rows is None:
            return decoder.decode(part.bodies)
        parts.add(part.rows, decoder.decode(part.bodies))
    return parts.joined()


def _rows(part: Framed, payloads: pa.Array) -> npt.NDArray[np.int64]:
    return np.flatnonzero(payloads.is_valid()) if part.rows is None else part.rows


class _Parts:
    """Parts of a column, to be put together."""

    def __init__(self, kind: pa.DataType, length: int) -> None:
        self._kind = kind
        self._length = length
        self._arrays: list[pa.Array] = []
        self._rows: list[npt.NDArray[np.int64]] = []
        self._bad: dict[int, str] = {}
        self._passing: set[int] = set()

    def add_bad(self, rows: npt.NDArray[np.int64], reason: str, *, is_passing: bool = False) -> None:
        self._bad.update(dict.fromkeys(rows.tolist(), reason))
        if is_passing:
            self._passing.update(rows.tolist())

    def add(self, rows: npt.NDArray[np.int64], decoded: Decoded) -> None:
        self._arrays.append(decoded.array)
        self._rows.append(rows)
        for place, reason in zip(decoded.bad.rows, decoded.bad.reasons, strict=True):
            self._bad[int(rows[place])] = reason

    def joined(self) -> Decoded:
        bad = sorted(self._bad)
        reasons = tuple(self._bad[row] for row in bad)
        return Decoded(self._array(), BadRows(tuple(bad), reasons, tuple(sorted(self._passing))))

    def _array(self) -> Any:
        if not self._arrays:
            return pa.nulls(self._length, self._kind)
        places = np.full(self._length, -1, np.int64)
        rows = np.concatenate(self._rows)
        places[rows] = np.arange(len(rows))
        return pa.concat_arrays(self._arrays).take(wrap(places, pa.int64(), places >= 0))


@dataclass(frozen=True, slots=True)
class RegistryEncoder:
    """Encodes rows under one registered schema."""

    encoder: Encoder
    prefix: bytes
    """What stands before each payload; nothing with a header."""
    header: bytes | None
    """What each record has in a header; None without."""

    @classmethod
    def of(cls, encoder: Encoder, frame: bytes, settings: Mapping[str, str]) -> RegistryEncoder:
        """``frame``: the schema of the rows, as `frame_to_write` gives it, and protobuf's message indexes."""
        return cls(encoder, b"", frame) if ids_in_headers(settings) else cls(encoder, frame, None)

    def encode(self, rows: pa.Array) -> pa.Array:
        """As `Encoder.encode`."""
        payloads = self.encoder.encode(rows)
        return with_prefix(payloads, self.prefix) if self.prefix else payloads
