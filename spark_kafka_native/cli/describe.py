"""``describe``: describes the cluster, or topics with their partitions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .options import (
    add_connection_options,
    add_json_option,
    add_topics,
    connect,
    given_topics,
    topics_matching,
)
from .output import bold, human_bytes, on_terminal, print_json, print_rows, printable

if TYPE_CHECKING:
    from ..kafka.admin.admin import Admin


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "describe",
        help="brokers of the cluster, or partitions of topics",
        description="Without names: the brokers of the cluster. With names: the partitions of these topics "
        "with their leaders and replicas, and the settings that are not defaults.",
    )
    add_topics(parser)
    parser.add_argument("--disks", action="store_true", help="without names: the disks of the brokers, too")
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Describe topics, or the cluster."""
    with connect(arguments) as admin:
        if arguments.names or arguments.topic:
            _topics(admin, arguments)
        else:
            _cluster(admin, arguments)
    return 0


def _cluster(admin: Admin, arguments: argparse.Namespace) -> None:
    cluster = admin.describe_cluster()
    brokers = [
        {
            "broker": one.node_id,
            "host": one.host,
            "port": one.port,
            "rack": one.rack,
            "controller": one.node_id == cluster.controller_id,
        }
        for one in cluster.brokers
    ]
    disks = _disks(admin) if arguments.disks else None
    if arguments.json:
        described = {
            "cluster_id": cluster.cluster_id,
            "controller_id": cluster.controller_id,
            "brokers": brokers,
        }
        print_json(described if disks is None else described | {"disks": disks})
        return
    if on_terminal():
        print(bold(f"Cluster {printable(cluster.cluster_id or '')}"))
    print_rows(("broker", "host", "port", "rack", "controller"), brokers, as_json=False)
    if disks is not None:
        print()
        shown = [
            one | {"size": human_bytes(one["size_bytes"]), "free": human_bytes(one["usable_bytes"])}
            for one in disks
        ]
        print_rows(("broker", "path", "replicas", "size", "free", "error"), shown, as_json=False)


def _disks(admin: Admin) -> list[dict[str, Any]]:
    return [
        {
            "broker": disk.node_id,
            "path": disk.path,
            "replicas": len(disk.replicas),
            "size_bytes": sum(replica.size_bytes for replica in disk.replicas.values()),
            "usable_bytes": disk.usable_bytes,
            "total_bytes": disk.total_bytes,
            "error": disk.error_code.name if disk.error_code else None,
        }
        for disk in admin.describe_log_dirs()
    ]


def _topics(admin: Admin, arguments: argparse.Namespace) -> None:
    from ..kafka.admin.configs import ConfigResource, ConfigSource

    described: list[dict[str, Any]] = []
    for name, topic in admin.describe_topics(topics_matching(admin.router, given_topics(arguments))).items():
        entries = admin.describe_configs(ConfigResource.topic(name)).values()
        described.append(
            {
                "topic": name,
                "topic_id": None if topic.topic_id is None else str(topic.topic_id),
                "internal": topic.internal,
                "settings": {one.name: one.value for one in entries if one.source is ConfigSource.TOPIC},
                "partitions": [
                    {
                        "topic": name,
                        "partition": one.partition,
                        "leader": one.leader,
                        "leader_epoch": one.leader_epoch,
                        "replicas": list(one.replica_nodes),
                        "in_sync": list(one.isr_nodes),
                    }
                    for _, one in sorted(topic.partitions.items())
                ],
            }
        )
    if arguments.json:
        print_json(described)
        return
    for row in described:
        if on_terminal():
            settings = ", ".join(f"{name}={value}" for name, value in row["settings"].items())
            heading = f"{row['topic']}  id {row['topic_id']}"
            print(bold(printable(heading)) + (f"  {printable(settings)}" if settings else ""))
        columns = ("topic", "partition", "leader", "leader_epoch", "replicas", "in_sync")
        print_rows(columns, row["partitions"], as_json=False)
