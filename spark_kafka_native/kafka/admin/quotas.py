"""`QuotaAdmin`: quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..protocol.api.client_quotas import (
    AlterClientQuotasRequest,
    ComponentData,
    DescribeClientQuotasRequest,
    EntityData,
    OpData,
    QuotaAlteration,
)
from ..runtime.deadline import Timeout
from .family import AdminFamily, ItemResult, Task, refuse

_ENTITY_TYPES: Final = ("user", "client-id", "ip")
_EXACT, _DEFAULT = 0, 1
_ALTERING: Final = Task("altering the quotas of", "AlterConfigs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The quotas of one entity."""

    entity: dict[str, str | None]
    """Names by type (``user``, ``client-id``, ``ip``); None is the default for all others of the type."""
    limits: dict[str, float]
    """By Kafka's names: ``producer_byte_rate`` and ``consumer_byte_rate`` (bytes/s), ``request_percentage``,
    ``controller_mutation_rate``, ``connection_creation_rate`` (per s)."""


class QuotaAdmin(AdminFamily):
    """Quotas."""

    def describe_quotas(
        self, entity: Mapping[str, str | None] | None = None, timeout: Timeout = None
    ) -> list[Quota]:
        """The quotas of all entities that have any, or of the one with exactly these names (None: the
        default): those of ``{"user": "bob"}`` are not those of bob with one client id.

        Raises `BrokerError`, and `ValueError` for an unknown type of entity.
        """
        components = [
            ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
            for kind, name in _checked(entity or {}).items()
        ]
        request = DescribeClientQuotasRequest(components=components, strict=bool(components))
        response = self._router.send_any(request, self._limit(timeout))
        refuse(
            ItemResult("quotas", response.error_code, response.error_message), "describing", "DescribeConfigs"
        )
        return [
            Quota(
                entity={part.entity_type: part.entity_name for part in entry.entity},
                limits={one.key: one.value for one in entry.values},
            )
            for entry in response.entries or ()
        ]

    def alter_quotas(
        self,
        entity: Mapping[str, str | None],
        limits: Mapping[str, float | None],
        timeout: Timeout = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Set the ``limits`` of an entity; None removes one, and limits that are not given stay.

        Raises `BrokerError` if the controller refuses, `ValueError` for an invalid entity or limit.
        """
        limit = self._limit(timeout)
        parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in _checked(entity).items()]
        if not parts or not limits:
            raise ValueError("an entity and at least one limit are needed")
        ops = [
            OpData(key=key, value=_number(key, value), remove=value is None) for key, value in limits.items()
        ]
        name = describe_entity(entity)

        def ask(_: list[Any]) -> Iterable[ItemResult]:
            request = AlterClientQuotasRequest(
                entries=[QuotaAlteration(entity=parts, ops=ops)], validate_only=validate_only
            )
            entries = self._ask_controller(request, limit).entries
            return [ItemResult(name, one.error_code, one.error_message) for one in entries]

        self._settle([name], ask, _ALTERING._replace(changes=not validate_only), limit)


def describe_entity(entity: Mapping[str, str | None]) -> str:
    """An entity for messages, as in ``user alice, client-id (default)``."""
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity.items())


def _checked(entity: Mapping[str, str | None]) -> dict[str, str | None]:
    for kind in entity:
        if kind not in _ENTITY_TYPES:
            raise ValueError(f"the type of an entity is one of {', '.join(_ENTITY_TYPES)}, not {kind!r}")
    return dict(entity)


def _number(key: str, value: float | None) -> float:
    number = 0.0 if value is None else float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{key} must be a number from 0, not {value!r}")
    return number
