"""`WireFile`: a descriptor for `ptars` with the fields that one type needs, and no others.

Its messages mirror those of the user by field numbers. Every field is ``optional``, so each says whether
it was present; a map is a list of its entries, an enum a number. One message stands for one place in
the type: a recursive message is as deep as the type is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ..arrays import offsets_and_data
from ..errors import FormatError

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

MAX_MESSAGES: Final = 10_000
"""Places of messages in one type."""
MAX_GROUPS: Final = 10_000
"""Groups in one another that `ptars` may meet: it skips them by recursion, 80 bytes of stack for each."""
_PACKAGE: Final = "pykafka"
_OPTIONAL, _REPEATED = 1, 3  # FieldDescriptorProto.Label
_START_GROUP: Final = 3


class WireField(NamedTuple):
    """A field of a message. Its name is ``f`` and its number."""

    number: int
    declared: tuple[int, str]
    """Its type, and the name of its message."""
    is_repeated: bool = False
    oneof: int | None = None
    """A number for the oneof that it is a member of."""


@dataclass
class WireFile:
    """The file while it is made."""

    messages: list[Sequence[WireField]] = field(default_factory=list)

    def add_message(self, fields: Sequence[WireField]) -> str:
        """The name of a new message. Raises `FormatError` if there are too many."""
        if len(self.messages) >= MAX_MESSAGES:
            raise FormatError(f"The type has more than {MAX_MESSAGES} messages in it")
        self.messages.append(fields)
        return f".{_PACKAGE}.M{len(self.messages) - 1}"

    def width(self) -> int:
        """The most columns that one repeated message has, those of messages in it included."""
        return max(len(fields) for fields in self.messages) + len(self.messages)

    def build(self) -> FileDescriptorProto:
        """The file as a descriptor."""
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        proto = FileDescriptorProto(name="pykafka.proto", package=_PACKAGE, syntax="proto3")
        for index, fields in enumerate(self.messages):
            message = proto.message_type.add(name=f"M{index}")
            oneofs = sorted({one.oneof for one in fields if one.oneof is not None})
            for oneof in oneofs:
                message.oneof_decl.add(name=f"o{oneof}")
            for one in sorted(fields):
                _add_field(message, one, oneofs)
        return proto


def _add_field(message: Any, one: WireField, oneofs: list[int]) -> None:
    kind, name = one.declared
    added = message.field.add(name=f"f{one.number}", number=one.number, type=kind)
    added.label = _REPEATED if one.is_repeated else _OPTIONAL
    if name:
        added.type_name = name
    if one.oneof is not None:
        added.oneof_index = oneofs.index(one.oneof)
    elif not one.is_repeated:
        # proto3 says `optional` with a oneof of one field (implementing_proto3_presence.md).
        added.proto3_optional = True
        added.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_f{one.number}")


class WireEngine:
    """Payloads to raw columns and back, under the message ``name`` of ``file``."""

    def __init__(self, file: WireFile, name: str) -> None:
        import ptars
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message_factory import GetMessageClass

        pool = DescriptorPool()
        pool.Add(file.build())
        self._descriptor = pool.FindMessageTypeByName(name.removeprefix("."))
        self._handler: Any = ptars.HandlerPool([self._descriptor.file]).get_for_message(self._descriptor)
        self._class: Any = GetMessageClass(self._descriptor)

    def read(self, payloads: pa.Array) -> pa.RecordBatch:
        """A raw column for each field; a null is as an empty payload. Raises `ValueError` if one of
        ``payloads`` is no message. Ends the process for one of `too_deep`."""
        try:
            return self._handler.array_to_record_batch(payloads)
        except BaseException as error:
            # A length near 2**64 wraps in `ptars`, which Rust notices. That is no subclass of Exception.
            if type(error).__name__ == "PanicException":
                raise ValueError(f"{error}") from None
            raise

    def too_deep(self, payloads: pa.Array) -> list[int]:
        """Which of ``payloads`` may have more than `MAX_GROUPS` groups in one another: they have enough bytes
        that may begin one, and the reference implementation, which has a limit of 100, refuses them."""
        offsets, data = offsets_and_data(payloads)
        if len(offsets) < 2 or (sizes := np.diff(offsets)).max() <= MAX_GROUPS:
            return []
        rows = np.flatnonzero(sizes > MAX_GROUPS)
        edges = zip(rows.tolist(), offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)
        # In text a quarter of the bytes may begin a group.
        many = [
            row
            for row, start, end in edges
            if np.count_nonzero((data[start:end] & 7) == _START_GROUP) > MAX_GROUPS
        ]
        values = ((row, payloads[row].as_py()) for row in many)
        return [row for row, one in values if one is not None and not self.is_message(one)]

    def write(self, columns: pa.RecordBatch) -> pa.Array:
        """A binary array without nulls."""
        return self._handler.record_batch_to_array(columns)

    def is_message(self, payload: bytes) -> bool:
        """True if `read` takes it, as far as the reference implementation sees it."""
        return self.normalize(payload) is not None

    def normalize(self, payload: bytes) -> bytes | None:
        """``payload`` with one member of each oneof, the last; None if it is no message."""
        from google.protobuf.message import DecodeError

        try:
            return bytes(self._class.FromString(payload).SerializeToString())
        except (DecodeError, ValueError, RecursionError):  # the last by its Python twin
            return None
