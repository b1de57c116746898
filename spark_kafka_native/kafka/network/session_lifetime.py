"""`SessionLifetime`: when a SASL session ends, and when to replace its connection before that (KIP-368)."""

from __future__ import annotations

import random
import time
from typing import NamedTuple, Self

RENEW_FROM, RENEW_TO = 0.8, 0.9
"""Between these parts of a SASL session's lifetime its connection is replaced: not all of them at once."""


class SessionLifetime(NamedTuple):
    """Moments in monotonic seconds; infinite for a session that does not end."""

    renew_at: float = float("inf")
    expires_at: float = float("inf")

    @classmethod
    def starting(cls, began: float, lifetime_ms: int) -> Self:
        """Of a session of ``lifetime_ms`` (0: without an end) that began no earlier than ``began``."""
        if not lifetime_ms:
            return cls()
        share = random.uniform(RENEW_FROM, RENEW_TO)
        return cls(began + lifetime_ms / 1000 * share, began + lifetime_ms / 1000)

    @property
    def renewal_due(self) -> bool:
        """Whether it ends soon."""
        return time.monotonic() >= self.renew_at

    @property
    def expired(self) -> bool:
        """Whether it has ended."""
        return time.monotonic() >= self.expires_at
