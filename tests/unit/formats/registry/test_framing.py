"""What stands before payloads: taken off, put on, and the rows of each schema together."""

import random
import uuid

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.formats.registry.framing import Framed, Unframed, frame_id, split, with_prefix

GUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


def binary(*rows: bytes | None) -> pa.Array:
    return pa.array(rows, pa.binary())


def parts(payloads: pa.Array, headers: pa.Array | None = None) -> list[object]:
    return [
        (one.key, None if one.rows is None else one.rows.tolist(), one.bodies.to_pylist())
        if isinstance(one, Framed)
        else (one.rows.tolist(), one.reason)
        for one in split(payloads, headers)
    ]


def test_one_schema_takes_the_whole_column_nulls_included() -> None:
    payloads = binary(b"\0\0\0\1\2ab", None, b"\0\0\0\1\2", b"\0\0\0\1\2\0\0")
    assert parts(payloads) == [(258, None, [b"ab", None, b"", b"\0\0"])]


def test_a_slice_of_a_column() -> None:
    payloads = binary(b"nonsense", b"\0\0\0\0\1a", None, b"\0\0\0\0\1b", b"\0\0\0\0\2b").slice(1, 3)
    assert parts(payloads) == [(1, None, [b"a", None, b"b"])]
    mixed = binary(b"x", b"\0\0\0\0\2a", None, b"\0\0\0\0\1b", b"\0\0\0\0\2c").slice(1)
    assert parts(mixed) == [(1, [2], [b"b"]), (2, [0, 3], [b"a", b"c"])]


def test_ids_and_guids_side_by_side() -> None:
    payloads = binary(b"\0\0\0\0\7a", b"\1" + GUID.bytes + b"b", None, b"\0\0\0\0\7")
    assert parts(payloads) == [(7, [0, 3], [b"a", b""]), (str(GUID), [1], [b"b"])]


def test_ids_are_signed() -> None:
    payloads = binary(b"\0\xff\xff\xff\xff", b"\0\x80\0\0\0", b"\0\x7f\xff\xff\xff", b"\0\0\0\0\0")
    assert {one.key for one in split(payloads) if isinstance(one, Framed)} == {-1, -(2**31), 2**31 - 1, 0}


def test_what_has_no_schema_in_front() -> None:
    glue = b"\3\5" + GUID.bytes + b"x"
    payloads = binary(b"", b"\0\0\0\1", b"\1" + GUID.bytes[:15], b"{}", glue, b"\3{}", b"\0\0\0\0\1z", None)
    found = parts(payloads)
    assert found[0] == (1, [6], [b"z"])
    reasons = {row: reason for rows, reason in found[1:] for row in rows}  # type: ignore[misc]
    assert sorted(reasons) == [0, 1, 2, 3, 4, 5]
    assert "0 bytes are too few" in reasons[0]
    assert "4 bytes are too few" in reasons[1]
    assert "16 bytes are too few" in reasons[2]
    assert "first byte is 123" in reasons[3]
    assert "AWS Glue" in reasons[4]
    assert "first byte is 3" in reasons[5]


def test_schemas_in_headers() -> None:
    payloads = binary(b"a", b"\0\0\0\0\1b", None, b"c", b"d")
    headers = binary(b"\0\0\0\0\1", None, b"\0\0\0\0\1", b"\1" + GUID.bytes, b"\0")
    found = parts(payloads, headers)
    assert found[:2] == [(1, [0], [b"a"]), (str(GUID), [3], [b"c"])]
    assert found[2][0] == [4]  # type: ignore[index]
    assert found[3] == (1, [1], [b"b"])


def test_message_indexes_in_a_header_come_before_the_body() -> None:
    headers = binary(b"\1" + GUID.bytes + b"\2\0", b"\1" + GUID.bytes)
    assert parts(binary(b"a", b"b"), headers) == [(str(GUID), None, [b"\2\0a", b"b"])]
    assert parts(binary(b"a", None), headers) == [(str(GUID), None, [b"\2\0a", None])]


def test_no_header_at_all_is_as_without_headers() -> None:
    payloads = binary(b"\0\0\0\0\1a", None)
    assert parts(payloads, binary(None, None)) == [(1, None, [b"a", None])]


def test_empty_columns() -> None:
    assert parts(binary()) == parts(binary(None, None)) == []


@pytest.mark.parametrize("seed", range(5))
def test_every_row_that_is_not_null_is_in_one_part(seed: int) -> None:
    drawn = random.Random(seed)
    rows: list[bytes | None] = []
    for _ in range(300):
        kind = drawn.randrange(5)
        body = drawn.randbytes(drawn.randrange(4))
        rows.append(
            [None, body, frame_id(drawn.randrange(4)) + body, b"\1" + GUID.bytes + body, b"\3" + body][kind]
        )
    seen: dict[int, bytes | None] = {}
    for part in split(binary(*rows)):
        bodies = part.bodies.to_pylist() if isinstance(part, Framed) else [None] * len(part.rows)
        assert part.rows is not None
        for row, body in zip(part.rows.tolist(), bodies, strict=True):
            assert row not in seen
            seen[row] = body
            if isinstance(part, Unframed):
                assert part.reason
            else:
                whole = rows[row]
                assert whole is not None
                prefix = frame_id(part.key) if isinstance(part.key, int) else b"\1" + GUID.bytes
                assert whole == prefix + body
    assert sorted(seen) == [row for row, whole in enumerate(rows) if whole is not None]


def test_a_prefix_before_each_payload() -> None:
    assert with_prefix(binary(b"a", None, b""), frame_id(258)).to_pylist() == [
        b"\0\0\0\1\2a",
        None,
        b"\0\0\0\1\2",
    ]
    assert with_prefix(binary(), b"x").type == pa.binary()


def test_the_order_of_rows_stays_within_a_schema() -> None:
    ids = np.random.default_rng(1).integers(0, 3, 1000)
    payloads = binary(*(frame_id(int(id)) + str(row).encode() for row, id in enumerate(ids)))
    for part in split(payloads):
        assert isinstance(part, Framed)
        assert part.rows is not None
        assert part.bodies.to_pylist() == [str(row).encode() for row in part.rows.tolist()]
        assert (np.diff(part.rows) > 0).all()
