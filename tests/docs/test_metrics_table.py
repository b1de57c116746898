"""The page names every metric, its unit and its tags."""

from __future__ import annotations

from tools.metrics_table import metrics_table, table_on_page


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    assert table_on_page() == metrics_table(), "run python tests/tools/metrics_table.py"
