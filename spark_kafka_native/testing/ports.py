"""Free ports on the loopback interface."""

from __future__ import annotations

import random
import socket

# Below the ports that the kernel hands to outgoing connections (32768 up on Linux, 49152 up on macOS): a
# broker that restarts must find its port still free, however many clients connected somewhere in between.
_FIRST, _LAST = 20_000, 32_000


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """``count`` different ports that have no listener now.

    Another process may still take one before its use.
    """
    found: list[int] = []
    randomness = random.SystemRandom()
    for _ in range(1000 * count):
        port = randomness.randint(_FIRST, _LAST)
        if port not in found and is_free(host, port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free ports between {_FIRST} and {_LAST} on {host}")


def is_free(host: str, port: int) -> bool:
    """True if ``port`` (0 to 65535) of ``host`` can be bound now."""
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
