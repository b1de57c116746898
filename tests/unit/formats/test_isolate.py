"""Batches that can't be read at once: every row is read, in its place, in linear time."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_native.formats import BadRows, Decoded
from spark_kafka_native.formats.isolate import SMALL, NotTogetherError, decode_isolated


class Reading:
    """Reads numbers; those that are negative prevent their batch and are bad."""

    def __init__(self, knows_row: bool) -> None:
        self.knows_row = knows_row
        self.tried = 0
        self.one_by_one = 0

    def batch(self, payloads: pa.Array) -> pa.Array:
        self.tried += len(payloads)
        bad = [i for i, value in enumerate(payloads.to_pylist()) if value < 0]
        if bad:
            raise NotTogetherError(bad[0] if self.knows_row else None)
        return payloads

    def rows(self, payloads: pa.Array) -> Decoded:
        self.one_by_one += len(payloads)
        rows = tuple(i for i, value in enumerate(payloads.to_pylist()) if value < 0)
        return Decoded(payloads, BadRows(rows, tuple(f"{payloads[i]}" for i in rows)))


@given(st.lists(st.integers(0, 400), max_size=12), st.booleans())
def test_every_row_is_read_in_its_place(gaps: list[int], knows_row: bool) -> None:
    numbers = [n for gap in gaps for n in (*range(1, gap), -1)]
    decoded = decode_isolated(pa.array(numbers, pa.int64()), (r := Reading(knows_row)).batch, r.rows)
    assert decoded.array.to_pylist() == numbers
    assert decoded.bad.rows == tuple(i for i, n in enumerate(numbers) if n < 0)
    assert decoded.bad.reasons == ("-1",) * len(decoded.bad.rows)


def work(knows_row: bool, every: int, total: int) -> Reading:
    """What it takes to read ``total`` numbers, of which each ``every``-th is bad."""
    numbers = pa.array([-1 if i % every == every - 1 else i for i in range(total)], pa.int64())
    reading = Reading(knows_row)
    decode_isolated(numbers, reading.batch, reading.rows)
    return reading


@pytest.mark.parametrize("knows_row", [True, False])
@pytest.mark.parametrize("every", [1, 2, 30, 100, 1000])
def test_the_work_is_linear(knows_row: bool, every: int) -> None:
    few, many = (work(knows_row, every, total) for total in (25_000, 200_000))
    assert many.tried <= 7 * 200_000
    # Eight times as many; a logarithm in it would be a fifth more.
    assert many.tried <= 1.1 * 8 * few.tried
    bad = 200_000 // every
    if knows_row and every > SMALL:
        assert many.one_by_one == bad
    elif every >= 1_000:
        assert many.one_by_one <= SMALL * bad
    else:  # where no error names its row, and bad ones are close together, attempts would cost more
        assert many.one_by_one <= 200_000


@pytest.mark.parametrize("knows_row", [True, False])
def test_a_single_bad_row_costs_a_few_attempts_at_all_of_them(knows_row: bool) -> None:
    reading = work(knows_row, 100_000, 100_000)
    assert reading.tried <= 5 * 100_000
    assert reading.one_by_one <= (1 if knows_row else SMALL)


def test_nothing_is_an_empty_array() -> None:
    reading = Reading(True)
    assert len(decode_isolated(pa.array([], pa.int64()), reading.batch, reading.rows).array) == 0


def test_an_error_may_name_a_row_behind_others_that_prevent_the_batch() -> None:
    """A parser may notice the last line first: each attempt must still lead on."""
    numbers = pa.array([-1 if i in (3, 500, 900) else i for i in range(1_000)], pa.int64())
    reading, attempts = Reading(True), 0

    def batch(payloads: pa.Array) -> pa.Array:
        nonlocal attempts
        attempts += 1
        assert attempts < 100
        bad = [i for i, value in enumerate(payloads.to_pylist()) if value < 0]
        if bad:
            raise NotTogetherError(bad[-1])
        return payloads

    decoded = decode_isolated(numbers, batch, reading.rows)
    assert decoded.array.equals(numbers)
    assert decoded.bad.rows == (3, 500, 900)
