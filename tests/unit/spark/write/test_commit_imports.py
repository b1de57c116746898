"""The driver commits each micro-batch in a process of its own: imports there are paid for each time."""

import subprocess
import sys

PROGRAM = """
import sys
import spark_kafka_native.spark.write.stream_writer
import spark_kafka_native.spark.write.driver.stream_commit
import spark_kafka_native.spark.write.driver.write_summary
unwanted = (".producer.producer", ".fetch_once", ".fetcher")
print([name for name in sys.modules if name.endswith(unwanted)])
"""


def test_a_commit_needs_no_producer_and_no_consumer() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
