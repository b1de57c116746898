import socket

import pytest

from spark_kafka_native.testing import processes
from spark_kafka_native.testing.processes import free_ports


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
