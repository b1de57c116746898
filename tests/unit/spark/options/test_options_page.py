from pathlib import Path

from spark_kafka_native.spark.options.options_page import write_options_page


def test_the_page_is_what_the_declarations_say():
    page = Path(__file__).parents[4] / "docs" / "options.md"
    assert page.read_text() == write_options_page(), (
        "docs/options.md is out of date: python -m spark_kafka_native.spark.options > docs/options.md"
    )
