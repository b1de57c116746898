"""What the records hold: bytes that nothing compresses, and JSON as event pipelines really send it."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from typing import Any

TYPES = ("page_view", "search", "add_to_basket", "checkout", "payment", "refund", "login", "logout")
COUNTRIES = ("DE", "FR", "GB", "US", "PL", "ES", "IT", "NL", "SE", "JP")
CHANNELS = ("web", "ios", "android", "partner")
PAGES = ("home", "category", "product", "basket", "checkout", "account", "help")
AGENTS = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko)",
    "Mozilla/5.0 (X11; Linux x86_64; rv:127.0) Gecko/20100101 Firefox/127.0",
)
EXPERIMENTS = ("new_checkout", "faster_search", "dark_mode", "free_shipping_banner", "recommendations_v2")


def incompressible(count: int, size: int, seed: int = 1) -> Iterator[bytes]:
    """``count`` values of ``size`` random bytes."""
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.randbytes(size)


def json_like(count: int, size: int, seed: int = 1) -> Iterator[bytes]:
    """``count`` JSON events of exactly ``size`` bytes (>= 190): names repeat, ids and numbers don't."""
    rng = random.Random(seed)
    for number in range(count):
        event: dict[str, Any] = {
            "event_id": f"{rng.getrandbits(64):016x}",
            "ts": 1_700_000_000_000 + number * 7,
            "type": rng.choice(TYPES),
            "user_id": rng.randrange(1_000_000),
            "country": rng.choice(COUNTRIES),
            "amount": round(rng.random() * 1000, 2),
            "currency": "EUR",
            "channel": rng.choice(CHANNELS),
        }
        if size > 900:
            event |= build_context(rng)
        event["trace"] = ""
        # The rest is random: padding that compresses would flatter every contender.
        missing = size - len(json.dumps(event))
        yield json.dumps(event | {"trace": rng.randbytes(missing).hex()[:missing]}).encode()


def build_context(rng: random.Random) -> dict[str, Any]:
    """What web analytics adds to an event: some 800 bytes."""
    product = rng.randrange(50_000)
    return {
        "page": {
            "url": f"https://shop.example.com/{rng.choice(PAGES)}/{product}?ref={rng.choice(PAGES)}",
            "referrer": f"https://www.example.org/search?q={rng.choice(TYPES)}",
            "load_ms": rng.randrange(50, 3000),
        },
        "device": {
            "user_agent": rng.choice(AGENTS),
            "screen": {
                "width": rng.choice((390, 1280, 1920, 2560)),
                "height": rng.choice((844, 720, 1080, 1440)),
            },
            "ip": ".".join(str(rng.randrange(256)) for _ in range(4)),
        },
        "items": [
            {
                "sku": f"SKU-{product + n:06d}",
                "quantity": rng.randrange(1, 4),
                "price": rng.randrange(99, 99_999) / 100,
            }
            for n in range(4)
        ],
        "campaign": {
            "source": rng.choice(("newsletter", "search_ads", "affiliate", "direct")),
            "medium": rng.choice(("email", "cpc", "referral", "none")),
            "name": rng.choice(("summer_sale", "back_to_school", "black_friday", "spring_cleaning")),
        },
        "experiments": {name: rng.choice(("control", "treatment")) for name in EXPERIMENTS},
    }


AVRO_EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "event_id", "type": "string"},
        {"name": "ts", "type": "long"},
        {"name": "type", "type": "string"},
        {"name": "user_id", "type": "long"},
        {"name": "country", "type": ["null", "string"]},
        {"name": "amount", "type": "double"},
        {"name": "currency", "type": "string"},
        {"name": "channel", "type": {"type": "enum", "name": "Channel", "symbols": list(CHANNELS)}},
        {"name": "trace", "type": "string"},
    ],
}


def avro_events(count: int, size: int, seed: int = 1) -> Iterator[bytes]:
    """``count`` events of some ``size`` bytes (>= 70) in Avro."""
    import fastavro

    rng, schema = random.Random(seed), fastavro.parse_schema(AVRO_EVENT)
    for number in range(count):
        event = {
            "event_id": f"{rng.getrandbits(64):016x}",
            "ts": 1_700_000_000_000 + number * 7,
            "type": rng.choice(TYPES),
            "user_id": rng.randrange(1_000_000),
            "country": rng.choice((None, *COUNTRIES)),
            "amount": round(rng.random() * 1000, 2),
            "currency": "EUR",
            "channel": rng.choice(CHANNELS),
            "trace": rng.randbytes(size).hex()[: size - 62],
        }
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, event)
        yield out.getvalue()


VALUES = {"incompressible": incompressible, "json": json_like, "avro": avro_events}
