"""`ColumnEncoding`: typed keys and values of columns become bytes, before they are records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from ...errors import ConfigError
from ...records.columns import RecordColumns
from ...security.config_providers import resolve_registry
from ..errors import RecordError
from .records_in import Columns, as_arrow, column_of, header_column, in_one_piece

if TYPE_CHECKING:
    # Imported late elsewhere: a producer of bytes has no use for it.
    from ....formats import ColumnFormat, Encoder

FormatLike: TypeAlias = "str | ColumnFormat"
"""The name of a format, or more about it."""


class ColumnEncoding:
    """Encoders that a producer uses. The schema of a topic is looked up once: one that changes later changes
    nothing."""

    def __init__(self) -> None:
        self._encoders: dict[Any, Encoder] = {}
        """By format, payload, topic and type."""

    def encode(
        self, columns: Columns, topic: str | None, formats: Mapping[str, FormatLike | None]
    ) -> Columns:
        """``columns`` with those that ``formats`` name (``key``, ``value``) as binary.

        ``topic`` is that of all rows, None if a column says it. Raises `RecordError` with the row that can't
        be encoded, `ConfigError` for a type or a setting that a format can't work with.
        """
        given = {payload: one for payload, one in formats.items() if one is not None}
        if isinstance(columns, RecordColumns):
            headers = header_column(columns.headers)
            encoded: dict[str, Any] = {}
            for payload, one in given.items():
                encoded[payload], headers = self._encoded(
                    getattr(columns, payload), headers, payload, topic, one
                )
            return replace(columns, **encoded, headers=headers)
        batch = as_arrow(columns)
        was = column_of(batch, "headers")
        headers = header_column(was)
        for payload, one in given.items():
            places = batch.schema.get_all_field_indices(payload)
            if len(places) != 1:
                raise RecordError(
                    f"{payload}_format: there are {len(places)} columns '{payload}' among "
                    f"{', '.join(batch.schema.names)}"
                )
            array, headers = self._encoded(batch.column(places[0]), headers, payload, topic, one)
            batch = batch.set_column(places[0], payload, array)
        if headers is None:
            return batch
        if was is None:
            return batch.append_column("headers", headers)
        return batch.set_column(batch.schema.get_field_index("headers"), "headers", headers)

    def _encoded(
        self, column: Any, headers: pa.Array | None, payload: str, topic: str | None, given: FormatLike
    ) -> tuple[pa.Array | None, pa.Array | None]:
        """The payloads of a column, and the ``headers`` of its records."""
        from ....formats import ColumnFormat, EncodeError, FormatError, with_header_ids
        from ....formats.bad_records import encode_column
        from ....formats.plain_types import as_plain

        if column is None or pa.types.is_null(column.type):
            return column, headers
        name = given if isinstance(given, str) else given.name
        rows = in_one_piece(column, payload)
        try:
            rows = as_plain(rows)
            rows = rows if isinstance(given, str) else given.typed(rows)
            place = (given, payload, topic, rows.type)
            if place not in self._encoders:
                known = ColumnFormat.of(given).with_settings(resolve_registry)
                self._encoders[place] = known.encoder(rows.type, payload, topic)
            encoder = self._encoders[place]
            payloads = encode_column(encoder, rows, f"'{name}' of the {payload}")
            return payloads, with_header_ids(encoder, payload, payloads, headers)
        except EncodeError as error:
            raise RecordError(f"the {payload} can't be encoded: {error.reason}", None, error.row) from error
        except FormatError as error:
            raise ConfigError(f"{payload}_format={name}: {error}") from error
