"""`Secret`: a text that is never printed. Configs hold passwords, keys and tokens as secrets; only the code
that sends one calls `reveal`.

A secret, or another security setting, may also be a *reference*, ``env:NAME`` or ``file:/path``, which is
resolved where it is used (`security.config_providers`), on the driver and on the executors alike.
"""

from __future__ import annotations

import re
from typing import Any, Final

HIDDEN: Final = "****"

_REFERENCE: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/[^\0\r\n]+")


class Secret:
    """A hashable, picklable text that ``repr``, ``str`` and ``format`` hide.

    Pickles contain the text: that is how Spark ships configs to executors. It has no length, no order and no
    ``+``.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a Secret is made of a str, not of {type(text).__name__}")
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        import hmac  # late: it imports OpenSSL, and secrets are seldom compared

        return hmac.compare_digest(
            self._text.encode(errors="surrogatepass"), other._text.encode(errors="surrogatepass")
        )

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self._text,)


def is_reference(text: str) -> bool:
    """True if ``text`` is the name of an environment variable or an absolute path, rather than the value
    itself.
    """
    return _REFERENCE.fullmatch(text) is not None
