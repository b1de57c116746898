"""`StringFormat`: payloads that are UTF-8 text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from .errors import FormatError
from .format import BadRows, Decoded
from .isolate import NotTogetherError, decode_isolated
from .plain_types import as_payloads


class StringFormat:
    """Each payload is a string."""

    def decoder(self, type: pa.DataType, settings: Mapping[str, str]) -> StringCodec:  # noqa: ARG002
        """A decoder into ``type``, which must be string. Raises `FormatError`."""
        if not pa.types.is_string(type):
            raise FormatError(f"The format 'string' has the type string, not {type}")
        return StringCodec(type)

    def encoder(self, type: pa.DataType, settings: Mapping[str, str]) -> StringCodec:
        """An encoder of strings. Raises `FormatError`."""
        return self.decoder(type, settings)


@dataclass(frozen=True)
class StringCodec:
    """Decodes and encodes UTF-8."""

    type: pa.DataType

    def decode(self, payloads: pa.Array) -> Decoded:
        """As `Decoder.decode`; a payload that is not UTF-8 is bad, and null."""
        return decode_isolated(as_payloads(payloads), self._read_together, self._read_one_by_one)

    def encode(self, rows: pa.Array) -> pa.Array:
        """As `Encoder.encode`."""
        return rows.cast(pa.binary())

    def _read_together(self, payloads: pa.Array) -> pa.Array:
        try:
            return payloads.cast(self.type)
        except pa.ArrowInvalid as error:
            raise NotTogetherError from error

    def _read_one_by_one(self, payloads: pa.Array) -> Decoded:
        texts: list[str | None] = []
        bad: dict[int, str] = {}
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                texts.append(None if payload is None else payload.decode())
            except UnicodeDecodeError as error:
                texts.append(None)
                bad[row] = f"not UTF-8 at byte {error.start}"
        return Decoded(pa.array(texts, self.type), BadRows(tuple(bad), tuple(bad.values())))
