"""Creating topics on an embedded cluster."""

from __future__ import annotations

from collections.abc import Mapping

_SOURCE = """
import java.util.*;
import org.apache.kafka.clients.admin.*;

class CreateTopic {
    public static void main(String[] args) throws Exception {
        Map<String, String> config = new HashMap<>();
        for (int i = 4; i + 1 < args.length; i += 2) config.put(args[i], args[i + 1]);
        short replicas = Short.parseShort(args[3]);
        NewTopic topic = new NewTopic(args[1], Optional.of(Integer.parseInt(args[2])),
            replicas < 1 ? Optional.empty() : Optional.of(replicas)).configs(config);
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", args[0]))) {
            admin.createTopics(List.of(topic)).all().get();
            while (admin.describeTopics(List.of(args[1])).allTopicNames().get().get(args[1]).partitions()
                    .stream().anyMatch(partition -> partition.leader() == null)) Thread.sleep(20);
        }
    }
}
"""


def create_topic(
    bootstrap_servers: str,
    name: str,
    partitions: int,
    *,
    replication_factor: int | None = None,
    config: Mapping[str, object] | None = None,
) -> None:
    """Create a topic and wait until every partition has a leader."""
    from .java import run_java

    settings = [text for item in (config or {}).items() for text in map(str, item)]
    run_java(_SOURCE, bootstrap_servers, name, str(partitions), str(replication_factor or -1), *settings)
