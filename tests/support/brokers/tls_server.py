"""A TLS server for tests, and a client of the package that connects to it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trustme

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.network.transport import Transport
from spark_kafka_native.kafka.runtime.deadline import Deadline
from support.brokers.scripted_broker import properties

PASSWORD = "marked-passphrase"
"""Of the private keys and stores in the folder of certificates."""


class Listener:
    """A TLS server that sends one byte after each successful handshake."""

    def __init__(self, prepare: Callable[[ssl.SSLContext], Any]) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        prepare(self._context)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.clients: list[Any] = []
        self.server_names: list[str | None] = []
        self._context.sni_callback = lambda _sock, name, _context: self.server_names.append(name)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return
            try:
                encrypted = self._context.wrap_socket(accepted, server_side=True)
                self.clients.append(encrypted.getpeercert())
                encrypted.sendall(b"!")
                encrypted.recv(1)
                encrypted.close()
            except OSError:
                accepted.close()

    def close(self) -> None:
        # Closing alone would leave the thread in accept(), on a descriptor that the next socket gets.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def greet(listener: Listener, folder: Path, host: str = "localhost", **changed: Any) -> None:
    """Connect and read the greeting."""
    trust = {} if "ssl_truststore_certificates" in changed else {"ssl_truststore_location": folder / "ca.pem"}
    names = {"security_protocol": "SSL"} | trust | changed
    names = {name: value for name, value in names.items() if value is not None}
    config = ClientConfig.from_properties(properties("a:1", **names))
    limit = Deadline.after_ms(60_000)
    transport = Transport.connect(host, listener.port, config, limit)
    try:
        byte = memoryview(bytearray(1))
        while not transport.read_into(byte):
            assert transport.wait(transport.read_waits_for, limit)
        assert bytes(byte) == b"!"
    finally:
        transport.close()


def server(authority: trustme.CA, *names: str, **options: Any) -> Callable[[ssl.SSLContext], Any]:
    def prepare(context: ssl.SSLContext) -> None:
        authority.issue_cert(*(names or ("localhost", "127.0.0.1")), **options).configure_cert(context)

    return prepare


def wanting_client(authority: trustme.CA) -> Callable[[ssl.SSLContext], Any]:
    def prepare(context: ssl.SSLContext) -> None:
        server(authority)(context)
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED

    return prepare
