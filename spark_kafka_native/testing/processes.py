"""Processes that never outlive us, and free ports for them.

`Guard` is our side of `guard_process`, which starts them; an `EmbeddedService` has a guard of its own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from .errors import GuardError

_ANSWER_S = 120.0
"""For an answer, and for the end of everything: a machine may be busy, and no caller may wait for ever."""

# Below the ports that the kernel hands to outgoing connections (32768 up on Linux, 49152 up on macOS): a
# broker that restarts must find its port still free, however many clients connected somewhere in between.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000


class Guard:
    """Owns a temporary folder and every process started through it.

    All of it ends with `close` or with this process, whichever comes first. Safe to use from several threads;
    a signal handler may close it.
    """

    def __init__(self, prefix: str = "spark-kafka-native-") -> None:
        self._lock = threading.RLock()
        self._commands = 0
        self._received = b""
        self._owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_ANSWER_S)
        script = str(Path(__file__).with_name("guard_process.py"))
        with theirs:
            self._process = subprocess.Popen(
                # -I and -S: nothing of the user's environment, and up in 20 ms
                [sys.executable, "-I", "-S", script, str(os.getpid()), prefix],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,  # or a reader of our piped output would wait for the guard
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        answer = self._receive()
        if "error" in answer:
            self._socket.close()
            self._process.wait(_ANSWER_S)
            raise GuardError(answer["error"])
        self.folder = Path(answer["folder"])
        self.pid = self._process.pid

    def start(
        self,
        argv: Sequence[str],
        *,
        output: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> GuardedProcess:
        """Start ``argv`` in a process group of its own; what it prints is appended to the file ``output``."""
        answer = self._ask(
            verb="start",
            argv=list(argv),
            output=str(output),
            env=dict(os.environ if env is None else env),
            cwd=str(cwd or self.folder),
        )
        return GuardedProcess(self, answer["pid"])

    def close(self) -> None:
        """Kill every process, remove the folder; returns when both are gone. Harmless when repeated.

        Called by a signal handler, it ends a command that waits for its answer with a `GuardError`. In a
        fork it closes the fork's end alone: the processes are the parent's.
        """
        if os.getpid() != self._owner:  # before the lock, which a thread of the parent may have held
            self._socket.close()
            return
        with self._lock:
            if self._socket.fileno() < 0:
                return
            with suppress(OSError):  # it died before; its children died with it
                self._socket.sendall(b'{"verb": "close"}\n')
            self._socket.close()
        self._await_end()
        shutil.rmtree(self.folder, ignore_errors=True)  # done already, unless the guard was killed

    def _await_end(self) -> None:
        try:
            self._process.wait(_ANSWER_S)
        except subprocess.TimeoutExpired as error:
            self._process.kill()  # on Linux, its children get a SIGKILL with that
            self._process.wait(_ANSWER_S)
            raise GuardError(
                f"what the guard process {self.pid} ran in {self.folder} had not ended {_ANSWER_S:g} s after "
                "a SIGKILL"
            ) from error

    def _ask(self, **command: Any) -> dict[str, Any]:
        if os.getpid() != self._owner:  # the parent would read the answer
            raise GuardError("it belongs to the process that has started it, not to a fork")
        with self._lock:
            if self._socket.fileno() < 0:
                raise GuardError("it is closed, and what it ran has ended")
            self._commands += 1
            command["id"] = self._commands
            try:
                self._socket.sendall(json.dumps(command).encode() + b"\n")
            except OSError as error:
                raise GuardError(f"the guard process {self.pid} is gone, and what it ran with it") from error
            answer = self._receive()
            while answer["id"] < self._commands:  # Ctrl-C left the answer to an earlier command unread
                answer = self._receive()
        if "error" in answer:
            raise GuardError(answer["error"])
        return answer

    def _receive(self) -> dict[str, Any]:
        try:
            while b"\n" not in self._received:
                part = self._socket.recv(1 << 16)
                if not part:
                    break
                self._received += part
        except TimeoutError as error:
            raise GuardError(
                f"the guard process {self._process.pid} gave no answer for {_ANSWER_S:g} s"
            ) from error
        except OSError:  # it was killed with a command of ours unread, or a signal handler has closed it
            pass
        line, end, self._received = self._received.partition(b"\n")
        if not end:
            raise GuardError(f"the guard process {self._process.pid} is gone, and what it ran with it")
        answer: dict[str, Any] = json.loads(line)
        return answer


class GuardedProcess:
    """One process under a `Guard`. Signals go to its whole group."""

    def __init__(self, guard: Guard, pid: int) -> None:
        self._guard = guard
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, ``-n`` when signal ``n`` ended it, None while it runs."""
        code: int | None = self._guard._ask(verb="poll", pid=self.pid)["returncode"]
        return code

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process has ended."""
        sent: bool = self._guard._ask(verb="signal", pid=self.pid, signal=int(number))["sent"]
        return sent

    def wait(self, timeout_s: float) -> int:
        """Its exit code; `TimeoutError` when it still runs after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while (code := self.returncode) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {self.pid} still runs after {timeout_s:g} s")
            time.sleep(0.02)
        return code


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """``count`` different ports that have no listener now.

    Another process may still take one before its use.
    """
    found: list[int] = []
    randomness = random.SystemRandom()
    for _ in range(1000 * count):
        port = randomness.randint(_FIRST_PORT, _LAST_PORT)
        if port not in found and is_free(host, port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free ports between {_FIRST_PORT} and {_LAST_PORT} on {host}")


def is_free(host: str, port: int) -> bool:
    """True if a server can listen on ``port`` (0 to 65535) of ``host`` now."""
    with socket.socket() as probe:
        # As servers do: connections of one that has ended hold its port for a minute (TIME_WAIT) otherwise.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError:
            return False
    return True


class EmbeddedService(ABC):
    """A server that runs as long as a ``with`` block, in a folder of its own, and never longer than this
    process."""

    _folder_prefix: ClassVar[str]
    _guard: Guard | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Start it and wait until it serves clients. The ``with`` statement calls it."""
        if self._guard is not None:
            raise RuntimeError(f"this {type(self).__name__} is already running")
        self._guard = Guard(self._folder_prefix)
        try:
            self._start(self._guard)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill it and remove its folder. Harmless when repeated."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()

    @property
    def folder(self) -> Path:
        """The folder of everything that it writes; gone once it is closed."""
        return self._running_guard().folder

    @abstractmethod
    def _start(self, guard: Guard) -> None:
        """Start it under ``guard``, and wait until it serves clients."""

    def _running_guard(self) -> Guard:
        if self._guard is None:
            raise RuntimeError(
                f"this {type(self).__name__} is not running: use it in a with statement, or call start()"
            )
        return self._guard
