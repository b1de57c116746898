"""What holds in a forked child, found out in one."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable


def holds_in_forked_child(check: Callable[[], object], seconds: float = 60) -> bool:
    """Fork, call ``check`` in the child, and return whether its result is true there.

    An error in the child is printed and counts as false; the inherited test runner does not hear of it. A
    child that takes longer than ``seconds`` is killed and counts as false, too.
    """
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if check() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    timer = threading.Timer(seconds, os.kill, (child, signal.SIGKILL))
    timer.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        timer.cancel()
        timer.join()
