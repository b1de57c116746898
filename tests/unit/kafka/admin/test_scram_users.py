"""Users of SCRAM: settings that are refused before any broker is asked."""

from __future__ import annotations

import pytest

from spark_kafka_native.kafka.admin.admin import Admin


@pytest.mark.parametrize("iterations", [0, 4_095, 16_385, 1_000_000])
def test_iterations_that_a_broker_would_refuse(iterations: int) -> None:
    with (
        Admin("127.0.0.1:1") as admin,
        pytest.raises(ValueError, match=f"iterations must be from 4096 to 16384, not {iterations}"),
    ):
        admin.set_scram_user("carol", "secret", iterations=iterations)


@pytest.mark.parametrize(("user", "password"), [("", "secret"), ("carol", "")])
def test_empty_names_and_passwords(user: str, password: str) -> None:
    with Admin("127.0.0.1:1") as admin, pytest.raises(ValueError, match="texts that are not empty"):
        admin.set_scram_user(user, password)
