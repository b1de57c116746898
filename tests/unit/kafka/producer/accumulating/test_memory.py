"""Buffer memory: caps, the line of waiting callers, and accounts that an interrupt leaves right."""

import contextlib
import itertools
import threading
import time
from functools import partial

import pytest
from support.interrupts.signal_steps import run_at

from spark_kafka_native.kafka.observe import catalogue
from spark_kafka_native.kafka.observe.metrics import MetricsRegistry
from spark_kafka_native.kafka.producer.accumulating import memory as memory_module
from spark_kafka_native.kafka.producer.accumulating.memory import BufferMemory, Room
from spark_kafka_native.kafka.producer.errors import BufferFullError, ProducerClosedError

pytestmark = pytest.mark.timed(0.1)


@pytest.fixture(autouse=True)
def _no_look_in_between(monkeypatch):
    """A thread in line looks again when another one wakes it, and not by itself."""
    monkeypatch.setattr(memory_module, "MAX_NAP_S", 3_600)


def wait_until(true, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.001)


def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def waiters(memory):
    return len(memory._line)


@pytest.mark.parametrize("unused", [False, True])
def test_room_that_comes_back_lets_the_next_in(unused):
    memory = BufferMemory(100, 10)
    first = Room()
    memory.reserve(first, 80, 1, 0)
    room = Room()
    thread = in_thread(memory.reserve, room, 90, 1, 60_000)
    wait_until(lambda: waiters(memory))
    assert memory.waiting
    if unused:
        memory.give_back(first)
    else:
        memory.release(80, 1)
    thread.join(60)
    assert memory.used == (90, 1) == (room.size, room.records)
    assert not memory.waiting


def test_room_that_comes_back_at_once_lets_all_in_that_it_is_enough_for():
    memory = BufferMemory(100, 10)
    memory.reserve(Room(), 100, 1, 0)
    threads = [in_thread(memory.reserve, Room(), 30, 1, 600_000) for _ in range(3)]
    wait_until(lambda: waiters(memory) == 3)
    memory.release(100, 1)
    for thread in threads:
        thread.join(60)
    assert memory.used == (90, 3)
    assert not memory.waiting


def test_closing_ends_the_wait_of_all_in_line():
    memory, refused = BufferMemory(100, 10), []
    memory.reserve(Room(), 100, 1, 0)

    def wait():
        with pytest.raises(ProducerClosedError):
            memory.reserve(Room(), 30, 1, 600_000)
        refused.append(1)

    threads = [in_thread(wait) for _ in range(3)]
    wait_until(lambda: waiters(memory) == 3)
    memory.close()
    for thread in threads:
        thread.join(60)
    assert refused == [1] * 3


@pytest.mark.parametrize(("size", "records"), [(21, 1), (1, 3)])
def test_both_caps_count(size, records):
    memory = BufferMemory(100, 10)
    memory.reserve(Room(), 80, 8, 0)
    assert memory.lacks(size, records)
    with pytest.raises(BufferFullError, match=r"max\.block\.ms"):
        memory.reserve(Room(), size, records, 20)
    assert memory.used == (80, 8)
    assert not memory.lacks(20, 2)
    memory.reserve(Room(), 20, 2, 0)


def test_closing_ends_the_wait():
    memory = BufferMemory(100, 10)
    memory.reserve(Room(), 100, 1, 0)
    told = []

    def wait():
        with pytest.raises(ProducerClosedError) as error:
            memory.reserve(Room(), 1, 1, 60_000)
        told.append(error.value.__cause__)

    thread = in_thread(wait)
    wait_until(lambda: waiters(memory))
    cause = ValueError()
    memory.close(cause)
    thread.join(60)
    assert told == [cause]
    with pytest.raises(ProducerClosedError):
        memory.reserve(Room(), 1, 1, 0)


def test_closed_memory_has_room_for_no_record():
    memory = BufferMemory(100, 10)
    memory.close()
    with pytest.raises(ProducerClosedError):
        memory.reserve(Room(), 1, 1, 0)
    assert memory.used == (0, 0)


def test_a_handler_that_closes_does_not_wait_for_the_thread_that_it_interrupts():
    def close_at_each_step():
        for step in itertools.count():
            memory = BufferMemory(100, 10)
            with contextlib.suppress(ProducerClosedError):
                if not run_at(step, memory.close, partial(memory.reserve, Room(), 1, 1, 0)):
                    break

    thread = in_thread(close_at_each_step)
    thread.join(20)
    assert not thread.is_alive()


def test_small_requests_do_not_pass_a_large_one_that_waits():
    memory = BufferMemory(100, 1000)
    memory.reserve(Room(), 60, 1, 0)
    order = []

    def take(name, size):
        memory.reserve(Room(), size, 1, 60_000)
        order.append(name)

    large = in_thread(take, "large", 100)
    wait_until(lambda: waiters(memory) == 1)
    small = in_thread(take, "small", 1)  # there is room for it now
    wait_until(lambda: waiters(memory) == 2)
    assert memory.lacks(1, 1)
    assert not order
    memory.release(60, 1)
    large.join(60)
    assert order == ["large"]
    memory.release(100, 1)
    small.join(60)
    assert order == ["large", "small"]


def test_who_gives_up_waiting_makes_way():
    memory = BufferMemory(100, 1000)
    memory.reserve(Room(), 60, 1, 0)
    taken = []

    def give_up():
        with pytest.raises(BufferFullError):
            memory.reserve(Room(), 100, 1, 300)

    def take():
        memory.reserve(Room(), 1, 1, 600_000)
        taken.append(time.monotonic())

    first = in_thread(give_up)
    wait_until(lambda: waiters(memory) == 1)
    second = in_thread(take)
    wait_until(lambda: waiters(memory) == 2)
    for thread in (first, second):
        thread.join(60)
    assert taken
    assert memory.used == (61, 2)


def test_an_interrupt_while_waiting_leaves_the_line():
    class Interrupt(BaseException):
        pass

    class Nap:
        def acquire(self, timeout=None):
            if timeout is not None:
                raise Interrupt

        def release(self):
            raise RuntimeError

    memory = BufferMemory(100, 1000)
    memory.reserve(Room(), 60, 1, 0)
    original = threading.Lock
    try:
        threading.Lock = Nap
        with pytest.raises(Interrupt):
            memory.reserve(Room(), 100, 1, 60_000)
    finally:
        threading.Lock = original
    assert not memory.waiting
    memory.reserve(Room(), 40, 1, 0)


def test_what_is_given_back_is_given_back_once():
    memory, room = BufferMemory(100, 10), Room()
    memory.reserve(room, 40, 2, 0)
    memory.reserve(room, 20, 1, 0)
    room.size -= 10  # a batch has it now
    memory.give_back(room)
    memory.give_back(room)
    assert memory.used == (10, 0)
    memory.release(10, 0)
    assert memory.used == (0, 0)


def test_how_long_callers_waited_for_room_is_measured() -> None:
    metrics = MetricsRegistry()
    memory, room = BufferMemory(100, 10, metrics), Room()
    memory.reserve(room, 100, 1, 0)
    waited = catalogue.PRODUCER_WAIT
    assert metrics.distribution(waited).count == 0
    with pytest.raises(BufferFullError):
        memory.reserve(Room(), 1, 1, 1)
    assert metrics.distribution(waited).count == 1
    assert metrics.snapshot().distribution("kafka.producer.wait.duration", on="room").count == 1
