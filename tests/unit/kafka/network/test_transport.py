"""The end of a stream, as those see it who still use it."""

import socket
import ssl

from spark_kafka_native.kafka.network.deadline import Deadline
from spark_kafka_native.kafka.network.transport import READ, Transport, wait_for_streams


def test_a_shut_stream_still_encrypts_what_another_thread_writes():
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


def test_nobody_waits_for_a_stream_that_is_closed():
    reading, writing = socket.socketpair()
    assert wait_for_streams([(reading.fileno(), READ), (-1, READ)], Deadline.after_ms(60_000))
    assert not wait_for_streams([(reading.fileno(), READ)], Deadline.after_ms(1))
    reading.close()
    writing.close()
