"""The end of a stream, as reading and writing see it."""

import socket
import ssl

import pytest

from spark_kafka_native.kafka.errors import HandshakeClosedError
from spark_kafka_native.kafka.network.transport import READ, Transport, _handshake_failure, wait_for_streams
from spark_kafka_native.kafka.runtime.deadline import Deadline


def test_a_shut_stream_still_encrypts_another_threads_writes():
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    encrypted = context.wrap_socket(ours, server_hostname="broker", do_handshake_on_connect=False)
    transport = Transport(encrypted, "broker:1")
    transport.shut()
    assert encrypted._sslobj is not None, "it would write plain text from here on"
    assert transport.fileno() >= 0
    transport.close()
    assert transport.fileno() == -1
    theirs.close()


def test_a_closed_stream_is_not_waited_for():
    reading, writing = socket.socketpair()
    assert wait_for_streams([(reading.fileno(), READ), (-1, READ)], Deadline.after_ms(60_000))
    assert not wait_for_streams([(reading.fileno(), READ)], Deadline.after_ms(1))
    reading.close()
    writing.close()


@pytest.mark.parametrize("kind", [ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionResetError])
def test_a_port_that_hangs_up_in_the_handshake_is_taken_for_plaintext(kind):
    """Python's version decides which of the errors it is."""
    told = _handshake_failure(kind(6, "TLS/SSL connection has been closed (EOF) (_ssl.c:992)"), "broker:1")
    assert isinstance(told, HandshakeClosedError)
    assert "broker:1" in str(told)
    assert "security.protocol=PLAINTEXT" in str(told)
