"""``zip``: writes the package as one file for ``--py-files``, for clusters that allow no installation."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes at any time


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "zip",
        help="make the zip for --py-files",
        description="Writes the package to a zip for spark-submit --py-files or spark.submit.pyFiles. It is "
        "pure Python: the cluster needs numpy and pyarrow, and works faster with the installed package.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(f"{_PACKAGE.name}.zip"),
        metavar="FILE",
        help=f"where to write it (default {_PACKAGE.name}.zip)",
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the zip and print how to use it."""
    try:
        write_zip(arguments.output)
    except OSError as error:
        arguments.parser.error(f"cannot write {arguments.output}: {error.strerror}")
    print(f"Wrote {arguments.output}. Pass it to spark-submit --py-files, and in the job begin with")
    print("  import spark_kafka_native; spark_kafka_native.register(spark)")
    return 0


def write_zip(path: Path) -> None:
    """Write the modules of this package to ``path``. Raises `OSError`."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(_PACKAGE.rglob("*.py")):
            name = (Path(_PACKAGE.name) / file.relative_to(_PACKAGE)).as_posix()
            archive.writestr(
                zipfile.ZipInfo(name, _EPOCH), file.read_bytes(), compress_type=zipfile.ZIP_DEFLATED
            )
