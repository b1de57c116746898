"""The table of metrics in docs/metrics.md, out of their declarations. ``python tests/tools/metrics_table.py``
writes it into the page."""

from __future__ import annotations

from pathlib import Path

from spark_kafka_native.kafka.observe.catalogue import ALL_METRICS

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->"


def metrics_table() -> str:
    rows = [
        f"| `{one.name}` | {one.kind.value} | `{one.unit}` | {', '.join(f'`{tag}`' for tag in one.tags)} | "
        f"{one.description} |"
        for one in ALL_METRICS
    ]
    return "\n".join(["| name | kind | unit | tags | what |", "| --- | --- | --- | --- | --- |", *rows, ""])


def table_on_page() -> str:
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + metrics_table() + END + rest.partition(END)[2])
