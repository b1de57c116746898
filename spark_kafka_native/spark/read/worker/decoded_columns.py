"""`DecodedColumns`: keys and values as typed columns, and what becomes of a record that can't be decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from ....formats import Decoder, FormatError, HeaderDecoder, header_ids
from ....formats.bad_records import BadRecords, decode_column
from ....kafka.errors import ConfigError, MalformedRecordError
from ....kafka.model import ERROR_COLUMN, BadRecordMode
from ....kafka.records.columns import RecordColumns
from ..schema import ERROR_COLUMNS, DecodedPayload, RowSchema
from .bad_record_handler import BadRecordHandler

_OF_LETTERS: Final = ("key", "value", "headers", "timestamp_ms")
"""The fields of `RecordColumns` that a dead letter is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedColumns:
    """Decodes the keys and values of a read."""

    payloads: tuple[DecodedPayload, ...]
    decoders: tuple[Decoder, ...]
    """One for each."""
    mode: BadRecordMode
    about_errors: Mapping[str, pa.DataType]
    """The columns about errors that the read asks for."""
    handler: BadRecordHandler = field(default_factory=BadRecordHandler)
    """Of the task."""

    @classmethod
    def of(cls, schema: RowSchema, handler: BadRecordHandler | None = None) -> DecodedColumns:
        """Those that ``schema`` asks for. Raises `ConfigError`."""
        asked = set(schema.arrow.names) if schema.mode is BadRecordMode.PERMISSIVE else set()
        return cls(
            payloads=schema.decoded,
            decoders=tuple(one.format.decoder(one.kind) for one in schema.decoded),
            mode=schema.mode,
            about_errors={name: schema.arrow.field(name).type for name in asked & ERROR_COLUMNS.keys()},
            handler=BadRecordHandler() if handler is None else handler,
        )

    @property
    def record_fields(self) -> frozenset[str]:
        """The fields of `RecordColumns` that have to be decoded; errors name the offset."""
        wanted = _OF_LETTERS if self.mode is BadRecordMode.DLQ else ()
        by_header = any(isinstance(one, HeaderDecoder) for one in self.decoders)
        return frozenset(
            [
                *(one.format.payload for one in self.payloads),
                "offset",
                *wanted,
                *(["headers"] if by_header else []),
            ]
        )

    def build(self, records: RecordColumns, runs: Any) -> tuple[dict[str, pa.Array], pa.Array | None]:
        """The columns by the names that the DataFrame has for them, each as long as ``records``, and which
        rows are kept (boolean; None for all).

        Raises `MalformedRecordError` with ``mode=failfast``, `DeadLetterError` with ``mode=dlq``: its bad
        records are in their topic when this returns.
        """
        columns: dict[str, pa.Array] = {}
        bad = BadRecords()
        for one, decoder in zip(self.payloads, self.decoders, strict=True):
            payload = one.format.payload
            try:
                what = f"'{one.format.name}' of the {payload}"
                ids = header_ids(records.headers, payload) if isinstance(decoder, HeaderDecoder) else None
                decoded = decode_column(decoder, getattr(records, payload), one.kind, what, ids)
            except FormatError as error:
                raise ConfigError(str(error)) from error
            columns |= _columns_of(one, decoded.array)
            bad.add(payload, decoded.bad)
        if bad and self.mode is BadRecordMode.FAILFAST:
            row = bad.rows[0]
            offsets: Any = records.offset
            raise MalformedRecordError(runs.at(row), int(offsets[row]), bad.reason(row))
        if bad:
            self.handler.add(records, runs, bad)
        if bad and self.mode.leaves_out:
            return columns, bad.good(records.length)
        return columns | self._about_errors(records, bad), None

    def _about_errors(self, records: RecordColumns, bad: BadRecords) -> dict[str, pa.Array]:
        payloads: dict[str, Any] = {"key": records.key, "value": records.value}
        return {
            name: bad.reasons(records.length, kind)
            if name == ERROR_COLUMN
            else bad.payloads(payloads, records.length, kind)
            for name, kind in self.about_errors.items()
        }


def _columns_of(payload: DecodedPayload, array: pa.Array) -> dict[str, pa.Array]:
    if not payload.format.is_flat:
        return {payload.columns[0]: array}
    # `flatten` makes the fields of a null struct null.
    return dict(zip(payload.columns, array.flatten(), strict=True))
