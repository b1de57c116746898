"""A message class at one version: bytes to a message, a message to bytes. Compiled once, then cached."""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import ProtocolError, UnsupportedVersionError
from .compile import compile_struct
from .message import Message
from .wire import Buffer, Read, Write, join_short

_LOG = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, eq=False)
class Codec(Generic[M]):
    """Reads and writes one message class at one version. Get it from `codec`."""

    message: type[M]
    version: int
    flexible: bool
    _read: Read
    _write: Write

    @property
    def _where(self) -> str:
        return f"{self.message.__name__} v{self.version}"

    def read(self, data: memoryview) -> M:
        """Read a message that fills ``data``; record sets in it are views of ``data``.

        Raises `ProtocolError` when the bytes break the rules. Bytes left over are an error before flexible
        versions; after, they are logged and dropped, for the tag section has told where the message ends.
        """
        message, end = self.read_start(data)
        if end != len(data):
            left_over = f"{self._where}: {len(data) - end} bytes are left over after byte {end}"
            if not self.flexible:
                raise ProtocolError(left_over)
            _log_once(self._where, left_over)
        return message

    def read_start(self, data: memoryview) -> tuple[M, int]:
        """Read a message at the start of ``data``; where it ends. What follows may be fields of a later
        version. Raises `ProtocolError` when the bytes break the rules.
        """
        try:
            return self._read(data, 0)
        except ProtocolError as error:
            raise ProtocolError(f"{self._where}, {len(data)} bytes: {error}") from error
        except (struct.error, IndexError) as error:
            raise ProtocolError(f"{self._where}: cut off after {len(data)} bytes") from error
        except UnicodeDecodeError as error:
            raise ProtocolError(
                f"{self._where}, {len(data)} bytes: a string is not UTF-8 ({error})"
            ) from error

    def write(self, message: M) -> list[Buffer]:
        """Write a message as buffers to be sent one after the other; a long record set is not copied.

        Raises `UnsupportedVersionError` for a value that this version cannot carry, `ValueError` for one that
        its type cannot hold.
        """
        out: list[Buffer] = []
        try:
            self._write(message, out)
        except ValueError as error:
            raise ValueError(f"{self._where}: {error}") from error
        return join_short(out)


_CODECS: dict[tuple[type[Message], int], Codec[Any]] = {}


def codec(message: type[M], version: int) -> Codec[M]:
    """The codec of ``message`` at ``version``; `UnsupportedVersionError` outside the declared versions."""
    found = _CODECS.get((message, version))
    if found is None:
        found = _CODECS[message, version] = _compile_message(message, version)
    return found


def _compile_message(message: type[M], version: int) -> Codec[M]:
    lowest, highest = message.versions
    if not lowest <= version <= highest:
        raise UnsupportedVersionError(
            f"{message.__name__} is declared for versions {lowest} to {highest}, not {version}"
        )
    flexible = version >= message.flexible
    compiled = compile_struct(message, version, flexible=flexible)
    return Codec(message, version, flexible, compiled.read, compiled.write)


_LOGGED: set[str] = set()


def _log_once(where: str, text: str) -> None:
    """Once per message and version: it comes with every response of that broker, or never."""
    if where not in _LOGGED:
        _LOGGED.add(where)
        _LOG.warning("%s; they are ignored", text)
