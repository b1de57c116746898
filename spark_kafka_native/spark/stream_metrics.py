"""`StreamMetrics`: lag, throughput and failures of streaming queries as metrics, for monitoring."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from ..kafka.model import TopicPartition
from ..kafka.observe import catalogue
from ..kafka.observe.metrics import MetricsRegistry, MetricsSnapshot, Observed
from .progress import as_dict, read_progress


@dataclass(slots=True)
class _Running:
    """A query between its start and its end."""

    label: str
    heard_at: float
    run_id: str
    lag: dict[TopicPartition, int] = field(default_factory=dict)


class StreamMetrics(StreamingQueryListener):  # type: ignore[misc]
    """Collects ``kafka.stream.*`` of all queries of the session that it listens to, from Spark's progress. An
    exporter reads it like a client.

        metrics = StreamMetrics()
        spark.streams.addListener(metrics)
        export_to_prometheus(metrics)

    A query is named by ``queryName``, or by its id, which stays the same as long as its checkpoint does. Lag
    has the age of the last micro-batch; it is gone once the query has ended.
    """

    def __init__(self) -> None:
        self._registry = MetricsRegistry()
        self._running: dict[str, _Running] = {}
        """By the id of the query."""
        self._former: dict[str, _Running] = {}
        """By the id of the query: the run before, of which the end is not heard."""

    def __repr__(self) -> str:
        return f"<StreamMetrics of {len(self._running)} queries>"

    def metrics(self) -> MetricsSnapshot:
        """The metrics so far. Any thread may call it."""
        observed: list[Observed] = []
        with self._registry.lock:
            for one in list(self._running.values()):
                observed.append(Observed(catalogue.STREAM_RUNNING, 1, (one.label,)))
                observed.append(Observed(catalogue.STREAM_HEARD, one.heard_at, (one.label,)))
                observed += [
                    Observed(catalogue.STREAM_LAG, behind, (one.label, tp.topic, str(tp.partition)))
                    for tp, behind in one.lag.items()
                ]
            return self._registry.snapshot(observed)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Begin with zeros, so that the first failure is seen as one more."""
        with self._registry.lock:
            # Spark says so at once, and a little later that the run before has ended, maybe of another name.
            before = self._running.pop(str(event.id), None)
            query = self._hear(str(event.id), event.name, str(event.runId))
            if before is not None:
                query.lag = before.lag
                self._former[str(event.id)] = before

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Count a micro-batch."""
        progress = as_dict(event.progress)
        read = read_progress(progress)
        written = int((progress.get("sink") or {}).get("numOutputRows") or 0)
        with self._registry.lock:
            query = self._hear(str(progress.get("id")), progress.get("name"), str(progress.get("runId")))
            query.lag = {
                tp: max(end - read.position.get(tp, 0), 0) for tp, end in sorted(read.latest.items())
            }
            self._registry.count(catalogue.STREAM_BATCHES, 1, query.label)
            self._registry.count(catalogue.STREAM_RECORDS, read.rows, query.label)
            self._registry.count(catalogue.STREAM_WRITTEN, max(written, 0), query.label)  # -1: not counted
            self._registry.measure(catalogue.STREAM_BATCH_DURATION, read.seconds, query.label)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Note that the query has looked for records."""
        with self._registry.lock:
            if (query := self._running.get(str(event.id))) is not None:
                query.heard_at = time.time()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Count a failure, if it was one."""
        with self._registry.lock:
            query = self._of_run(str(event.id), str(event.runId))
            for runs in (self._running, self._former):
                if (run := runs.get(str(event.id))) is not None and run.run_id == str(event.runId):
                    del runs[str(event.id)]
            if event.exception:
                label = str(event.id) if query is None else query.label
                self._registry.count(catalogue.STREAM_FAILURES, 1, label)

    def _of_run(self, query_id: str, run_id: str) -> _Running | None:
        former = self._former.get(query_id)
        is_former = former is not None and former.run_id == run_id
        return former if is_former else self._running.get(query_id)

    def _hear(self, query_id: str, name: str | None, run_id: str) -> _Running:
        """The query of this id: an older one of the session goes on without a start that was seen."""
        query = self._of_run(query_id, run_id)
        if query is None:
            query = self._running[query_id] = _Running(name or query_id, time.time(), run_id)
            for metric in (catalogue.STREAM_BATCHES, catalogue.STREAM_RECORDS, catalogue.STREAM_FAILURES):
                self._registry.count(metric, 0, query.label)
        query.heard_at = time.time()
        return query
