"""`KafkaColumn`: one of Kafka's columns as an Arrow array of the type that the DataFrame wants.

No copy of keys and values; nothing here costs a Python object per record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...kafka.errors import ConfigError
from ...kafka.records.columns import RecordColumns, wrap_numpy
from ..conditions import KafkaConditionError
from .origin import Origin

_FIELDS: Final = {"timestamp": "timestamp_ms", "timestampType": "timestamp_type"}
"""`RecordColumns` fields that are spelt differently."""
_WITHOUT_FIELD: Final = ("topic", "partition")
_MAX_TIMESTAMP_MS: Final = (2**63 - 1) // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaColumn:
    """A column source of one column. Plain data: pickled with the reader."""

    name: str
    """Kafka's name."""
    field: pa.Field
    """What Spark wants, under the user's name."""

    @property
    def record_fields(self) -> frozenset[str]:
        """The fields of `RecordColumns` that have to be decoded for it."""
        wanted = set() if self.name in _WITHOUT_FIELD else {_FIELDS.get(self.name, self.name)}
        # Errors name the offset.
        return frozenset(wanted | {"offset"} if self._can_fail else wanted)

    @property
    def _can_fail(self) -> bool:
        """Whether a record can have a value that the column can't show."""
        is_text = pa.types.is_string(self.field.type) and self.name != "topic"
        return is_text or pa.types.is_timestamp(self.field.type) or not self.field.nullable

    def build(self, records: RecordColumns, origin: Origin) -> Mapping[str, pa.Array]:
        """The column under its name, as long as ``records``.

        Raises `KafkaConditionError` for a timestamp that Spark can't hold, `ConfigError` for text that is not
        UTF-8 or a null where the schema says not null; both name topic-partition and offset.
        """
        return {self.field.name: self._array(records, origin)}

    def _array(self, records: RecordColumns, origin: Origin) -> pa.Array:
        match self.name:
            case "topic":
                return origin.topics()
            case "partition":
                return origin.partitions()
            case "offset":
                offsets: Any = records.offset
                return wrap_numpy(offsets, self.field.type)
            case "timestamp":
                return wrap_numpy(_to_microseconds(records, origin), self.field.type)
            case "timestampType":
                types: Any = records.timestamp_type
                return wrap_numpy(types.astype(np.int32), self.field.type)
            case _:
                return self._payload(records, origin)

    def _payload(self, records: RecordColumns, origin: Origin) -> pa.Array:
        """Key, value or headers."""
        array = self._convert(getattr(records, self.name), records, origin)
        if not self.field.nullable and array.null_count:
            row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            raise ConfigError(
                f"{origin.at(row)}{_describe_row(records, row)}: `{self.field.name}` is null, but "
                "the schema says NOT NULL; declare the column nullable"
            )
        return array

    def _convert(self, array: pa.Array, records: RecordColumns, origin: Origin) -> pa.Array:
        kind = self.field.type
        if self.name == "headers":
            return _relabel(array, kind)
        if array.type == kind:
            return array
        try:
            return array.cast(kind)
        except pa.ArrowInvalid as error:
            row = _first_not_utf8(array)
            where = f"{origin.at(row)}{_describe_row(records, row)}"
            raise ConfigError(f"{where}: the {self.name} is not UTF-8; read the column as binary") from error


def _describe_row(records: RecordColumns, row: int) -> str:
    return "" if records.offset is None else f" at offset {int(records.offset[row])}"


def _to_microseconds(records: RecordColumns, origin: Origin) -> npt.NDArray[np.int64]:
    timestamp_ms: Any = records.timestamp_ms
    if len(timestamp_ms) and (
        timestamp_ms.max() > _MAX_TIMESTAMP_MS or timestamp_ms.min() < -_MAX_TIMESTAMP_MS
    ):
        beyond = (timestamp_ms > _MAX_TIMESTAMP_MS) | (timestamp_ms < -_MAX_TIMESTAMP_MS)
        row = int(np.flatnonzero(beyond)[0])
        offset = "?" if records.offset is None else int(records.offset[row])
        raise KafkaConditionError(
            "KAFKA_MALFORMED_RECORD_TIMESTAMP",
            {"timestampMs": int(timestamp_ms[row]), "offset": offset, "topicPartition": origin.at(row)},
        )
    microseconds: npt.NDArray[np.int64] = timestamp_ms * 1000
    return microseconds


def _first_not_utf8(array: pa.Array) -> int:
    """The first row that doesn't cast: found by halving, as an error does not tell."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            array.slice(low, middle - low).cast(pa.string())
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _relabel(array: pa.Array, kind: Any) -> pa.Array:
    """The same memory under a type that differs in the names and nullability inside only."""
    if array.type.equals(kind, check_metadata=True):
        return array
    children = []
    if pa.types.is_list(kind):
        children = [_relabel(array.values, kind.value_type)]
    elif pa.types.is_struct(kind):
        children = [_relabel(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        # `field` has applied the struct's offset: with `from_buffers` it would be applied once more.
        nulls = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    # Only the array's own buffers: children bring theirs.
    own = array.buffers()[: 2 if pa.types.is_list(kind) else 1]
    return pa.Array.from_buffers(kind, len(array), own, array.null_count, array.offset, children)
