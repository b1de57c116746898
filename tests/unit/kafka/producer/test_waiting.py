"""Waiting without a lock: no waiter misses an end, in time or before it began to wait."""

import os
import threading
import time

import pytest

from spark_kafka_native.kafka.producer.delivery import Waiters
from spark_kafka_native.kafka.producer.errors import ProducerClosedError
from spark_kafka_native.kafka.runtime import waiting as module
from spark_kafka_native.kafka.runtime.deadline import Deadline


def test_who_waits_is_woken(monkeypatch):
    monkeypatch.setattr(module, "MAX_WAIT_S", 60.0)
    waiters, ended, woken = Waiters(), threading.Event(), []

    def wait():
        woken.append(waiters.wait_for(ended.is_set, None))

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    while waiters.waiting < 3:
        time.sleep(0.001)
    waiters.notify_all()  # for nothing: they look and go on waiting
    while waiters.waiting < 3:
        time.sleep(0.001)
    ended.set()
    waiters.notify_all()
    for thread in threads:
        thread.join(60)
    assert woken == [True] * 3
    assert not waiters.waiting


def test_what_ends_between_the_look_and_the_nap_is_seen(monkeypatch):
    monkeypatch.setattr(module, "MAX_WAIT_S", 60.0)
    waiters, looks = Waiters(), []

    def ended():
        looks.append(True)
        if len(looks) == 1:
            waiters.notify_all()  # too early: no thread waits yet
        return len(looks) > 1

    waiting = threading.Thread(target=waiters.wait_for, args=(ended, None), daemon=True)
    waiting.start()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_deadline_ends_it_and_leaves_nothing():
    waiters = Waiters()
    assert not waiters.wait_for(lambda: False, Deadline.after_ms(30))
    assert not waiters.wait_for(lambda: False, Deadline.after_ms(0))
    assert waiters.wait_for(lambda: True, Deadline.after_ms(0))
    assert not waiters.waiting


def test_a_forked_child_does_not_wait():
    waiters = Waiters()
    child = os.fork()
    if not child:
        try:
            waiters.wait_for(lambda: False, None)
        except ProducerClosedError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    waiters.check_process()
    waiters._process_id += 1
    with pytest.raises(ProducerClosedError, match="another process"):
        waiters.check_process()
