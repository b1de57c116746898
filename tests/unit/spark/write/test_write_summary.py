"""The file of ``summaryPath``."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafka_native.spark.write.driver.write_summary import WriteSummary


def test_a_summary_that_can_not_be_put_in_its_place_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "replace", refuse)
    WriteSummary.of([]).save(str(tmp_path / "summary.json"))
    assert "could not be written" in caplog.text
    assert list(tmp_path.iterdir()) == []
