"""Of two processes none is left with a long file at the end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.hooks.file_order import pytest_collection_modifyitems


def item(path: str, *marks: str) -> Any:
    return SimpleNamespace(path=Path(path), get_closest_marker=lambda name: name in marks)


def test_files_that_start_much_come_first_and_stay_together() -> None:
    quick, broker, mixed = (
        item("a"),
        item("b", "broker"),
        [item("c"), item("c", "spark", "broker"), item("c")],
    )
    items = [quick, mixed[0], broker, *mixed[1:], other := item("d", "spark")]
    pytest_collection_modifyitems(items)
    assert items == [*mixed, other, broker, quick]
