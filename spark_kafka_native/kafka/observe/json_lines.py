"""`JsonLines`: writes events to a file, one line of JSON each, in a thread of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any, Self, TextIO

from .event_stream import EventStream

_LOG = logging.getLogger("spark_kafka_native.telemetry")
CLOSE_S = 5.0
"""`close` waits so long for what is left to be written."""


class JsonLines:
    """A context manager. ``to`` is a path, which is appended to, or an open text file, which stays open.

        with JsonLines("acknowledgements.jsonl", producer.acknowledgements()):
            ...

    Where the file can't keep up, events are dropped, and a line ``{"event": "dropped", "count": n}`` says so.
    What can't be written is logged once and counted in ``failures``; the client goes on.
    """

    def __init__(self, to: str | os.PathLike[str] | TextIO, stream: EventStream[Any]) -> None:
        self.failures = 0
        """Lines that could not be written."""
        self._stream = stream
        self._owns_file = isinstance(to, str | os.PathLike)
        # Closed by the thread, once everything is written.
        self._file = Path(to).open("a", encoding="utf-8") if isinstance(to, str | os.PathLike) else to  # noqa: SIM115
        self._told_dropped = 0
        self._process_id = os.getpid()
        self._thread = threading.Thread(target=self._work, name="kafka-json-lines", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<JsonLines of {self._stream!r}, {self.failures} failures>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is left, and end. May be called twice."""
        if self._process_id != os.getpid():  # the thread, and what the file buffers, are the parent's
            return
        self._stream.close()
        self._thread.join(CLOSE_S)

    def _work(self) -> None:
        for event in self._stream:
            self._write(event.to_dict())
            if (dropped := self._stream.dropped) > self._told_dropped:
                self._write({"event": "dropped", "count": dropped - self._told_dropped})
                self._told_dropped = dropped
            if not len(self._stream):
                self._flush()
        self._flush()
        if self._owns_file:
            with contextlib.suppress(OSError):  # a full disk: what is left of it can't be written here either
                self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        except Exception as error:  # noqa: BLE001 - whatever file it is: a full disk must not end the thread
            self._failed(error)

    def _flush(self) -> None:
        try:
            self._file.flush()
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            _LOG.warning("events can't be written, and are lost: %r", error)
