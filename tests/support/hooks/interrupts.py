"""A test run hears SIGINT, however it was started: tests send it to themselves and to child processes."""

from __future__ import annotations

import signal


def hear_interrupts() -> None:
    """Undo what a shell without job control does to its background jobs: they ignore SIGINT, and so do all
    of their child processes, in which Python then raises no KeyboardInterrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
