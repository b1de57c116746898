"""`Admin`: the methods of all families in one class."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from ..cluster.router import Router
from ..config.client_config import Bootstrap, configs_from
from .acls import AclAdmin
from .cluster import ClusterAdmin
from .configs import ConfigAdmin
from .delegation_tokens import TokenAdmin
from .groups import GroupAdmin
from .quotas import QuotaAdmin
from .scram_users import ScramAdmin
from .topics import TopicAdmin
from .transactions import TransactionAdmin


class Admin(
    TopicAdmin,
    ConfigAdmin,
    GroupAdmin,
    ClusterAdmin,
    AclAdmin,
    ScramAdmin,
    TokenAdmin,
    QuotaAdmin,
    TransactionAdmin,
):
    """Describes and changes a cluster: ``Admin("localhost:9092")``.

    ``bootstrap`` is the same as for `Producer` and `Consumer`, with the fields of `ClientConfig` and
    `SecurityConfig` as keywords; or a `Router`, which the caller still has to close. Connects on first use.
    Any thread may use it.

    Every method takes a ``timeout``: seconds, or a `Deadline` (default: ``default.api.timeout.ms``). It
    retries errors that may be temporary, and raises a `BrokerError` that names the refused item.
    """

    def __init__(self, bootstrap: Bootstrap | Router | None = None, **settings: Any) -> None:
        self._owns_router = not isinstance(bootstrap, Router)
        if isinstance(bootstrap, Router):
            if settings:
                raise TypeError(f"a router has its settings: {', '.join(settings)} can't be given with it")
            super().__init__(bootstrap)
        else:
            (config,) = configs_from(bootstrap, settings)
            super().__init__(Router(config))

    @property
    def router(self) -> Router:
        """Metadata and connections, for functions that take a router (`list_offsets`,
        `committed_offsets`).
        """
        return self._router

    def close(self) -> None:
        """Close the connections; calls in progress and later ones raise `ClientClosedError`. A router that
        was given stays open.
        """
        if self._owns_router:
            self._router.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Admin of {', '.join(self._router.config.bootstrap_servers)}>"
