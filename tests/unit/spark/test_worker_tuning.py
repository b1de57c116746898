"""The settings of a worker: which connections are the JVM's, that they are acknowledged at once, and what its
garbage collector need not look at."""

import gc
import os
import socket
import sys
import weakref
from contextlib import closing
from itertools import count
from types import ModuleType, SimpleNamespace

import pytest

from spark_kafka_native.spark import worker_tuning as worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_QUICKACK is Linux's")


@pytest.fixture
def pair():
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listening,
        closing(socket.create_connection(listening.getsockname(), 60)) as here,
        closing(listening.accept()[0]) as there,
    ):
        here.setblocking(True)
        yield here, there


def name_of(one):
    with socket.socket(fileno=os.dup(one.descriptor)) as copied:
        return copied.getsockname()


def one_of(sock):
    status = os.fstat(sock.fileno())
    return worker.LocalConnection(sock.fileno(), status.st_dev, status.st_ino)


@pytest.fixture
def told(monkeypatch):
    """The names of the tuned sockets, each time."""
    names = []

    class Socket(socket.socket):
        def setsockopt(self, *what):
            assert what == (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            names.append(self.getsockname())
            super().setsockopt(*what)

    monkeypatch.setattr(socket, "socket", Socket)
    return names


@pytest.fixture(autouse=True)
def callbacks():
    """No collection but those of the test, which look at its own objects only; no callback that outlives it.

    All that the tests of a process have loaded takes half a second to look at, a hundred times in one test.
    """
    before = list(gc.callbacks)
    gc.disable()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()
    gc.callbacks[:] = before


def test_connections_to_this_machine_are_found_once_each(pair):
    names = [one.getsockname() for one in pair]
    again = pair[0].dup()
    unix = socket.socketpair()
    try:
        ours = [name for one in worker.local_connections() if (name := name_of(one)) in names]
    finally:
        for one in (again, *unix):
            one.close()
    assert sorted(ours) == sorted(names)


def test_a_default_timeout_keeps_hands_off_sockets(pair, told):
    worker.acknowledge_at_once([one_of(pair[0])])
    socket.setdefaulttimeout(60)
    try:
        assert list(worker.local_connections()) == []
        gc.collect()
    finally:
        socket.setdefaulttimeout(None)
    assert told == []
    assert os.get_blocking(pair[0].fileno())


def test_each_full_collection_and_no_other_makes_the_kernel_acknowledge(pair, told):
    worker.acknowledge_at_once([one_of(pair[0])])
    gc.collect(0)
    gc.collect(1)
    assert told == []
    gc.collect()
    gc.collect()
    assert told == [pair[0].getsockname()] * 2
    assert os.get_blocking(pair[0].fileno())


def test_a_connection_ends_when_its_owner_closes_it(pair):
    """A worker that is used again may have run others' functions before, with connections of theirs."""
    here, there = pair
    worker.acknowledge_at_once(worker.local_connections())
    gc.collect()
    here.close()
    gc.collect()
    there.settimeout(60)
    assert there.recv(1) == b""


def test_looking_leaves_no_descriptor_open(pair):
    gc.collect()  # or it closes here what earlier tests have left
    before = sorted(os.listdir("/proc/self/fd"))
    worker.acknowledge_at_once(worker.local_connections())
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_copy_of_what_is_no_connection_any_more_is_closed(tmp_path):
    """Its number may be given to a file between the look and the copy."""
    with (tmp_path / "file").open("w") as file:
        before = sorted(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match=r"not a socket|non-socket"):
            worker._is_local(worker.LocalConnection(file.fileno(), 0, 0))
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_what_is_no_connection_is_not_even_copied(pair, tmp_path, monkeypatch):
    """To close a copy of a file's descriptor gives up this process's locks on the file."""
    copied, dup = [], os.dup
    monkeypatch.setattr(os, "dup", lambda number: copied.append(number) or dup(number))
    with (tmp_path / "locked").open("w") as file:
        assert list(worker.local_connections())
        assert file.fileno() not in copied
        here = pair[0]
        worker.acknowledge_at_once([one_of(here)])
        number = here.detach()
        os.dup2(file.fileno(), number)  # closed, and its number given to a file
        copied.clear()
        gc.collect()
        os.close(number)
    assert number not in copied


def test_a_number_that_was_given_to_another_connection_is_left_alone(pair, told):
    here, there = pair
    worker.acknowledge_at_once([one_of(here)])
    os.dup2(there.fileno(), here.fileno())
    gc.collect()
    assert told == []


def test_without_a_connection_nothing_is_called():
    before = list(gc.callbacks)
    worker.acknowledge_at_once([])
    assert gc.callbacks == before


@pytest.mark.parametrize("reused", [True, False])
def test_only_a_worker_that_is_used_again_looks_for_connections(monkeypatch, reused):
    asked = []
    monkeypatch.setattr(worker, "_settled", False)
    monkeypatch.setattr(worker, "acknowledge_at_once", asked.append)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    if reused:
        monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    else:
        monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    worker.settle_worker()
    worker.settle_worker()
    assert len(asked) == reused


@pytest.fixture
def reused_worker(monkeypatch):
    """A worker before its first task: how often it is frozen, what a full collection costs."""
    names = (f"loaded_{number}" for number in count())
    state = SimpleNamespace(
        freezes=0,
        collection_s=0.0,
        now_s=100.0,
        load=lambda: monkeypatch.setitem(sys.modules, next(names), ModuleType("loaded")),
    )

    freeze_all = gc.freeze

    def freeze():
        state.freezes += 1
        freeze_all()

    def pass_time(phase, info):
        if info["generation"] == 2 and phase == "start":
            state.now_s += state.collection_s

    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setattr(worker, "_settled", False)
    monkeypatch.setattr(worker, "_collections", worker.CollectionClock())
    monkeypatch.setattr(worker, "acknowledge_at_once", list)
    monkeypatch.setattr(gc, "freeze", freeze)
    monkeypatch.setattr(worker.time, "thread_time", lambda: state.now_s)
    worker.settle_worker()
    gc.callbacks.append(pass_time)  # after the clock has begun, before it ends
    return state


def test_what_is_loaded_after_the_first_task_began_is_frozen_too(reused_worker):
    """PySpark's daemon collects after every task, and pandas may come with any of them."""
    assert reused_worker.freezes == 1
    reused_worker.load()
    reused_worker.collection_s = 0.025
    gc.collect()  # the daemon's
    reused_worker.collection_s = 0.001  # as little is left to look at
    worker.settle_worker()
    assert reused_worker.freezes == 2
    reused_worker.load()
    gc.collect()
    worker.settle_worker()
    assert reused_worker.freezes == 2  # it was quick


def test_only_full_collections_count(reused_worker):
    reused_worker.load()
    reused_worker.collection_s = 0.025
    gc.collect()
    reused_worker.collection_s = 0
    gc.collect(1)
    worker.settle_worker()
    assert reused_worker.freezes == 2


def test_a_worker_that_is_slow_for_others_data_is_not_frozen_again(reused_worker):
    """A model that the next task replaces: a frozen object that becomes cyclic garbage stays in memory."""
    reused_worker.collection_s = 0.025
    for _ in range(100):
        gc.collect()
        worker.settle_worker()
    assert reused_worker.freezes == 1


class Cycle:
    def __init__(self):
        self.itself = self


def test_what_was_frozen_and_is_garbage_by_now_is_freed_by_the_next_freeze(reused_worker, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    model = Cycle()
    gone = weakref.ref(model)
    try:
        gc.freeze()
        del model
        gc.collect()
        assert gone() is not None
        monkeypatch.setattr(worker, "_settled", True)
        monkeypatch.setattr(worker, "_collections", worker.CollectionClock(last_s=1.0))
        worker.settle_worker()
        assert gone() is None
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_garbage_is_collected_before_the_rest_is_frozen(reused_worker):
    reused_worker.load()
    reused_worker.collection_s = 0.025
    gc.collect()
    cycle = Cycle()
    gone = weakref.ref(cycle)
    del cycle
    worker.settle_worker()
    assert reused_worker.freezes == 2
    assert gone() is None
