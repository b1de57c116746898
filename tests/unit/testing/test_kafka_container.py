"""A broker in a container that does not start; Docker is a stand-in."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from spark_kafka_native.testing.kafka_container import KafkaContainer


class StandInContainer:
    """As `testcontainers.core.container.DockerContainer`."""

    def __init__(self, _image: str) -> None:
        self.is_running = False

    def with_bind_ports(self, _container: int, _host: int) -> StandInContainer:
        return self

    def with_env(self, _name: str, _value: str) -> StandInContainer:
        return self

    def start(self) -> None:
        self.is_running = True

    def stop(self) -> None:
        self.is_running = False


@pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt, SystemExit])
def test_no_container_is_left_where_the_wait_for_its_broker_ends_early(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Ctrl-C, too: otherwise it would keep its port."""
    seen: list[StandInContainer] = []

    def wait_for_logs(container: StandInContainer, *_: Any, **__: Any) -> None:
        assert container.is_running
        seen.append(container)
        raise error

    container: Any = ModuleType("container")
    waiting: Any = ModuleType("waiting_utils")
    container.DockerContainer, waiting.wait_for_logs = StandInContainer, wait_for_logs
    for name, module in {
        "testcontainers": ModuleType("testcontainers"),
        "testcontainers.core": ModuleType("core"),
        "testcontainers.core.container": container,
        "testcontainers.core.waiting_utils": waiting,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(error), KafkaContainer():
        pass
    assert [one.is_running for one in seen] == [False]
