"""`KafkaBatchReader`: what Spark asks for partitions on the driver, and pickles to the workers for `read`.

Each side imports its own half, when Spark calls it: workers are short of start-up time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceReader, Filter
from pyspark.sql.types import StructType

from ...kafka.cluster.router import router_for
from ..same_version import SameVersion
from ..user_messages import HideTracebacks, advise, note_once
from ..worker_tuning import settle_worker
from .offset_range import KafkaInputPartition, OffsetRange, fixed_offset
from .read_options import ReadOptions, ReadTask

if TYPE_CHECKING:
    from ..delegation_tokens import TokenLogin
    from .driver.pushed_filters import PushedFilters

_LOG: Final = logging.getLogger("spark_kafka_native")
_OPEN_BOUNDS: Final = (
    "Each task looks up `earliest` and `latest` when it runs. If an executor is lost after a shuffle, "
    "PySpark %s runs such tasks again without noticing that they read other records now: where the topic is "
    "written meanwhile, repartition(n) and whatever depends on the order of rows then loses and doubles "
    "rows. Set bindOffsets=load, or give fixed startingOffsets and endingOffsets (said once in a session)"
)
NOTICED_SINCE: Final = (4, 2)
"""The PySpark that notices that a task that ran again has another output, and stops the job."""


class KafkaBatchReader(SameVersion, DataSourceReader):  # type: ignore[misc]
    """A batch read. Plain data: it goes to the workers; clients are opened in `partitions` and `read`
    only."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._filters: PushedFilters | None = None
        self._task = ReadTask.of(options, schema)

    @HideTracebacks()
    def partitions(self) -> list[KafkaInputPartition]:
        """The tasks. Asks the cluster; raises `KafkaConditionError`, `ConfigError` and the client's
        errors."""
        for warning in self._options.warnings:
            _LOG.warning("%s", warning)
        advise()
        # Spark keeps the process in which it plans: the next plan starts connected, too.
        settle_worker()
        from .driver.batch_plan import plan_batch
        from .driver.cluster_view import view_cluster
        from .driver.pushed_filters import PushedFilters

        filters = self._filters or PushedFilters()
        view = view_cluster(router_for(self._options.client), self._options, filters)
        tasks = plan_batch(view, self._options, filters)
        _warn_of_open_bounds(tasks)
        login = self._login()
        # Spark calls read(None) if there is no partition at all, and a read of no ranges yields nothing.
        return [KafkaInputPartition(ranges=task, login=login) for task in tasks or [()]]

    def _login(self) -> TokenLogin | None:
        tokens = self._options.tokens
        if tokens is None:
            return None
        from ..shared_login import shared_login

        return shared_login(self._options.client, tokens, ask=True).login

    def read(self, partition: KafkaInputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task, on a worker."""
        from .worker.read_partition import read_partition

        with HideTracebacks():
            yield from read_partition(partition, self._task)

    def sent_state(self) -> dict[str, Any]:
        """The task: options and filters were for planning."""
        return {"_task": self._task}


class FilteringKafkaBatchReader(KafkaBatchReader):
    """A batch read that plans only what Spark's filters leave."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the filters that help planning, and return all of them: Spark applies each again to the
        rows.
        """
        from .driver.pushed_filters import PushedFilters

        self._filters = PushedFilters.from_filters(filters)
        return filters


def _warn_of_open_bounds(tasks: Iterable[Iterable[OffsetRange]]) -> None:
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    is_open = any(
        fixed_offset(bound) is None for task in tasks for one in task for bound in (one.start, one.end)
    )
    if is_open and version < NOTICED_SINCE and note_once("warned-of-open-bounds"):
        _LOG.warning(_OPEN_BOUNDS, pyspark.__version__)
