"""`Peer`: one connection of a test; its frames follow Kafka's specification, with none of our code."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any

from spark_kafka_native.testing.mock.message_spec import message_specs

WITHIN_S = 120


class Peer:
    """One connection, without any client of ours."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=WITHIN_S)

    def send(self, api: str, fields: dict[str, Any], version: int) -> None:
        spec = message_specs()[f"{api}Request"]
        assert spec.api_key is not None
        tags = b"\0" if version in spec.flexible else b""
        body = struct.pack(">hhih", spec.api_key, version, 7, 1) + b"c" + tags + spec.write(fields, version)
        self.socket.sendall(struct.pack(">i", len(body)) + body)

    def receive(self, api: str, version: int) -> dict[str, Any]:
        (length,) = struct.unpack(">i", self.read(4))
        spec = message_specs()[f"{api}Response"]
        return spec.read(self.read(length)[5 if version in spec.flexible else 4 :], version)

    def ask(self, api: str, fields: dict[str, Any], version: int) -> dict[str, Any]:
        self.send(api, fields, version)
        return self.receive(api, version)

    def read(self, size: int) -> bytes:
        """Read ``size`` bytes, or fewer if the connection ends before."""
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while len(found) < size and (part := self.socket.recv(size - len(found))):
                found += part
        return found

    def close(self) -> None:
        self.socket.close()
