"""What the data source says in Spark's processes: `prefix_log_lines`; `tell`, a line that is no warning;
`note_once` and `tell_about_sockets`, for what is said once in a session."""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path
from typing import Final

_LOG: Final = logging.getLogger("spark_kafka_native")
_SOCKETS: Final = (
    "Spark speaks TCP with its Python workers. With spark.python.unix.domain.socket.enabled=true (or the "
    "environment variable PYSPARK_UDS_MODE=true) before the session starts, reads are up to half as "
    "fast again, and where Spark runs on another system than Linux, a task takes some 40 ms less"
)


def prefix_log_lines() -> None:
    """Have our log lines begin with ``pykafka:`` where logging is not configured, as in the processes in
    which Spark plans, reads, writes and commits: their lines stand in a log among those of others."""
    if not _LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("pykafka: %(message)s"))
        handler.setLevel(logging.WARNING)
        # Whoever configures logging later gets the lines through the root logger, and not twice.
        handler.addFilter(lambda _: not logging.getLogger().handlers)
        _LOG.addHandler(handler)


def tell(line: str) -> None:
    """Log ``line`` at INFO; print it where logging is not configured."""
    if logging.getLogger().handlers or _LOG.isEnabledFor(logging.INFO):
        _LOG.info("%s", line)
    else:
        print(f"pykafka: {line}", file=sys.stderr)


def note_once(what: str) -> bool | None:
    """True if this is the session's first process that asks for ``what``; None where that can't be noted.

    Spark plans each query in a process of its own, and commits each micro-batch in another. What they share
    is the session's local folder, which goes with the session: the first one makes a file there.
    """
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    if not folder:
        return None
    try:
        Path(folder, f"pykafka-{what}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return None
    return True


def tell_about_sockets() -> None:
    """Say once in a session what Spark's other kind of sockets would bring, where it could have it."""
    is_on = os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower() == "true"
    if not is_on and hasattr(socket, "AF_UNIX") and note_once("told-about-sockets"):
        tell(_SOCKETS)
