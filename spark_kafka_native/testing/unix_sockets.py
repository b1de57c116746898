"""Checks that the paths of Spark's unix domain sockets fit into a socket address."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_LONGEST_ADDRESS = 103  # bytes of a socket's path: macOS has the least room, 104 with the zero at the end
_NAME_LENGTH = len("/.01234567-89ab-cdef-0123-456789abcdef.sock")  # how Spark names them


def unix_socket_settings(folder: Path) -> dict[str, str]:
    """Spark settings for unix domain sockets below ``folder``; off where its path is too long for one.

    A path can be: macOS has temp folders of 49 characters. Spark then fails with "AF_UNIX path too long".
    """
    fits = len(os.fsencode(folder)) + _NAME_LENGTH <= _LONGEST_ADDRESS
    return {
        "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX") and fits).lower(),
        "spark.python.unix.domain.socket.dir": str(folder),
    }
