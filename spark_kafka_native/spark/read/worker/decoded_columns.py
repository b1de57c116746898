"""`DecodedColumns`: keys and values as typed columns, and what becomes of a record that can't be decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ....formats import BadRows, Decoded, Decoder
from ....kafka.errors import ConfigError, KafkaError
from ....kafka.model import TopicPartition
from ....kafka.records.columns import RecordColumns
from ...payload_formats import CORRUPT_COLUMN, ERROR_COLUMN
from ..schema import ERROR_COLUMNS, DecodedPayload, RowSchema


class MalformedRecordError(KafkaError):
    """The key or the value of a record can't be decoded. Names topic-partition and offset."""

    def __init__(self, topic_partition: TopicPartition, offset: int, reason: str) -> None:
        super().__init__(
            f"{topic_partition} at offset {offset}: {reason}. mode=permissive gives such records as "
            f"`{CORRUPT_COLUMN}` and `{ERROR_COLUMN}`, mode=dropmalformed leaves them out"
        )
        self.topic_partition = topic_partition
        self.offset = offset


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedColumns:
    """Decodes the keys and values of a read."""

    payloads: tuple[DecodedPayload, ...]
    decoders: tuple[Decoder, ...]
    """One for each."""
    mode: str
    about_errors: Mapping[str, pa.DataType]
    """The columns about errors that the read asks for."""

    @classmethod
    def of(cls, schema: RowSchema) -> DecodedColumns:
        """Those that ``schema`` asks for. Raises `ConfigError`."""
        asked = set(schema.arrow.names) if schema.mode == "permissive" else set()
        return cls(
            payloads=schema.decoded,
            decoders=tuple(one.format.decoder(one.kind) for one in schema.decoded),
            mode=schema.mode,
            about_errors={name: schema.arrow.field(name).type for name in asked & ERROR_COLUMNS.keys()},
        )

    @property
    def record_fields(self) -> frozenset[str]:
        """The fields of `RecordColumns` that have to be decoded; errors name the offset."""
        return frozenset([*(one.format.payload for one in self.payloads), "offset"])

    def build(self, records: RecordColumns, runs: Any) -> tuple[dict[str, pa.Array], pa.Array | None]:
        """The columns by the names that the DataFrame has for them, each as long as ``records``, and which
        rows are kept (boolean; None for all).

        Raises `MalformedRecordError` with ``mode=failfast``.
        """
        columns: dict[str, pa.Array] = {}
        bad: dict[int, list[tuple[str, str]]] = {}
        for one, decoder in zip(self.payloads, self.decoders, strict=True):
            decoded = _checked(decoder.decode(getattr(records, one.format.payload)), one, records.length)
            columns |= _columns_of(one, decoded.array)
            _collect(bad, one.format.payload, decoded.bad)
        if self.mode == "failfast" and bad:
            row = min(bad)
            offsets: Any = records.offset
            raise MalformedRecordError(runs.at(row), int(offsets[row]), _describe(bad[row]))
        if self.mode == "dropmalformed" and bad:
            return columns, pa.array([row not in bad for row in range(records.length)])
        return columns | self._about_errors(records, bad), None

    def _about_errors(
        self, records: RecordColumns, bad: Mapping[int, list[tuple[str, str]]]
    ) -> dict[str, pa.Array]:
        columns = {}
        for name, kind in self.about_errors.items():
            if not bad:
                columns[name] = pa.nulls(records.length, kind)
                continue
            values: list[bytes | str | None] = [None] * records.length
            for row, reasons in bad.items():
                values[row] = (
                    _describe(reasons) if name == ERROR_COLUMN else _payload(records, row, reasons, kind)
                )
            columns[name] = pa.array(values, kind)
        return columns


def _checked(decoded: Decoded, payload: DecodedPayload, rows: int) -> Decoded:
    """``decoded`` as it is. Raises `ConfigError` if it would shift rows or fill the wrong columns: the format
    may be of another package."""
    places = decoded.bad.rows
    if len(decoded.array) != rows or decoded.array.type != payload.kind:
        wrong = f"{len(decoded.array)} rows of {decoded.array.type} for {rows} of {payload.kind}"
    elif len(places) != len(decoded.bad.reasons) or any(not 0 <= place < rows for place in places):
        wrong = "bad rows that do not exist, or another number of reasons"
    else:
        return decoded
    raise ConfigError(f"The format '{payload.format.name}' of the {payload.format.payload} gave {wrong}")


def _columns_of(payload: DecodedPayload, array: pa.Array) -> dict[str, pa.Array]:
    if not payload.format.is_flat:
        return {payload.columns[0]: array}
    # `flatten` makes the fields of a null struct null.
    return dict(zip(payload.columns, array.flatten(), strict=True))


def _collect(bad: dict[int, list[tuple[str, str]]], payload: str, rows: BadRows) -> None:
    for row, reason in zip(rows.rows, rows.reasons, strict=True):
        bad.setdefault(row, []).append((payload, reason))


def _describe(reasons: list[tuple[str, str]]) -> str:
    return "; ".join(f"the {payload} can't be decoded: {reason}" for payload, reason in reasons)


def _payload(
    records: RecordColumns, row: int, reasons: list[tuple[str, str]], kind: pa.DataType
) -> bytes | str | None:
    """The value if it is bad, and else the key."""
    column: pa.Array = getattr(records, reasons[-1][0])
    data: bytes = column[row].as_py()
    return data if pa.types.is_binary(kind) else data.decode(errors="replace")
