"""The response of AlterClientQuotas (KIP-546)."""

from __future__ import annotations

from ..message import Response, Struct
from ..wire import Error, Int32, String
from .describe_client_quotas import EntityData


class AlteredQuotaEntry(Struct, spec_name="EntryData"):
    """The outcome of one entity."""

    error_code: Error
    error_message: String | None
    entity: list[EntityData]


class AlterClientQuotasResponse(Response):
    """One outcome per entity."""

    throttle_time_ms: Int32
    entries: list[AlteredQuotaEntry]
