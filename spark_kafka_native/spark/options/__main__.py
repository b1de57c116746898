"""``python -m spark_kafka_native.spark.options`` prints docs/options.md."""

from .options_page import write_options_page

print(write_options_page(), end="")
