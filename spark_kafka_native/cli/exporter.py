"""``exporter``: serves the lag of groups and the ends of topics to Prometheus."""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..kafka.errors import ConfigError, KafkaError, SecurityError
from .cluster_moment import ClusterMoment, look_at_cluster
from .options import add_connection_options, connect, number
from .output import note

if TYPE_CHECKING:
    from ..kafka.observe.metrics import MetricsSnapshot, Observed

_LISTEN, _INTERVAL_S = "127.0.0.1:9308", 15
_KEPT_LOOKS, _KEPT_S = 4, 60.0
"""From its end, the last look is served for 4 intervals, at least for 60 seconds, and for as long as it took:
one that fails must not reset an alert, and old numbers must not pass for new ones."""


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "exporter",
        help="serve the lag of groups and the ends of topics to Prometheus",
        description="Looks at the cluster once in an interval, and serves what it saw at "
        "http://HOST:PORT/metrics, until Ctrl-C or refused credentials. A scrape never waits for the "
        "cluster. conf/prometheus has rules for alerts.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="TOPIC", help="only these topics, and the groups that read them"
    )
    parser.add_argument(
        "--listen", type=_address, default=_LISTEN, metavar="HOST:PORT",
        help=f"where to serve; 0.0.0.0 stands for all addresses of this machine (default {_LISTEN})",
    )  # fmt: skip
    parser.add_argument(
        "-i", "--interval", type=number(1, 3600), default=_INTERVAL_S, metavar="SECONDS",
        help=f"time between two looks (default {_INTERVAL_S})",
    )  # fmt: skip
    parser.add_argument(
        "--by-partition", action="store_true", help="a value for each partition instead of the topic's sum"
    )
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Look and serve until a signal ends it, or refused credentials do."""
    from prometheus_client import CollectorRegistry, start_http_server

    from ..kafka.observe.prometheus import export_to_prometheus

    host, port = arguments.listen
    watched = WatchedCluster(max(_KEPT_S, _KEPT_LOOKS * arguments.interval))
    registry = CollectorRegistry()
    export_to_prometheus(watched, registry, by_partition=arguments.by_partition)
    with connect(arguments) as admin:
        server, _ = start_http_server(port, host, registry)
        try:
            shown = f"[{host}]" if ":" in host else host
            note(f"serving http://{shown}:{server.server_port}/metrics")
            while True:
                try:
                    watched.see(look_at_cluster(admin, arguments.names))
                except (SecurityError, ConfigError):
                    raise  # each further login with a wrong password may lock the account
                except KafkaError as error:
                    watched.miss(error)
                time.sleep(arguments.interval)
        finally:
            server.shutdown()
            server.server_close()


class WatchedCluster:
    """The last look at a cluster, as metrics."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._lock = threading.Lock()
        self._moment: ClusterMoment | None = None
        self._looked_at = self._kept_until = 0.0
        self._up = False
        self._said = ""

    def see(self, moment: ClusterMoment) -> None:
        """Serve ``moment``, of a look that ends now. The next one may take as long."""
        now = time.monotonic()
        with self._lock:
            self._moment, self._looked_at, self._up = moment, time.time(), True
            self._kept_until = now + self._kept_s + (now - moment.at)
        self._say("; ".join(moment.problems[:3]))

    def miss(self, error: KafkaError) -> None:
        """Note that a look failed. The last one that did not is served for a while."""
        with self._lock:
            self._up = False
        self._say(str(error))

    def metrics(self) -> MetricsSnapshot:
        """The metrics of the last look, while it is not too old."""
        from ..kafka.observe.metrics import MetricsRegistry

        return MetricsRegistry().snapshot(self._observed())

    def _observed(self) -> Iterator[Observed]:
        from ..kafka.observe import catalogue
        from ..kafka.observe.metrics import Observed

        with self._lock:
            moment, looked_at, up = self._moment, self._looked_at, self._up
            fresh = time.monotonic() < self._kept_until
        yield Observed(catalogue.EXPORTER_UP, int(up and fresh))
        yield Observed(catalogue.EXPORTER_LOOKED, looked_at)
        if moment is None or not fresh:
            return
        yield Observed(catalogue.EXPORTER_PROBLEMS, len(moment.problems))
        yield Observed(catalogue.CLUSTER_BROKERS, moment.brokers)
        for topic, count in Counter(tp.topic for tp in moment.ends).items():
            yield Observed(catalogue.CLUSTER_PARTITIONS, count, (topic,))
        for tp, end in moment.ends.items():
            yield Observed(catalogue.CLUSTER_END_OFFSET, end, (tp.topic, str(tp.partition)))
        for group, count in moment.members.items():
            yield Observed(catalogue.CLUSTER_GROUP_MEMBERS, count, (group,))
        for group, committed in moment.groups.items():
            for tp, offset in committed.items():
                tags = (group, tp.topic, str(tp.partition))
                yield Observed(catalogue.CLUSTER_GROUP_OFFSET, offset, tags)
                yield Observed(catalogue.CLUSTER_GROUP_LAG, max(0, moment.ends[tp] - offset), tags)

    def _say(self, problem: str) -> None:
        if problem and problem != self._said:
            note(f"warning: {problem}")
        self._said = problem


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"HOST:PORT is wanted, not {text!r}")
    return host.strip("[]") or "0.0.0.0", int(port)
