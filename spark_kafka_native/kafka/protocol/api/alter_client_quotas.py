"""AlterClientQuotas: sets and removes limits of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

from ..message import Request, Struct
from ..wire import Boolean, Float64, String
from .alter_client_quotas_response import AlterClientQuotasResponse
from .describe_client_quotas import EntityData


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
