"""DescribeClientQuotas, AlterClientQuotas: limits of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

from ..message import Request, Response, Struct
from ..wire import Boolean, Error, Float64, Int8, Int32, String


class EntityData(Struct):
    """One part of an entity. A null name is the default of its type."""

    entity_type: String
    entity_name: String | None


class ValueData(Struct):
    """A limit."""

    key: String
    value: Float64


class DescribedQuotaEntry(Struct, spec_name="EntryData"):
    """An entity and its limits."""

    entity: list[EntityData]
    values: list[ValueData]


class DescribeClientQuotasResponse(Response):
    """One entry per entity that matches; null with an error."""

    throttle_time_ms: Int32
    error_code: Error
    error_message: String | None
    entries: list[DescribedQuotaEntry] | None


class ComponentData(Struct):
    """A condition on entities. ``match_type`` 0: this name, 1: the default, 2: any name."""

    entity_type: String
    match_type: Int8
    match: String | None


class DescribeClientQuotasRequest(
    Request[DescribeClientQuotasResponse], api_key=48, versions=(0, 1), flexible=1
):
    """Without components, all entities match. ``strict`` excludes entities with further types."""

    components: list[ComponentData]
    strict: Boolean


class AlteredQuotaEntry(Struct, spec_name="EntryData"):
    """The outcome of one entity."""

    error_code: Error
    error_message: String | None
    entity: list[EntityData]


class AlterClientQuotasResponse(Response):
    """One outcome per entity."""

    throttle_time_ms: Int32
    entries: list[AlteredQuotaEntry]


class OpData(Struct):
    """A limit to set or to remove."""

    key: String
    value: Float64
    remove: Boolean


class QuotaAlteration(Struct, spec_name="EntryData"):
    """An entity and the changes to its limits."""

    entity: list[EntityData]
    ops: list[OpData]


class AlterClientQuotasRequest(Request[AlterClientQuotasResponse], api_key=49, versions=(0, 1), flexible=1):
    """Sent to the controller."""

    entries: list[QuotaAlteration]
    validate_only: Boolean
