"""Values out of texts, by the rules of Spark's ``from_json`` and ``from_csv``: dates, timestamps, decimals,
and time zones by name. Each raises `ValueError` for a text that is none."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from .errors import FormatError

_DATE: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
JSON_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
JAVA_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""As Java's ``BigDecimal`` reads it."""
_MAX_DIGITS: Final = 400
"""Of a number that becomes a decimal, which takes quadratic time."""


def parse_zone(name: str) -> dt.tzinfo:
    """The time zone called ``name``. Raises `FormatError`."""
    try:
        return dt.UTC if name.upper() in ("UTC", "Z") else ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        raise FormatError(f"timeZone: there is no time zone '{name}'") from error


def decimal_parser(precision: int, scale: int) -> Callable[[str, re.Pattern[str]], Decimal]:
    """Reads a number that matches the pattern, rounded half up to the scale."""
    context = Context(prec=precision, rounding=ROUND_HALF_UP, Emax=10**6, Emin=-(10**6))
    step = Decimal(1).scaleb(-scale)

    def parse(text: str, pattern: re.Pattern[str]) -> Decimal:
        if len(text) > _MAX_DIGITS or not pattern.fullmatch(text):
            raise ValueError("is not a number")
        try:
            return Decimal(text).quantize(step, context=context)
        except InvalidOperation:
            raise ValueError(f"is not a decimal({precision},{scale})") from None

    return parse


def round_to_float32(text: str, value: float) -> float:
    """``value``, which ``text`` is, with 32 bits: from the text, as Arrow does where it can; by way of a
    double it would be rounded twice."""
    try:
        if math.isfinite(value):
            return float(pa.scalar(text, pa.string()).cast(pa.float32()).as_py())
    except pa.ArrowInvalid:  # ``.5``, or beyond the largest
        pass
    with np.errstate(over="ignore"):
        return float(np.float32(value))


_TIMESTAMP: Final = re.compile(
    r"(?P<date>\d{4}-\d{2}-\d{2})(?:[ T](?P<time>\d{2}(?::\d{2}(?::\d{2}(?:\.\d+)?)?)?)\s*(?P<zone>\S*))?"
)

_ISO_TIMESTAMP: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-9]{2})?"
)
"""The most usual ones, which Python reads at once."""


def parse_timestamp(text: str, zone: dt.tzinfo | None) -> dt.datetime:
    """ISO 8601. ``zone`` is that of a text without one; None for a type without a time zone."""
    shown = text.strip()
    try:
        if _ISO_TIMESTAMP.fullmatch(shown):
            moment = dt.datetime.fromisoformat(shown)
            if moment.tzinfo is None:
                return moment.replace(tzinfo=zone)
            if zone is not None:
                return moment
        return _parse_timestamp(shown, zone)
    except (ValueError, OverflowError, LookupError, OSError):  # OSError: a name that is a folder's
        raise ValueError("is not a timestamp") from None


def _parse_timestamp(text: str, zone: dt.tzinfo | None) -> dt.datetime:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError
    clock = match["time"] or "00:00:00"
    whole, _, fraction = clock.partition(".")
    moment = dt.datetime.fromisoformat(f"{match['date']}T{whole}{'.' + fraction[:6] if fraction else ''}")
    named = match["zone"] or ""
    if zone is None:
        if named:
            raise ValueError
        return moment
    if not named:
        return moment.replace(tzinfo=zone)
    if named[0] in "+-Z":
        return dt.datetime.fromisoformat(moment.isoformat() + named)
    return moment.replace(tzinfo=ZoneInfo(named))


def parse_date(text: str) -> dt.date:
    """``2024-02-29``, and a time behind it, which is not looked at."""
    shown = text.strip()
    # More than that is a date to Python: weeks, and dates without hyphens.
    if shown[10:11] not in ("", "T", " ") or not _DATE.fullmatch(shown[:10]):
        raise ValueError("is not a date")
    try:
        return dt.date.fromisoformat(shown[:10])
    except ValueError:
        raise ValueError("is not a date") from None
