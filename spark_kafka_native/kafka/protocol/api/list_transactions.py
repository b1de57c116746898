"""ListTransactions: the transactional ids that a broker coordinates (KIP-664)."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Error, Int32, Int64, String


class ListedTransaction(Struct, spec_name="TransactionState"):
    """One transactional id."""

    transactional_id: String
    producer_id: Int64
    transaction_state: String


class ListTransactionsResponse(Response):
    """The transactional ids of one coordinator."""

    throttle_time_ms: Int32
    error_code: Error
    unknown_state_filters: list[String]
    transaction_states: list[ListedTransaction]


class ListTransactionsRequest(Request[ListTransactionsResponse], api_key=66, versions=(0, 2), flexible=0):
    """Sent to every broker. An empty filter matches all; ``duration_filter`` in milliseconds, -1 for none."""

    state_filters: list[String]
    producer_id_filters: list[Int64]
    duration_filter: Int64 = field(since=1, default=-1)
    transactional_id_pattern: String | None = field(since=2, nullable=2, default=None)
