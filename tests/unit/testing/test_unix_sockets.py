from pathlib import Path

import pytest

from spark_kafka_native.testing.local_spark import unix_socket_settings


@pytest.mark.parametrize(("length", "enabled"), [(4, "true"), (60, "true"), (61, "false"), (200, "false")])
def test_sockets_only_where_their_path_fits(length, enabled):
    folder = "/" + "f" * (length - 1)
    assert unix_socket_settings(Path(folder)) == {
        "spark.python.unix.domain.socket.enabled": enabled,
        "spark.python.unix.domain.socket.dir": folder,
    }


def test_a_path_with_letters_of_two_bytes():
    assert unix_socket_settings(Path("/" + "ä" * 31))["spark.python.unix.domain.socket.enabled"] == "false"
