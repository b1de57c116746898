"""What strangers' bytes may do to a reader: give a value, or an error of ours, in bounded time and memory.

`attempt` is that promise, `spoil` and `spoil_text` make hostile inputs out of good ones. `random_message`
draws a message from its declaration, and `lie` changes one that has been read in such a way that it can be
written again: a well-formed answer that is not true.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import random
import signal
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar, get_args
from uuid import UUID

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.protocol.message import ArrayOf, Field, Message, Struct, declared_fields
from spark_kafka_native.kafka.protocol.wire import Blob, Error, Fixed
from spark_kafka_native.kafka.records.crc32c import crc32c

CPU_S = 0.1
"""Of one small input; several times what the slowest of them needs."""
CAP = 1 << 20
FACTOR = 4
STUCK_S = 30.0

NASTY_BYTES = [0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF, 0x0F, 0x10]
NASTY_LENGTHS = [
    *(struct.pack(">i", n) for n in (-2, -1, 0, 1, 127, 1 << 16, (1 << 31) - 1, -(1 << 31))),
    *(struct.pack(">h", n) for n in (-2, -1, 0, 255, 32767, -32768)),
    b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x01", b"\xff\x7f", b"\x80\x00",
]  # fmt: skip
"""Of strings, arrays and tags, in both encodings: each too short, too long or not canonical somewhere."""

T = TypeVar("T")
Refusals = tuple[type[BaseException], ...]


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Around any number of calls of `attempt`, in the main thread: count allocations, and interrupt what
    computes for ever.
    """
    tracemalloc.start()
    before = signal.signal(signal.SIGVTALRM, _stuck)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        tracemalloc.stop()


def _stuck(_number: int, _frame: FrameType | None) -> None:
    raise AssertionError(f"it still computes after {STUCK_S:g} s")


def attempt(
    case: Callable[[], T],
    size: int,
    refusals: Refusals,
    *,
    factor: int = FACTOR,
    cap: int = CAP,
    cpu_s: float = CPU_S,
) -> T | BaseException:
    """What ``case`` returns, or which of ``refusals`` it raises; any other error, more than ``factor`` times
    the input's ``size`` and ``cap`` bytes at a time, or ``cpu_s`` of processor time fail the test.

    A case that took too long is tried twice more, without a count of allocations, which takes several times
    as long as the case; and the first call may compile or import something.
    """
    found, took_s, peak = _measured(case, refusals)
    if took_s >= cpu_s:
        tracemalloc.stop()
        took_s = min(_measured(case, refusals)[1] for _ in range(2))
        tracemalloc.start()
    assert took_s < cpu_s, f"{took_s:.3f} s of processor time for {size} bytes"
    assert peak <= factor * size + cap, f"{peak} bytes at a time for {size} bytes"
    return found


def _measured(case: Callable[[], T], refusals: Refusals) -> tuple[T | BaseException, float, int]:
    gc.disable()  # how long a collection takes is a matter of all other tests' objects
    signal.setitimer(signal.ITIMER_VIRTUAL, STUCK_S)
    if tracemalloc.is_tracing():
        tracemalloc.reset_peak()
    before, began = tracemalloc.get_traced_memory()[0], time.thread_time()
    found: T | BaseException
    try:
        found = case()
    except refusals as error:
        found = error
    finally:
        took_s = time.thread_time() - began
        gc.enable()
    return found, took_s, tracemalloc.get_traced_memory()[1] - before


# --- inputs -------------------------------------------------------------------------------------------------


def spoil(data: bytearray, rng: random.Random, first: int = 0) -> None:
    """Change some bytes from ``first`` on: flipped, left out, repeated, and put where a length may be."""
    for _ in range(rng.randrange(1, 5)):
        if len(data) <= first:
            return
        at = rng.randrange(first, len(data))
        match rng.randrange(7):
            case 0:
                data[at] = rng.choice(NASTY_BYTES)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + rng.randrange(1, 4)]
            case 3:
                data[at:at] = bytes(rng.choices(NASTY_BYTES, k=rng.randrange(1, 4)))
            case 4:
                data[at:at] = data[at : at + rng.randrange(1, 30)]
            case 5:
                lie = rng.choice(NASTY_LENGTHS)
                data[at : at + len(lie)] = lie
            case 6:
                del data[at if rng.randrange(4) == 0 else len(data) - 1 :]


NASTY_WORDS = [
    "", " ", "\0", "\n", "\\", '"', "'", "=", ",", ";", ":", "{", "}", "[", "]", "-", "-1", "0", "1e999",
    "NaN", "Infinity", "null", "true", "1" * 400, "9" * 5000,
    "\\u12", "\ud800", "\u2028", "é", "😀", "[" * 3000,
    '{"a":' * 3000, "%s%n", "${env:HOME}", "${file:/etc/passwd:x}",
]  # fmt: skip


def spoil_text(text: str, rng: random.Random) -> str:
    """A text with some parts replaced, left out, repeated or exchanged."""
    for _ in range(rng.randrange(1, 4)):
        at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        match rng.randrange(5):
            case 0:
                text = text[:at] + rng.choice(NASTY_WORDS) + text[at:]
            case 1:
                text = text[:at] + rng.choice(NASTY_WORDS) + text[to:]
            case 2:
                text = text[:at] + text[to:]
            case 3:
                text = text[:to] + text[at:]
            case 4:
                text = text[:at] + text[at : at + 1] * rng.randrange(2, 50) + text[at:]
    return text


@functools.cache
def _fields(struct_class: type[Struct], version: int) -> list[Field]:
    return [one for one in declared_fields(struct_class) if one.present(version)]


def described_otherwise(spilled: bytes, change: Callable[[str], str]) -> bytes:
    """A spill file with the JSON of its first batch changed, and checksums that fit."""
    at = spilled.index(b"\n") + 1
    meta_length, length = struct.unpack_from(">II", spilled, at)
    start = at + 12
    meta = change(spilled[start : start + meta_length].decode()).encode(errors="surrogatepass")
    batch = spilled[start + meta_length : start + meta_length + length]
    lengths = struct.pack(">II", len(meta), length)
    crcs = [struct.pack(">I", one) for one in (crc32c(lengths), crc32c(meta) ^ crc32c(batch))]
    behind = spilled[start + meta_length + length + 4 :]
    return b"".join([spilled[:at], lengths, crcs[0], meta, batch, crcs[1], behind])


def random_message(message: type[Message], version: int, rng: random.Random) -> Any:
    """A message with any value in what ``version`` has."""
    return _random_struct(message, version, rng)


def _random_struct(struct_class: type[Struct], version: int, rng: random.Random) -> Any:
    present = _fields(struct_class, version)
    return struct_class(**{one.name: _random_field(one, version, rng) for one in present})


def _random_field(declared: Field, version: int, rng: random.Random) -> Any:
    if version >= declared.nullable and rng.randrange(4) == 0:
        return None
    return _random_value(declared.type, version, rng)


def _random_value(kind: Any, version: int, rng: random.Random) -> Any:
    if isinstance(kind, ArrayOf):
        return [_random_value(kind.element, version, rng) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    if isinstance(kind, type):
        return _random_struct(kind, version, rng)
    if isinstance(kind, Fixed):
        return _random_fixed(kind, rng)
    if isinstance(kind, Blob):
        return rng.randbytes(rng.choice([0, 1, 20]))
    return rng.choice(["", "t", "127.0.0.1", "é" * 5, "x" * 200])


def _random_fixed(kind: Fixed, rng: random.Random) -> Any:
    if kind in get_args(Error):
        return rng.choice(list(ErrorCode))
    if kind.format == "?":
        return rng.random() < 0.5
    if kind.name == "uuid":
        return rng.choice([UUID(int=0), UUID(bytes=rng.randbytes(16))])
    if kind.name == "float64":
        return rng.choice([0.0, -1.0, 1e300, float("inf")])
    bits, signed = 8 * struct.calcsize(">" + kind.format), kind.format.islower()
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    near = [n for n in (-2, -1, 0, 1, 2, 3, 1000) if low <= n]
    return rng.choice([*near[: 3 if bits == 8 else None], low, high])


def lie(message: Any, version: int, rng: random.Random) -> Any:
    """``message`` with one of its fields, at any depth, changed to another value that it may have."""
    present = _fields(type(message), version)
    if not present:
        return message
    # Most lies are to be about what matters: deep in the answer, and not about how long it was throttled.
    weights = [4 if isinstance(one.type, ArrayOf) else 1 for one in present]
    chosen = rng.choices(present, weights)[0]
    value = getattr(message, chosen.name)
    return dataclasses.replace(message, **{chosen.name: _lied(chosen, value, version, rng)})


def _lied(declared: Field, value: Any, version: int, rng: random.Random) -> Any:
    if isinstance(value, list) and value and rng.randrange(4):
        at, several = rng.randrange(len(value)), list(value)
        match rng.randrange(6):
            case 0:
                del several[at]
            case 1:
                several.append(several[at])
            case 2:
                rng.shuffle(several)
            case _:
                if isinstance(several[at], Struct):
                    several[at] = lie(several[at], version, rng)
                elif isinstance(declared.type, ArrayOf):
                    several[at] = _random_value(declared.type.element, version, rng)
        return several
    if isinstance(value, Struct):
        return lie(value, version, rng)
    if isinstance(value, bytes | memoryview) and len(value):
        spoilt = bytearray(value)
        spoil(spoilt, rng)
        return spoilt if isinstance(value, memoryview) else bytes(spoilt)
    return _random_field(declared, version, rng)
