"""`tell`: a line for the user that is no warning; `tell_about_sockets`: one that comes once in a session."""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path
from typing import Final

_LOG: Final = logging.getLogger("spark_kafka_native")
_MARK: Final = "pykafka-told-about-sockets"
_SOCKETS: Final = (
    "Spark speaks TCP with its Python workers. With spark.python.unix.domain.socket.enabled=true (or the "
    "environment variable PYSPARK_UDS_MODE=true) before the session starts, reads are up to half as "
    "fast again, and where Spark runs on another system than Linux, a task takes some 40 ms less"
)


def tell(line: str) -> None:
    """Log ``line`` at INFO; print it where nobody has configured logging, as in the processes in which Spark
    plans and commits."""
    if _LOG.hasHandlers():
        _LOG.info("%s", line)
    else:
        print(f"pykafka: {line}", file=sys.stderr)


def tell_about_sockets() -> None:
    """Say once in a session what Spark's other kind of sockets would bring, where it could have it.

    Spark plans each query in a process of its own. What they share is the session's local folder, which goes
    with the session: whoever makes a file there is the first.
    """
    is_on = os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower() == "true"
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    if is_on or not folder or not hasattr(socket, "AF_UNIX"):
        return
    try:
        Path(folder, _MARK).touch(exist_ok=False)
    except OSError:
        return  # told already, or nowhere to note it
    tell(_SOCKETS)
