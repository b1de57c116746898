"""One broker of an `EmbeddedKafka`: its process, its folder, and what can be done to it."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from .broker_image import STARTED, BrokerImage
from .broker_properties import HOST, Ports
from .errors import BrokerStartError
from .guard import Guard, GuardedProcess


class EmbeddedBroker:
    """A broker in a process of its own. Made by `EmbeddedKafka`; used by one thread at a time.

    ``folder`` holds ``server.properties``, the data under ``log/`` and what the broker said in ``output``.
    """

    def __init__(  # noqa: PLR0913 - what a process is started with
        self,
        *,
        guard: Guard,
        image: BrokerImage,
        node_id: int,
        ports: Ports,
        folder: Path,
        jvm_options: Sequence[str],
        startup_timeout_s: float,
    ) -> None:
        self.node_id = node_id
        self.ports = ports
        self.folder = folder
        self._guard = guard
        self._command = image.command(folder / "server.properties", jvm_options)
        self._startup_timeout_s = startup_timeout_s
        self._process: GuardedProcess | None = None
        self._output_start = 0

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else "not running"
        return f"EmbeddedBroker(node_id={self.node_id}, {state}, folder={str(self.folder)!r})"

    @property
    def output(self) -> Path:
        """The file with everything the broker wrote, over all its starts."""
        return self.folder / "output"

    @property
    def pid(self) -> int | None:
        """Process id of its last start, None before the first."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """True while its process exists, paused or not."""
        return self._process is not None and self._process.returncode is None

    def address(self, listener: str) -> str:
        """``host:port`` of a client listener; `KeyError` names one that the broker lacks."""
        return f"{HOST}:{self.ports.listeners[listener]}"

    def start(self) -> None:
        """Start it without waiting; see `await_ready`. Data from an earlier run is kept."""
        self._output_start = self.output.stat().st_size if self.output.exists() else 0
        self._process = self._guard.start(self._command, output=self.output, cwd=self.folder)

    def await_ready(self) -> None:
        """Wait until the broker serves clients.

        `BrokerStartError` with the end of its output when it never does.
        """
        deadline = time.monotonic() + self._startup_timeout_s
        while not (said := self._said()).count(STARTED):
            if not self.running:
                raise BrokerStartError(f"broker {self.node_id} ended while starting", said)
            if time.monotonic() > deadline:
                raise BrokerStartError(
                    f"broker {self.node_id} was not ready after {self._startup_timeout_s:g} s", said
                )
            time.sleep(0.03)

    def kill(self) -> None:
        """SIGKILL: it ends at once, without a goodbye to its clients, and flushes nothing."""
        self._end(signal.SIGKILL, 10)

    def stop(self, timeout_s: float = 30) -> None:
        """SIGTERM: it hands over its leaderships and closes its logs.

        Killed when it takes longer than ``timeout_s``.
        """
        try:
            self._end(signal.SIGTERM, timeout_s)
        except TimeoutError:
            self.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        if self._process:
            self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on from where `pause` held it."""
        if self._process:
            self._process.send(signal.SIGCONT)

    def restart(self, *, graceful: bool = True) -> None:
        """Stop it (kill it, if not ``graceful``) and start it on its ports and data; returns when ready."""
        if self.running:
            self.stop() if graceful else self.kill()
        self.start()
        self.await_ready()

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        if self._process and self._process.send(number):
            if number == signal.SIGTERM:
                self._process.send(signal.SIGCONT)  # a paused broker hears it only once it goes on
            self._process.wait(timeout_s)

    def _said(self) -> str:
        with self.output.open("rb") as file:
            file.seek(self._output_start)
            return file.read().decode(errors="replace")
