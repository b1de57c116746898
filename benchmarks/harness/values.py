"""What the records hold: bytes that nothing compresses, and JSON as event pipelines really send it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

WORDS = (
    *(
        "order",
        "basket",
        "payment",
        "refund",
        "shipped",
        "pending",
        "customer",
        "session",
        "mobile",
        "desktop",
    ),
    *("referrer", "campaign", "discount", "region", "warehouse", "courier", "invoice", "address", "country"),
    *("currency", "language", "browser", "platform", "version", "release", "feature"),
)


def incompressible(count: int, size: int, seed: int = 1) -> Iterator[bytes]:
    """``count`` values of ``size`` random bytes."""
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.randbytes(size)


def json_like(count: int, size: int, seed: int = 1) -> Iterator[bytes]:
    """``count`` JSON objects of exactly ``size`` bytes: ids and amounts vary, names and words repeat."""
    rng = random.Random(seed)
    for number in range(count):
        event = {
            "event_id": f"{rng.getrandbits(64):016x}",
            "user_id": rng.randrange(1_000_000),
            "type": rng.choice(WORDS),
            "amount": round(rng.random() * 1000, 2),
            "ts": 1_700_000_000_000 + number * 7,
            "text": "",
        }
        missing = size - len(json.dumps(event))
        event["text"] = " ".join(rng.choices(WORDS, k=missing // 6 + 2))[: max(missing, 0)].ljust(missing)
        yield json.dumps(event).encode()


VALUES = {"incompressible": incompressible, "json": json_like}
