"""ACLs on a test cluster: `ACLS` switches them on, `allow` grants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..kafka.admin.acls import Acl
from ..kafka.admin.admin import Admin

ACLS: Final[Mapping[str, str]] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Broker settings: all operations need a grant, except for clients of listeners without an identity.
"""


def allow(bootstrap_servers: str, user: str, operation: str, resource: str, name: str) -> None:
    """Let ``user`` do ``operation`` to a ``resource`` (topic, group, cluster or transactional_id).

    ``bootstrap_servers`` are those of a listener that permits everything; the name of the cluster is
    ``kafka-cluster``. Raises `BrokerError`.
    """
    with Admin(bootstrap_servers) as admin:
        admin.create_acls([Acl(resource=resource, name=name, principal=f"User:{user}", operation=operation)])
