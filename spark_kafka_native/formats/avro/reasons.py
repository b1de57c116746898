"""Why a payload can't be read, and why a row can't be written: the numbers of kernels, and their texts."""

from __future__ import annotations

from enum import IntEnum


class BadPayload(IntEnum):
    """Why a payload can't be read."""

    END = 1
    LEFT_OVER = 2
    VARINT = 3
    LENGTH = 4
    UTF8 = 5
    BOOL = 6
    SYMBOL = 7
    BRANCH = 8
    DECIMAL = 9
    COUNT = 10
    EXPANSION = 11
    RANGE = 12
    UNKNOWN_SYMBOL = 13
    RESOLUTION = 14
    BLOCK = 15
    KEY_TWICE = 16


class BadRow(IntEnum):
    """Why a row can't be written."""

    NULL = 1
    SIZE = 2
    DIGITS = 3
    MEMBERS = 4
    COLUMN = 5
    RANGE = 6


_PAYLOAD = {
    BadPayload.END: "the payload ends within it",
    BadPayload.LEFT_OVER: "there are bytes behind the value",
    BadPayload.VARINT: "a number has too many bytes",
    BadPayload.LENGTH: "a length is negative",
    BadPayload.UTF8: "it is not UTF-8",
    BadPayload.BOOL: "it is neither 0 nor 1",
    BadPayload.SYMBOL: "it is none of the symbols of its enum",
    BadPayload.BRANCH: "it is none of the types of its union",
    BadPayload.DECIMAL: "it has more digits than its type, or none",
    BadPayload.COUNT: "it has more elements than bytes are left",
    BadPayload.EXPANSION: "it would be very much larger than its bytes",
    BadPayload.RANGE: "the number does not fit its type",
    BadPayload.UNKNOWN_SYMBOL: "the schema of the read does not have its symbol",
    BadPayload.RESOLUTION: "the schema of the read does not have its type",
    BadPayload.BLOCK: "the size of a block is wrong",
    BadPayload.KEY_TWICE: "it has a key twice",
}
_ROW = {
    BadRow.NULL: "is null, and its schema allows no null",
    BadRow.SIZE: "has another size than the fixed of its schema",
    BadRow.DIGITS: "is too large for the fixed of its schema",
    BadRow.MEMBERS: "is a union, so that exactly one of its members must not be null",
    BadRow.COLUMN: "has offsets that leave its data",
    BadRow.RANGE: "is too large for the unit of its schema",
}


def describe_payload(reason: int, place: str) -> str:
    """``place``: the path of the value that could not be read."""
    text = _PAYLOAD[BadPayload(reason)]
    return f"it is not of its Avro schema: {f'`{place}`: ' if place else ''}{text}"


def describe_row(reason: int, place: str) -> str:
    """``place``: the path of the value that can't be written."""
    return f"{f'`{place}`' if place else 'the value'} {_ROW[BadRow(reason)]}"
