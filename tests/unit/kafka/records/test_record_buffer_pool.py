"""Memory is reused, and never while anything still refers to it."""

import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.records.buffer_pool import LARGEST, SMALLEST, BufferPool


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_memory_comes_back_once_nothing_refers_to_it():
    pool = BufferPool()
    first = pool.take(1_000_000)
    assert len(first) == 1_000_000
    where = address(first)
    assert address(pool.take(1_000_000)) != where
    del first
    assert where in {address(one) for one in (pool.take(1_000_000), pool.take(900_000))}


def test_an_arrow_array_keeps_its_memory_and_a_slice_of_it_too():
    pool = BufferPool()
    memory = pool.take(SMALLEST)
    memory[:] = 7
    array = pa.Array.from_buffers(pa.uint8(), SMALLEST, [None, pa.py_buffer(memory)])
    batch = pa.record_batch([array.slice(10)], ["x"])
    del memory, array
    for _ in range(5):
        pool.take(SMALLEST)[:] = 1
    assert batch.column(0).unique().to_pylist() == [7]


def test_a_memoryview_keeps_its_memory():
    pool = BufferPool()
    view = memoryview(pool.take(SMALLEST))
    view[0] = 9
    pool.take(SMALLEST)[:] = 1
    assert view[0] == 9


def test_what_is_small_or_huge_is_not_kept():
    pool = BufferPool()
    assert len(pool.take(0)) == 0
    assert len(pool.take(SMALLEST - 1)) == SMALLEST - 1
    assert len(pool.take(LARGEST + 1)) == LARGEST + 1
    assert pool.kept_bytes == 0


@pytest.mark.parametrize(("max_buffers", "max_bytes"), [(3, 1 << 30), (100, 4_000_000)])
def test_no_more_is_kept_than_allowed(max_buffers, max_bytes):
    pool = BufferPool(max_buffers, max_bytes)
    held = [pool.take(1_000_000) for _ in range(10)]
    assert pool.kept_bytes <= 4_000_000
    assert len({address(one) for one in held}) == 10


def test_a_huge_buffer_does_not_serve_a_small_wish():
    pool = BufferPool()
    where = address(pool.take(20_000_000))
    assert address(pool.take(SMALLEST)) != where


def test_threads_never_share_memory():
    pool = BufferPool()
    wrong = []

    def use(number: int) -> None:
        for _ in range(300):
            memory = pool.take(SMALLEST)
            memory[:] = number
            if (memory != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_room_is_made_while_another_thread_looks_at_all_buffers():
    """Such a thread has taken them out of the pool meanwhile."""

    class BusyPool(BufferPool):
        @property
        def kept_bytes(self) -> int:
            kept = super().kept_bytes
            self._kept.clear()
            return kept

    pool = BusyPool(max_bytes=SMALLEST)
    held = [pool.take(SMALLEST), pool.take(SMALLEST)]
    assert address(held[0]) != address(held[1])


def test_a_profiler_that_looks_at_the_locals_during_import_makes_no_buffer_look_free():
    # In a process of its own: only the first import counts the references.
    code = """
import sys
import numpy.typing, pyarrow  # Python 3.12.1 can't import numpy.typing under a profiler that does this

sys.setprofile(lambda frame, event, argument: frame.f_locals and None)
from spark_kafka_native.kafka.records.buffer_pool import BUFFERS
sys.setprofile(None)

first = BUFFERS.take(100_000)
first[:] = 1
BUFFERS.take(100_000)[:] = 2
print((first == 1).all())
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "True"
