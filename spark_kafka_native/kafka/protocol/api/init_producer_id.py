"""InitProducerId: the id and epoch of an idempotent or transactional producer (KIP-98, KIP-360)."""

from __future__ import annotations

from ..message import Request, Response, field
from ..wire import Error, Int16, Int32, Int64, String


class InitProducerIdResponse(Response):
    """The producer's id and epoch; both -1 on an error."""

    throttle_time_ms: Int32 = field(ignorable=True, default=0)
    error_code: Error
    producer_id: Int64 = field(default=-1)
    producer_epoch: Int16


class InitProducerIdRequest(Request[InitProducerIdResponse], api_key=22, versions=(0, 5), flexible=2):
    """Sent to the transaction coordinator, or to any broker if there is no transactional id.

    Version 6 (two-phase commit, KIP-939) is unstable in Kafka 4.3 and not declared.
    """

    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Int64 = field(since=3, default=-1)
    producer_epoch: Int16 = field(since=3, default=-1)
