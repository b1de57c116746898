"""KeyboardInterrupts in the main thread at a chosen time, as Ctrl-C would make them."""

import signal
import threading
from collections.abc import Callable

AGAIN_S = 3.0
"""An interrupt in a destructor or a callback of the collector is printed and gone: another follows."""


def repeat_until_interrupted(seconds: float, call: Callable[[], object]) -> None:
    """Call again and again until a KeyboardInterrupt comes, ``seconds`` from now.

    By a signal of its own: SIGALRM is the runner's, which ends a test that hangs.
    """
    armed = True

    def interrupt(*_: object) -> None:
        if armed:
            raise KeyboardInterrupt

    def send() -> None:
        begun.acquire()
        wait_s = seconds
        while not done.wait(wait_s):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            wait_s = AGAIN_S

    begun, done = threading.Lock(), threading.Event()
    begun.acquire()
    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        begun.release()
        while True:
            call()
    except KeyboardInterrupt:
        pass
    finally:
        armed = False
        done.set()
        sender.join()  # or a late signal would find the default, which ends the process
        signal.signal(signal.SIGUSR1, before)
