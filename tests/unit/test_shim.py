"""What the module that Spark looks for says when `pykafka` can't be had; it must never raise."""

import subprocess
import sys

import pytest


def import_shim(preparation: str) -> subprocess.CompletedProcess[str]:
    script = f"import sys\n{preparation}\nimport pyspark_kafka_native as shim\n"
    script += "print(getattr(shim, 'DefaultSource', None))"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


def test_it_has_the_data_source_and_nothing_to_say():
    ran = import_shim("")
    assert ran.stdout == "<class 'spark_kafka_native.spark.source.KafkaDataSource'>\n"
    assert ran.stderr == ""


@pytest.mark.parametrize("version", ["4.1.0rc1", "4.2.0.dev1", "4.1.1+vendor.3"])
def test_previews_and_vendors_builds_of_pyspark_have_the_data_source(version):
    ran = import_shim(f"import pyspark; pyspark.__version__ = {version!r}")
    assert ran.stderr == ""
    assert ran.stdout == "<class 'spark_kafka_native.spark.source.KafkaDataSource'>\n"


@pytest.mark.parametrize(
    ("preparation", "said"),
    [
        (
            "import pyspark; pyspark.__version__ = '4.0.1'",
            "ImportError: the data source pykafka needs PySpark 4.1 or later, but this is 4.0.1",
        ),
        ("sys.modules['spark_kafka_native.spark'] = None", "ModuleNotFoundError: "),
        ("sys.modules['spark_kafka_native'] = None", "ModuleNotFoundError: "),
    ],
)
def test_what_keeps_the_data_source_away_is_one_line(preparation, said):
    ran = import_shim(preparation)
    assert ran.returncode == 0
    assert ran.stdout == "None\n"
    assert ran.stderr.startswith(f'format("pykafka") is not available: {said}')
    assert len(ran.stderr.splitlines()) == 1
