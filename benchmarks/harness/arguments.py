"""The command line that the end-to-end benchmarks share."""

import argparse
from collections.abc import Sequence


def parse_arguments(description: str | None, sections: Sequence[str], *, scale: str) -> argparse.Namespace:
    """Parse the command line; ``sections`` may be named by ``--only``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help=scale)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="--scale 0.02 --rounds 1: shows that it runs, and no more"
    )
    parser.add_argument("--only", nargs="+", choices=sections, default=sections)
    parser.add_argument("--bootstrap-servers", help="a broker that is there already")
    parser.add_argument(
        "--own-pyspark", action="store_true", help="run pykafka on this interpreter's PySpark"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option for pykafka"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.scale, arguments.rounds = 0.02, 1
    arguments.options = dict(option.split("=", 1) for option in arguments.option)
    return arguments
