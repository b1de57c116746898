"""`BadRecords`: the records of a batch that have a key or a value which can't be decoded, and what the modes
make of them. `decode_column` and `encode_column` call a format and check what it gives: it may be of another
package, and must not shift rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from .errors import EncodeError, FormatError
from .format import BadRows, Decoded, Decoder, Encoder, HeaderDecoder

_TOO_LARGE: Final = (OverflowError, pa.ArrowCapacityError)


class BadRecords:
    """Which rows are bad, and why."""

    def __init__(self) -> None:
        self._reasons: dict[int, list[tuple[str, str]]] = {}
        """By row, with the name of each payload."""
        self._passing: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def add(self, payload: str, bad: BadRows) -> None:
        """Those of one ``payload``: ``key`` or ``value``. The key comes first."""
        for row, reason in zip(bad.rows, bad.reasons, strict=True):
            self._reasons.setdefault(row, []).append((payload, reason))
        self._passing.update(bad.passing)

    @property
    def rows(self) -> list[int]:
        """In ascending order."""
        return sorted(self._reasons)

    def stages(self, row: int) -> tuple[str, ...]:
        """The payloads of ``row`` that are bad."""
        return tuple(name for name, _ in self._reasons[row])

    def reason(self, row: int) -> str:
        """Why ``row`` is bad, for people."""
        return "; ".join(f"the {name} can't be decoded: {text}" for name, text in self._reasons[row])

    def is_passing(self, row: int) -> bool:
        """True if another reading may find ``row`` good."""
        return row in self._passing

    def good(self, length: int) -> pa.Array:
        """Which of ``length`` rows are good, boolean."""
        return pa.array([row not in self._reasons for row in range(length)])

    def reasons(self, length: int, kind: pa.DataType) -> pa.Array:
        """Why each of ``length`` rows is bad; null for those that are good."""
        return self._column({row: self.reason(row) for row in self._reasons}, length, kind)

    def payloads(self, payloads: Mapping[str, pa.Array], length: int, kind: pa.DataType) -> pa.Array:
        """The bad value, or else the bad key, of each of ``length`` rows, out of ``payloads`` (binary) by
        name; null for a good row. ``kind`` is binary, or string, with U+FFFD for bytes that are no UTF-8."""
        found: dict[int, bytes | str] = {}
        for row, reasons in self._reasons.items():
            data: bytes = payloads[reasons[-1][0]][row].as_py()
            found[row] = data if pa.types.is_binary(kind) else data.decode(errors="replace")
        return self._column(found, length, kind)

    def _column(self, values: Mapping[int, bytes | str], length: int, kind: pa.DataType) -> pa.Array:
        if not values:
            return pa.nulls(length, kind)
        return pa.array([values.get(row) for row in range(length)], kind)


def decode_column(
    decoder: Decoder, payloads: pa.Array, kind: pa.DataType, what: str, ids: pa.Array | None = None
) -> Decoded:
    """``payloads`` as ``kind``, the type that the decoder was made for. ``ids``: the `header_ids` of a
    `HeaderDecoder`. Raises `FormatError`, which names ``what`` format it is, if rows would be shifted or have
    another type."""
    rows = len(payloads)
    try:
        if ids is not None and isinstance(decoder, HeaderDecoder):
            decoded = decoder.decode(payloads, ids)
        else:
            decoded = decoder.decode(payloads)
    except _TOO_LARGE as error:
        raise FormatError(
            f"{rows} payloads make a column of more than 2 GiB with the format {what}, and Arrow has no "
            "place for that: ask for fewer fields, or fetch less at once (max.partition.fetch.bytes)"
        ) from error
    places = decoded.bad.rows
    if len(decoded.array) != rows or decoded.array.type != kind:
        wrong = f"{len(decoded.array)} rows of {decoded.array.type} for {rows} of {kind}"
    elif len(places) != len(decoded.bad.reasons) or any(not 0 <= place < rows for place in places):
        wrong = "bad rows that do not exist, or another number of reasons"
    else:
        return decoded
    raise FormatError(f"The format {what} gave {wrong}")


def encode_column(encoder: Encoder, rows: pa.Array, what: str) -> pa.Array:
    """``rows`` encoded. Raises `EncodeError` for a row that can't be, `FormatError` as `decode_column`, and
    for a null in place of a row that is none: that record would be a tombstone."""
    try:
        payloads = encoder.encode(rows)
    except _TOO_LARGE as error:
        raise FormatError(
            f"{len(rows)} rows make more than 2 GiB with the format {what}, and Arrow has no place for that: "
            "write fewer at once (in Spark spark.sql.execution.arrow.maxRecordsPerBatch)"
        ) from error
    except EncodeError as error:
        if 0 <= error.row < len(rows):
            raise
        raise FormatError(
            f"The format {what} can't write row {error.row} of {len(rows)}: {error.reason}"
        ) from error
    if len(payloads) != len(rows) or not pa.types.is_binary(payloads.type):
        raise FormatError(
            f"The format {what} gave {len(payloads)} values of {payloads.type} for {len(rows)} rows, "
            "instead of as many of binary"
        )
    if payloads.null_count != rows.null_count:
        raise FormatError(
            f"The format {what} gave {payloads.null_count} nulls for {len(rows)} rows with {rows.null_count}"
        )
    return payloads
