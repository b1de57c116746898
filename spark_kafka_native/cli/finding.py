"""`Finding`: what `doctor` has looked at, how that is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check and its outcome."""

    check: str
    status: str
    """``ok``, ``note`` (good to know), ``warning`` or ``error`` (nothing works while it is so)."""
    detail: str
    advice: str = ""


def ok(check: str, detail: str) -> Finding:
    """A check that found nothing wrong."""
    return Finding(check=check, status="ok", detail=detail)


def told(check: str, detail: str, advice: str = "") -> Finding:
    """Good to know."""
    return Finding(check=check, status="note", detail=detail, advice=advice)


def warning(check: str, detail: str, advice: str) -> Finding:
    """Something that may hurt later."""
    return Finding(check=check, status="warning", detail=detail, advice=advice)


def error(check: str, detail: str, advice: str = "") -> Finding:
    """Something that keeps others from working."""
    return Finding(check=check, status="error", detail=detail, advice=advice)
