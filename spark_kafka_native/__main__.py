"""``python -m spark_kafka_native <command>``, also installed as ``spark-kafka-native``."""

from __future__ import annotations

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
