"""Declarations of Kafka's messages, one file per family of APIs. This package reads and writes no bytes."""

from __future__ import annotations

import functools
from typing import Any

from ..message import Request


@functools.cache
def all_requests() -> dict[int, type[Request[Any]]]:
    """Return all declared request classes by API key; each knows its response class and its versions.

    Imports every module of this package, which takes tens of milliseconds and which a client does not need.
    """
    import importlib  # late, both: a client does not need them
    import pkgutil

    found: dict[int, type[Request[Any]]] = {}
    for module in pkgutil.iter_modules(__path__):
        declared = vars(importlib.import_module(f"{__name__}.{module.name}"))
        for value in declared.values():
            if isinstance(value, type) and issubclass(value, Request) and value is not Request:
                found[value.api_key] = value
    return dict(sorted(found.items()))
