"""What a forked child resets."""

from __future__ import annotations

import ast
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.forked_child import holds_in_forked_child

import spark_kafka_native
from spark_kafka_native.kafka.runtime import fork
from spark_kafka_native.kafka.runtime.fork import in_forked_child, no_fork

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Owner:
    def __init__(self, reset: Callable[[], None] = lambda: None) -> None:
        self.resets = 0
        self._reset_too = reset
        in_forked_child(self.reset)

    def reset(self) -> None:
        self.resets += 1
        self._reset_too()


def test_the_child_resets_each_object_once_and_the_parent_none() -> None:
    first, second = Owner(), Owner()
    assert holds_in_forked_child(lambda: (first.resets, second.resets) == (1, 1))
    assert (first.resets, second.resets) == (0, 0)


def test_a_function_is_called_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "_resets", set())
    called: list[bool] = []

    def reset() -> None:
        called.append(True)

    in_forked_child(reset)
    del reset
    gc.collect()
    assert holds_in_forked_child(lambda: called == [True])
    assert called == []


def test_an_object_is_not_kept_alive() -> None:
    owner = Owner()
    gone, known = weakref.ref(owner), len(fork._resets)
    del owner
    gc.collect()
    assert gone() is None
    assert len(fork._resets) < known


def test_an_error_in_one_reset_does_not_prevent_the_others() -> None:
    def fail() -> None:
        os.close(2)  # the interpreter reports the error there
        raise ZeroDivisionError

    owners = [Owner(fail if number % 2 else lambda: None) for number in range(8)]
    assert holds_in_forked_child(lambda: [one.resets for one in owners] == [1] * 8)


def test_a_reset_may_make_objects_that_are_reset_after_the_next_fork() -> None:
    made: list[Owner] = []
    owner = Owner(lambda: made.append(Owner()))
    assert holds_in_forked_child(lambda: owner.resets == 1 and made[0].resets == 0)


def test_a_fork_waits_for_what_must_not_be_cut_short() -> None:
    """The child may do the same, and so may the parent again."""
    entered, done = threading.Event(), []

    def work() -> None:
        with no_fork():
            entered.set()
            release.wait(20)
            done.append(True)

    release = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(20)
    timer = threading.Timer(0.2, release.set)
    timer.start()

    def child() -> bool:
        """Not in the thread that has forked."""
        seen: list[bool] = []

        def look() -> None:
            with no_fork(), no_fork():
                seen.extend(done)

        other = threading.Thread(target=look, daemon=True)
        other.start()
        other.join(10)
        return seen == [True]

    assert holds_in_forked_child(child, seconds=20)
    thread.join()
    timer.join()
    with no_fork():
        assert holds_in_forked_child(child, seconds=20)
    assert holds_in_forked_child(child, seconds=20)


def test_no_thread_waits_for_the_import_of_another_one() -> None:
    """A module of a user may hang as it is imported: other threads connect."""
    entered = threading.Event()

    def work() -> None:
        with no_fork():
            entered.set()

    with no_fork():
        other = threading.Thread(target=work, daemon=True)
        other.start()
        assert entered.wait(20)
    other.join()


def test_a_block_may_begin_another_one_while_a_fork_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is imported may import others late: it would wait for the fork, and the fork for it."""
    entered, waits, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with no_fork():
            entered.set()
            waits.wait(60)
            with no_fork():
                ended.set()

    monkeypatch.setattr(fork, "_MAX_WAIT_S", 600)
    monkeypatch.setattr(fork.time, "sleep", lambda _: waits.set())
    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(20)
    assert holds_in_forked_child(ended.is_set)
    thread.join()


def test_an_interrupt_of_a_fork_that_waits_leaves_no_lock_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python goes on with the fork then."""
    entered, release = threading.Event(), threading.Event()

    def work() -> None:
        with no_fork():
            entered.set()
            release.wait(60)

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(20)
    monkeypatch.setattr(fork.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fork._before_fork()
    fork._in_parent()
    release.set()
    thread.join()
    other = threading.Thread(target=work, daemon=True)  # needs the lock that was held
    other.start()
    other.join(20)
    assert not other.is_alive()


def test_a_fork_in_a_signal_handler_while_another_one_waits_leaves_no_lock_behind() -> None:
    class Lock:
        forks = 0

        def acquire(self, timeout: float) -> bool:
            del timeout
            self.forks += 1
            if self.forks == 1:
                fork._before_fork()
                fork._in_parent()
            return True

        def release(self) -> None:
            """Nothing waits for it."""

    lock = Lock()
    entry = weakref.ref(lock)
    fork._blocks.add(entry)  # type: ignore[arg-type]
    try:
        fork._before_fork()
        fork._in_parent()
    finally:
        fork._blocks.discard(entry)  # type: ignore[arg-type]
    entered = threading.Event()

    def work() -> None:
        with no_fork():
            entered.set()

    threading.Thread(target=work, daemon=True).start()
    assert entered.wait(20)


def test_a_fork_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of a user may hang as it is imported, or wait for the thread that forks."""
    monkeypatch.setattr(fork, "_MAX_WAIT_S", 0.01)
    entered, release = threading.Event(), threading.Event()

    def work() -> None:
        with no_fork():
            entered.set()
            release.wait(60)

    hanging = threading.Thread(target=work)
    hanging.start()
    entered.wait(20)
    assert holds_in_forked_child(lambda: True)
    release.set()
    hanging.join()
    with no_fork():
        assert holds_in_forked_child(lambda: True)


LATER_HOOK = """
import os
import sys
import threading
sys.path[:0] = {paths!r}
from spark_kafka_native.kafka.runtime import fork
import logging
from concurrent.futures import ThreadPoolExecutor

fork._MAX_WAIT_S = 600
entered, forks = threading.Event(), threading.Event()

def work():
    with fork.no_fork():
        entered.set()
        forks.wait()
        {imported}

os.register_at_fork(before=forks.set)
threading.Thread(target=work, daemon=True).start()
entered.wait()
if os.fork() == 0:
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize("imported", ['logging.getLogger("x")', "ThreadPoolExecutor(1).submit(int).result()"])
def test_a_fork_does_not_hold_a_lock_of_the_standard_library_as_it_waits(imported: str) -> None:
    """The import that it waits for may need it, and neither would end."""
    script = LATER_HOOK.format(paths=[str(Path(__file__).parents[4])], imported=imported)
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=120).returncode == 0


def late_imports(path: Path) -> Iterator[str]:
    """Those within functions of ``path`` that a fork does not wait for."""

    def look(node: ast.AST, waits: bool) -> Iterator[str]:
        if isinstance(node, ast.Import | ast.ImportFrom) and not waits:
            yield f"{path.name}: {ast.unparse(node)}"
        if isinstance(node, ast.With):
            waits = waits or any(ast.unparse(item) == "no_fork()" for item in node.items)
        for child in ast.iter_child_nodes(node):
            yield from look(child, waits)

    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            yield from look(node, False)


def test_a_fork_waits_for_all_late_imports_of_a_connection() -> None:
    """Else a child that connects, too, waits for ever, past its deadlines."""
    kafka = Path(spark_kafka_native.__file__).parent / "kafka"
    rooms = ["cluster", "network", "runtime", "security"]
    found = {line for room in rooms for path in (kafka / room).rglob("*.py") for line in late_imports(path)}
    assert found == {"authentication.py: from ..security.kerberos import forget_login"}, "that is imported"
