"""`StreamOptions`: everything a streaming read was told, parsed and checked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from ...kafka.errors import ConfigError
from ..options.option_values import OptionValues
from .admission import AdmissionLimits
from .read_options import ReadOptions

_ENDING: Final = {
    "endingOffsets": "ending offset not valid in streaming queries",
    "endingOffsetsByTimestamp": "ending timestamp not valid in streaming queries",
    "endingTimestamp": "ending timestamp not valid in streaming queries",
}


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """A streaming read. Plain data."""

    read: ReadOptions
    limits: AdmissionLimits
    commit_offsets: bool
    """Whether the offsets of completed batches are committed to ``kafka.group.id``."""

    @classmethod
    def parse(cls, values: OptionValues) -> StreamOptions:
        """Check everything that can be checked without a cluster. Raises `ConfigError`."""
        for name, refusal in _ENDING.items():
            if name in values:
                raise ConfigError(refusal)
        read = ReadOptions.for_stream(values, now_ms=time.time_ns() // 1_000_000)
        limits = AdmissionLimits(
            max_offsets=values.value("maxOffsetsPerTrigger"),
            max_bytes=values.value("maxBytesPerTrigger"),
            min_offsets=values.value("minOffsetsPerTrigger"),
            max_delay_ms=values.value("maxTriggerDelay"),
        )
        commit_offsets = values.value("commitOffsets")
        if commit_offsets and not read.has_group_id:
            raise ConfigError(
                "commitOffsets=true needs kafka.group.id: the group that the offsets are committed to"
                + values.near_miss("kafka.group.id")
            )
        return cls(read=read, limits=limits, commit_offsets=commit_offsets)
