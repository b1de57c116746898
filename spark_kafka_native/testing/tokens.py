"""Bearer tokens that a test broker takes: without a signature, so that any client can make them."""

from __future__ import annotations

import base64
import json
import time


def unsigned_token(user: str, lifetime_s: float = 3600) -> str:
    """A JWT (``alg: none``) for ``user`` that expires in ``lifetime_s``; a negative one has expired
    already.
    """
    now = time.time()
    claims = {"sub": user, "iat": int(min(now, now + lifetime_s - 1)), "exp": now + lifetime_s}
    return f"{_part({'alg': 'none'})}.{_part(claims)}."


def _part(value: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
