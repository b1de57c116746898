"""Every request that is declared: for the tests that prove them, and to tell what client and broker share."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

from . import api
from .message import Request


@functools.cache
def all_requests() -> dict[int, type[Request[Any]]]:
    """All request classes by API key; each knows its response class and its versions.

    Imports all of ``api``, which a client at work does not need: it takes tens of milliseconds.
    """
    found: dict[int, type[Request[Any]]] = {}
    for module in pkgutil.iter_modules(api.__path__):
        declared = vars(importlib.import_module(f"{api.__name__}.{module.name}"))
        for value in declared.values():
            if isinstance(value, type) and issubclass(value, Request) and value is not Request:
                found[value.api_key] = value
    return dict(sorted(found.items()))
