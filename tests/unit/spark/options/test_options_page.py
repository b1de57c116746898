from pathlib import Path

from spark_kafka_native.spark.options.__main__ import write_options_page


def test_the_page_is_what_the_declarations_say():
    page = Path(__file__).parents[4] / "docs" / "options.md"
    assert page.read_text() == write_options_page(), (
        "docs/options.md is out of date: python -m spark_kafka_native.spark.options > docs/options.md"
    )


def test_the_page_says_what_an_ending_takes_and_what_has_no_effect():
    rows = {line.split("|")[1].strip(): line for line in write_options_page().splitlines() if "|" in line}
    assert "-2, earliest, is refused" in rows["`endingOffsets`"]
    assert "joins no group" in rows["`kafka.group.id`"]
    for name in ("max.poll.records", "allow.auto.create.topics"):
        assert f"`kafka.{name}`" in rows["Without effect"]
        assert f"`kafka.{name}`" not in rows
    assert "`kafka.keep.undelivered`" in rows["Without effect in writes"]
    assert "`kafka.auto.offset.reset`" in rows["Refused in reads"]
    assert "`kafka.spill.dir`" in rows["Refused in writes"]
    assert not {"`kafka.keep.undelivered`", "`kafka.spill.dir`"} & rows.keys()
