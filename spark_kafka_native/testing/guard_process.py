"""The guard: a small process between us and the processes we start, which it never lets outlive us.

Run as a script by `Guard`, with one end of a socket pair as standard input; standard library only. It makes
the folder, starts the processes, and ends all of it as soon as the other end closes. The kernel closes that
end however our process dies, SIGKILL included, on Linux and macOS alike. Should the guard itself be killed,
Linux kills its children (PR_SET_PDEATHSIG: sound here, because the guard has one thread and that thread lives
as long as it does).

Commands and answers are lines of JSON, one answer per command, in order.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
# A fork of our process may hold its end of the pair open; that its parent is gone still gives it away.
_PARENT_CHECK_S = 0.5

_children: dict[int, subprocess.Popen[bytes]] = {}


def main() -> None:
    """Serve commands until the other end closes or the parent is gone, then leave nothing behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parent = int(sys.argv[1])
    try:
        folder = tempfile.mkdtemp(prefix=sys.argv[2])
    except OSError as error:
        _answer({"error": f"no temporary folder can be made: {error}"})
        return
    try:
        _answer({"folder": folder})
        _serve(parent)
    finally:
        _end(folder)


def _serve(parent: int) -> None:
    pending = b""
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], _PARENT_CHECK_S)
        if not readable:
            continue
        received = os.read(0, 1 << 16)
        if not received:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command["verb"] == "close":
                return
            _answer({"id": command["id"], **_obey(command)})


def _obey(command: dict[str, Any]) -> dict[str, Any]:
    if command["verb"] == "start":
        try:
            return {"pid": _start(command)}
        except OSError as error:
            return {"error": f"{command['argv'][0]}: {error}"}
    child = _children.get(command["pid"])
    if child is None:
        return {"error": f"no process {command['pid']} was started here"}
    if command["verb"] == "signal":
        return {"sent": _poll(child) is None and _kill_group(child, command["signal"])}
    return {"returncode": _poll(child)}


def _start(command: dict[str, Any]) -> int:
    with open(command["output"], "ab") as output:
        child = subprocess.Popen(
            command["argv"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=command["env"],
            cwd=command["cwd"],
            start_new_session=True,  # a group of its own: Ctrl-C does not reach it, our signals its children
            preexec_fn=_die_with_parent(),
        )
    _children[child.pid] = child
    return child.pid


def _die_with_parent() -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    guard = os.getpid()

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # it died before the signal was set
            os._exit(1)

    return set_death_signal


def _poll(child: subprocess.Popen[bytes]) -> int | None:
    """Its exit code. What it started ends with it, here and now, before its id can be given to others."""
    if child.returncode is None and child.poll() is not None:
        _kill_group(child, signal.SIGKILL)
    return child.returncode


def _kill_group(child: subprocess.Popen[bytes], number: int) -> bool:
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _end(folder: str) -> None:
    running = [child for child in _children.values() if child.returncode is None]
    for child in running:
        _kill_group(child, signal.SIGKILL)  # reaches stopped processes too
    for child in running:
        with contextlib.suppress(subprocess.TimeoutExpired):  # a disk that hangs holds up a SIGKILL, too
            child.wait(30)
    for _ in range(20):  # a grandchild that is still dying may write once more
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.1)


def _answer(answer: dict[str, Any]) -> None:
    try:
        os.write(0, json.dumps(answer).encode() + b"\n")
    except OSError:
        sys.exit(0)  # no process is left to read it


if __name__ == "__main__":
    main()
