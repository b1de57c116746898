"""`error_tag`: how a failure is called in a tag."""

from __future__ import annotations

from ..errors import BrokerError


def error_tag(error: BaseException | None) -> str:
    """The name of a broker's error code, or of the exception's class; never its words, which are without
    end."""
    if isinstance(error, BrokerError):
        return error.error_code.name
    return "none" if error is None else type(error).__name__
