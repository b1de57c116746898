"""`TypedRecords`: records of one partition with decoded keys and values; `RecordTyping` decodes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from ..errors import ConfigError, MalformedRecordError
from ..model import CLIENT_MODES, CORRUPT_COLUMN, ERROR_COLUMN, BadRecordMode, TopicPartition
from ..records.columns import max_topic_rows
from ..security.config_providers import resolve_registry
from .fetched_records import FetchedRecords

if TYPE_CHECKING:
    # Imported late elsewhere: a consumer of bytes has no use for it.
    from ...formats import ColumnFormat, Decoded, Decoder
    from ...formats.bad_records import BadRecords
    from ...formats.registry import SchemaRegistry

FormatLike: TypeAlias = "str | ColumnFormat"
"""The name of a format, or more about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRecords:
    """Records of one partition, in offset order, as `FetchedRecords`, with typed keys and values."""

    topic_partition: TopicPartition
    batch: pa.RecordBatch
    """The columns of `RecordColumns.to_arrow` (``key``, ``value``, ``headers``, ``topic``, ``partition``,
    ``offset``, ``timestamp``, ``timestamp_type``), as far as they are read. A key or value with a format has
    the type of the format. With ``mode="permissive"`` also ``_corrupt_record`` (binary) and ``_error``
    (string)."""
    bad: int
    """How many records could not be decoded."""
    from_offset: int
    next_offset: int
    """Where the next records of this partition start."""
    log_start_offset: int
    """-1 if the broker does not report it."""
    high_watermark: int
    last_stable_offset: int


class RecordTyping:
    """How the records that a consumer reads are decoded. Looks up the schemas of a topic when its first
    records come: a schema that changes later changes nothing."""

    def __init__(self, formats: Mapping[str, FormatLike | None], mode: str) -> None:
        """``formats`` by payload: ``key`` and ``value``. Raises `ConfigError`."""
        from ...formats import ColumnFormat

        if mode not in CLIENT_MODES:
            raise ConfigError(f"mode is {', '.join(CLIENT_MODES)}, not {mode!r}")
        self._mode = BadRecordMode(mode)
        self._given: dict[str, ColumnFormat] = {}
        """By payload, as they were given: with references to files."""
        self._formats: dict[str, ColumnFormat] = {}
        """With the content of those."""
        for payload, given in formats.items():
            if given is not None:
                with config_errors(payload, given):
                    self._given[payload] = ColumnFormat.of(given)
                    self._formats[payload] = self._given[payload].with_settings(resolve_registry)
        self._decoders: dict[tuple[str, str], tuple[Decoder, pa.DataType]] = {}
        """By payload and topic."""
        self._registries: dict[str, list[SchemaRegistry]] = {}
        """That decoders use, by payload: one that was looked up with other credentials is another object."""

    def decode(self, fetched: FetchedRecords) -> tuple[TypedRecords, FetchedRecords | None]:
        """``fetched`` decoded, and those of the records that are to be read again: with ``failfast`` the bad
        one and all after it, and those that are too many for one record batch.

        Raises `MalformedRecordError` if the first record is bad, `ConfigError` for a schema or a setting that
        a format can't work with.
        """
        row = max_topic_rows(fetched.topic_partition.topic)
        if fetched.columns.length > row:
            first, _ = _split(fetched, row)
            typed, again = self._decode(first)
            return typed, _split(fetched, row if again is None else row - again.columns.length)[1]
        return self._decode(fetched)

    def _decode(self, fetched: FetchedRecords) -> tuple[TypedRecords, FetchedRecords | None]:
        from ...formats.bad_records import BadRecords

        bad = BadRecords()
        arrays: dict[str, Any] = {}
        for payload, given in self._formats.items():
            decoded = self._decoded(fetched, payload, given)
            arrays[payload] = decoded.array
            bad.add(payload, decoded.bad)
        if bad and self._mode is BadRecordMode.FAILFAST:
            return self._before(fetched, arrays, bad)
        return self._typed(fetched, arrays, bad), None

    def _decoded(self, fetched: FetchedRecords, payload: str, given: ColumnFormat) -> Decoded:
        from ...formats.registry import CredentialsError

        with config_errors(payload, given):
            try:
                return self._decoded_once(fetched, payload, given)
            except CredentialsError:
                if not self._has_renewed_login(payload):
                    raise
                return self._decoded_once(fetched, payload, self._formats[payload])

    def _has_renewed_login(self, payload: str) -> bool:
        """Read the references to the credentials again: a consumer outlives a token. The decoders stay, and
        with them the schemas. False if they say the same as before."""
        renewed = self._given[payload].with_settings(resolve_registry)
        is_new = renewed != self._formats[payload]
        self._formats[payload] = renewed
        # All of them, and even if the format knows the credentials: another consumer may share one.
        changed = [one.renew(dict(renewed.settings)) for one in self._registries.get(payload, ())]
        return is_new or any(changed)

    def _decoded_once(self, fetched: FetchedRecords, payload: str, given: ColumnFormat) -> Decoded:
        from ...formats import HeaderDecoder, header_ids
        from ...formats.bad_records import decode_column
        from ...formats.registry import SchemaRegistry

        payloads = getattr(fetched.columns, payload)
        if payloads is None:
            raise ConfigError(f"{payload}_format: this consumer reads no {payload}s (columns=)")
        topic = fetched.topic_partition.topic
        if (payload, topic) not in self._decoders:
            settings = dict(given.settings)
            registry = SchemaRegistry.from_settings(settings) if "registry.url" in settings else None
            known = self._registries.setdefault(payload, [])
            if registry is not None and registry not in known:
                known.append(registry)
            self._decoders[payload, topic] = given.decoder(payload, topic)
        decoder, kind = self._decoders[payload, topic]
        ids = None
        if isinstance(decoder, HeaderDecoder):
            if fetched.columns.headers is None:
                raise ConfigError(
                    f"{payload}_format: a header may name the schema of a {payload}, and this consumer "
                    "reads no headers: add 'headers' to its columns="
                )
            ids = header_ids(fetched.columns.headers, payload)
        return decode_column(decoder, payloads, kind, f"'{given.name}' of the {payload}", ids)

    def _before(
        self, fetched: FetchedRecords, arrays: Mapping[str, Any], bad: BadRecords
    ) -> tuple[TypedRecords, FetchedRecords]:
        """The records before the first bad one, and the others."""
        row, offsets = bad.rows[0], fetched.columns.offset
        assert offsets is not None  # every read has it
        offset = int(offsets[row])
        if row == 0:
            raise MalformedRecordError(fetched.topic_partition, offset, bad.reason(row))
        good, rest = _split(fetched, row)
        cut = {payload: array[:row] for payload, array in arrays.items()}
        return self._typed(good, cut, type(bad)()), rest

    def _typed(self, fetched: FetchedRecords, arrays: Mapping[str, Any], bad: BadRecords) -> TypedRecords:
        columns, length = fetched.columns, fetched.columns.length
        batch = replace(columns, **arrays).to_arrow(*fetched.topic_partition)
        if self._mode is BadRecordMode.PERMISSIVE:
            payloads: dict[str, Any] = {"key": columns.key, "value": columns.value}
            corrupt = bad.payloads(payloads, length, pa.binary())
            batch = batch.append_column(CORRUPT_COLUMN, corrupt)
            batch = batch.append_column(ERROR_COLUMN, bad.reasons(length, pa.string()))
        elif bad and self._mode.leaves_out:
            batch = batch.filter(bad.good(length))
        return TypedRecords(
            topic_partition=fetched.topic_partition,
            batch=batch,
            bad=len(bad.rows),
            from_offset=fetched.from_offset,
            next_offset=fetched.next_offset,
            log_start_offset=fetched.log_start_offset,
            high_watermark=fetched.high_watermark,
            last_stable_offset=fetched.last_stable_offset,
        )


def _split(fetched: FetchedRecords, row: int) -> tuple[FetchedRecords, FetchedRecords]:
    """The records before ``row``, and the others."""
    columns = fetched.columns
    assert columns.offset is not None  # every read has it
    offset = int(columns.offset[row])
    return (
        replace(fetched, columns=columns.slice(0, row), next_offset=offset),
        replace(fetched, columns=columns.slice(row, columns.length), from_offset=offset),
    )


@contextmanager
def config_errors(payload: str, given: FormatLike) -> Iterator[None]:
    """Errors of the format of the ``payload`` as `ConfigError` that names it."""
    from ...formats import FormatError

    try:
        yield
    except FormatError as error:
        name = given if isinstance(given, str) else given.name
        raise ConfigError(f"{payload}_format={name}: {error}") from error
