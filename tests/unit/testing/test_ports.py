import socket

import pytest

from spark_kafka_native.testing import EmbeddedKafka, processes
from spark_kafka_native.testing.processes import free_ports, is_free


def test_all_different_and_below_the_ports_of_outgoing_connections():
    found = free_ports(50)
    assert len(set(found)) == 50
    assert all(20_000 <= port < 32_768 for port in found)


def test_a_port_in_use_is_not_free(monkeypatch):
    port = free_ports(1)[0]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        monkeypatch.setattr(processes, "_FIRST_PORT", port)
        monkeypatch.setattr(processes, "_LAST_PORT", port)
        with pytest.raises(OSError, match="no 1 free ports"):
            free_ports(1)
    assert free_ports(1) == [port]


def test_a_port_with_connections_of_a_server_that_has_ended_is_free():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            listening.accept()[0].close()  # it closes first: its side of the connection stays in TIME_WAIT
            assert client.recv(1) == b""
    assert is_free("127.0.0.1", port)


def test_ports_that_end_behind_the_last_one_are_refused():
    EmbeddedKafka(3, port=65_533)
    with pytest.raises(ValueError, match="port is 65534: the first of these listeners has at most 65533"):
        EmbeddedKafka(3, port=65_534)
