"""The data source ``pykafka``: between Spark's Python Data Source API and the client in ``kafka``.

What Spark pickles from here (readers, partitions, writers) is plain data: no socket, no lock, no open client.
"""

from __future__ import annotations

from ..kafka.security.config_providers import look_in


def shipped_files() -> str | None:
    """The folder of the files that ``--files`` and `SparkContext.addFile` ship to this process; None if it is
    no Python worker.
    """
    from pyspark import SparkFiles

    return SparkFiles.getRootDirectory() if SparkFiles._is_running_on_worker else None


look_in(shipped_files)
