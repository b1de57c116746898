"""When a ticket cache in memory is not destroyed; when it is: tests/broker/test_kerberos.py."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spark_kafka_native.kafka.security import ticket_cache


def test_a_forked_child_leaves_the_caches_of_its_parent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(ticket_cache.ctypes, "CDLL", lambda name: loaded.append(name) or 1 / 0)
    ticket_cache._destroy("MEMORY:x", os.getpid() + 1)
    assert loaded == []


def test_at_the_end_of_the_process_nothing_is_called() -> None:
    program = (
        "from spark_kafka_native.kafka.security import ticket_cache\n"
        "ticket_cache._destroy = lambda *_: print('called')\n"
        "kept = ticket_cache.MemoryCache()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == ""


def test_without_mits_library_a_cache_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticket_cache, "_LIBRARY", "/no/such/library.so")
    ticket_cache._destroy("MEMORY:x", os.getpid())
