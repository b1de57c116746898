"""`MemoryCache`: a ticket cache in the memory of the process, which ends with its last user.

MIT's library keeps such a cache until it is destroyed, and the package ``gssapi`` has no function for that.
So the library, which is loaded then, is called directly.
"""

from __future__ import annotations

import ctypes
import os
import uuid
import weakref
from contextlib import suppress
from typing import Final

_LIBRARY: Final = "libkrb5.so.3"
"""MIT's on Linux; elsewhere a cache stays as long as the process."""


class MemoryCache:
    """A cache of its own for each login. A context takes its ticket from there to make the first token: until
    then, a reference is needed.
    """

    def __init__(self) -> None:
        self.name = f"MEMORY:{uuid.uuid4().hex}"
        weakref.finalize(self, _destroy, self.name, os.getpid()).atexit = False


def _destroy(name: str, process: int) -> None:
    """Never raises. A forked child leaves it alone: a thread of the parent may have held the library's
    locks."""
    if os.getpid() != process:
        return
    with suppress(OSError, AttributeError):
        krb5 = ctypes.CDLL(_LIBRARY)
        context, cache = ctypes.c_void_p(), ctypes.c_void_p()
        if krb5.krb5_init_context(ctypes.byref(context)):
            return
        if not krb5.krb5_cc_resolve(context, name.encode(), ctypes.byref(cache)):
            krb5.krb5_cc_destroy(context, cache)
        krb5.krb5_free_context(context)
