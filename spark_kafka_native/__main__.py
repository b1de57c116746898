"""``python -m spark_kafka_native <command>``, also installed as ``pykafka`` and ``spark-kafka-native``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run a command; a Ctrl-C that comes while it is being imported ends as quietly as a later one."""
    try:
        from .cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
