"""Progress lines on the terminal: what is running, for how long, and how it ended."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_REFRESH_S = 0.2
_WIDTH = 30


@contextmanager
def step(
    title: str, done_share: Callable[[], float | None] = lambda: None
) -> Iterator[Callable[[str], None]]:
    """Show ``title`` and a clock while the block runs, and a bar where ``done_share`` knows how much is done.

    Gives a function that sets what the finished line says. Off a terminal only that line is printed.
    """
    said = [""]
    started = time.monotonic()
    over = threading.Event()
    painter = threading.Thread(target=_paint, args=(title, started, over, done_share), daemon=True)
    if sys.stdout.isatty():
        painter.start()
    try:
        yield lambda text: said.__setitem__(0, text)
    except BaseException:
        _finish(painter, over)
        print(f"  ... {title}")
        raise
    _finish(painter, over)
    print(f"  {time.monotonic() - started:6.1f} s  {title}{': ' if said[0] else ''}{said[0]}", flush=True)


def _paint(title: str, started: float, over: threading.Event, done_share: Callable[[], float | None]) -> None:
    while not over.wait(_REFRESH_S):
        try:
            share = done_share()
        except Exception:  # noqa: BLE001 - Spark may be stopping just now, and a bar is not worth an error
            share = None
        filled = "" if share is None else f" [{'#' * int(share * _WIDTH):{_WIDTH}}] {share:4.0%}"
        sys.stdout.write(f"\r\x1b[K  {time.monotonic() - started:6.1f} s  {title} ...{filled}")
        sys.stdout.flush()


def _finish(painter: threading.Thread, over: threading.Event) -> None:
    over.set()
    if painter.is_alive():
        painter.join()
        sys.stdout.write("\r\x1b[K")
