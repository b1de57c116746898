"""pytest hook of the whole suite: files that take long come first.

Two processes share the files (``--dist loadfile``). The last files decide how long one of them works alone:
files of a second each, not one of five minutes. The order among those of a kind stays as it is drawn.
"""

from __future__ import annotations

from pathlib import Path

import pytest

KINDS = ("spark", "broker")
"""Marks of tests that start much, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks: dict[Path, int] = {}
    for item in items:
        marked = [rank for rank, kind in enumerate(KINDS) if item.get_closest_marker(kind)]
        ranks[item.path] = min(ranks.get(item.path, len(KINDS)), *marked, len(KINDS))
    items.sort(key=lambda item: ranks[item.path])
