"""`ReaderConfig`: how a consumer reads on and on. What every fetch needs is in `ConsumerConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.client_config import ConsumerConfig
from ..config.properties import INT32_MAX, property_field
from .offset_reset import OffsetReset


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(ConsumerConfig):
    """A `ConsumerConfig` with what reading without an end takes besides."""

    auto_offset_reset: OffsetReset = property_field(  # noqa: RUF009 - it returns a field
        "auto.offset.reset", OffsetReset.NONE, OffsetReset.parse
    )
    """Where to go on when the offset is not in the log: ``earliest``, ``latest``, ``by_duration:PT24H``, or
    ``none``: an error."""
    prefetch_max_bytes: int = property_field(
        "prefetch.max.bytes", 32 * 1024 * 1024, min_value=1, max_value=INT32_MAX
    )
    """Limit of records fetched ahead and not handed out, decoded. A response of each broker comes on top."""
    max_poll_records: int = property_field("max.poll.records", 500, min_value=1, max_value=INT32_MAX)
    """Limit of records that one ``poll`` returns."""
