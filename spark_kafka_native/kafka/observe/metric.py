"""`Metric`: the name, kind, unit and tags of something that is counted or measured."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """How the values of two moments relate."""

    COUNTER = "counter"
    """It only grows: the difference is what happened in between."""
    GAUGE = "gauge"
    """As it is at that moment."""
    DISTRIBUTION = "distribution"
    """Many values, of which the count, the sum and a histogram grow."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)  # one object each, found by its identity
class Metric:
    """Declared once, in `catalogue`."""

    name: str
    """Dotted, as OpenTelemetry names metrics."""
    kind: Kind
    unit: str
    """As UCUM writes it, which OpenTelemetry asks for: ``s``, ``By`` (bytes), ``{record}`` and the like."""
    description: str
    tags: tuple[str, ...] = ()
    """The names of its tags, in the order in which their values are given."""
