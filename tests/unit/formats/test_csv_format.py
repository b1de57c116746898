"""CSV: what lines are as rows, alone and among others, and rows as lines."""

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_kafka_native.formats import EncodeError, FormatError
from spark_kafka_native.formats.csv import csv_format
from spark_kafka_native.formats.csv.csv_format import CsvFormat
from spark_kafka_native.formats.csv.rows import CsvDialect, CsvRows
from spark_kafka_native.formats.isolate import NotTogetherError

KIND = pa.struct(
    [
        ("s", pa.string()),
        ("a", pa.int64()),
        ("h", pa.int8()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("x", pa.decimal128(10, 2)),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
        ("e", pa.string()),
    ]
)
TWO = pa.struct([("a", pa.string()), ("b", pa.int32())])
RFC = {"escape": '"'}


def decode(kind: pa.DataType, *payloads: bytes | None, **options: str) -> tuple[list[Any], dict[int, str]]:
    decoded = CsvFormat().decoder(kind, options).decode(pa.array(payloads, pa.binary()))
    decoded.array.validate(full=True)
    return decoded.array.to_pylist(), dict(zip(decoded.bad.rows, decoded.bad.reasons, strict=True))


TEXTS = (
    *b"1 -1 0 01 +1 128 -128 1.5 .5 5. 1e3 1E+2 1e400 1e-50 16777217 9223372036854775807".split(),
    *b"9223372036854775808 0x1f 1_0 12345678.905 123456789.5 1,5 NaN Inf -Inf Infinity nan inf".split(),
    *b"true TRUE True t 0 2020-01-01 2020-1-1 20200101 2020-02-30 0000-01-01 9999-12-31".split(),
    *b"2020-01-01T00:00:00Z 2020-01-01T00 2020-01-01T24:00:00Z 2020-01-01T23:59:60Z".split(),
    *b"2020-01-01T00:00:00.1234567Z 0000-01-01T00:00:00Z 9999-12-31T23:59:59.999999Z".split(),
    *b"2020-01-01T00:00:00-00:00 2020-01-01T00:00:00+25:00 1969-12-31T23:59:59.999999Z".split(),
    *b"0e-90 5e-85 1e-38 1e39 1e-039 0e76 0e77 25e-3 1e+0".split(),
    b"2020-01-01 00:00:00+0200",
    b"1." + b"0" * 300,
    b"%d" % 2**256,
    b"%de76" % 2**180,
    b"0." + b"0" * 36 + b"e-39",
    b"",
    b" ",
    b" 1",
    b"1 ",
    b"x",
    b"NA",
    b"\xc3\xa9",
    b"\xff",
    b"\xef\xbb\xbfx",
    b"\0",
)
VALUES = st.sampled_from([*TEXTS, *(b'"' + text + b'"' for text in TEXTS), b'"x,y"', b'"x\\"y"', b'"x""y"'])
FITTING = [
    "s",
    "1",
    "2",
    "1.5",
    "2.5",
    "true",
    "2020-01-01",
    "3.25",
    "2020-01-01T00:00:00Z",
    "2020-01-01 00:00",
]


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """A line of which most values fit, a third of them with one byte more, less or changed."""
    values = [*(one.encode() for one in FITTING), b"e"]
    for place in draw(st.lists(st.integers(0, len(values) - 1), max_size=3)):
        values[place] = draw(VALUES)
    line = b",".join(values)
    if draw(st.integers(0, 2)):
        return line
    at = draw(st.integers(0, len(line)))
    added = draw(st.sampled_from([b"", b",", b'"', b'""', b"\\", b"\n", b"\r", b" "]) | st.binary(max_size=1))
    return line[:at] + added + line[at + draw(st.integers(0, 1)) :]


DIALECTS = st.sampled_from([{}, RFC, {"nullvalue": "NA"}, {"quote": ""}, {"sep": "2"}])


@settings(max_examples=800, deadline=None)
@example(b"\xef\xbb\xbf" + b",".join([*(one.encode() for one in FITTING), b"e"]), {})
@example(b",,,,,,,,,,", {"nullvalue": "NA"})
@example(b'"",,,,,,,,,,', {"nullvalue": "NA"})
@given(lines(), DIALECTS)
def test_alone_and_together(line: bytes, options: dict[str, str]) -> None:
    decoder = CsvFormat().decoder(KIND, options)
    array = pa.array([line], pa.binary())
    try:
        together = decoder.read_together(array)
    except NotTogetherError:
        return
    alone = CsvRows(KIND, decoder.dialect, dt.UTC).read(array)
    assert alone.bad.rows == ()
    # As text: NaN equals nothing.
    assert repr(together.to_pylist()) == repr(alone.array.to_pylist())


@settings(max_examples=300, deadline=None)
@given(st.lists(lines() | st.sampled_from([b"", None]), max_size=12), DIALECTS)
def test_rows_stay_where_they_are(payloads: list[bytes | None], options: dict[str, str]) -> None:
    rows, bad = decode(KIND, *payloads, **options)
    alone = [decode(KIND, payload, **options) for payload in payloads]
    assert repr(rows) == repr([one[0][0] for one in alone])
    assert bad == {row: one[1][0] for row, one in enumerate(alone) if one[1]}


def test_good_lines_are_read_together() -> None:
    line = ",".join([*FITTING, '"x,y"']).encode()
    payloads = pa.array([line, None, b"", line, b",,,,,,,,,,"], pa.binary())
    rows = CsvFormat().decoder(KIND, {}).read_together(payloads).to_pylist()
    good = {
        "s": "s", "a": 1, "h": 2, "f": 1.5, "g": 2.5, "b": True, "d": dt.date(2020, 1, 1),
        "x": Decimal("3.25"), "t": dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "n": dt.datetime(2020, 1, 1),
        "e": "x,y",
    }  # fmt: skip
    nothing = dict.fromkeys(good)
    assert rows == [good, None, nothing, good, nothing]


def test_quotes_that_reach_over_the_end_of_a_line_stay_in_it() -> None:
    rows, bad = decode(TWO, b'"x,1', b'y",2', b"z,3")
    assert rows == [{"a": None, "b": None}, {"a": 'y"', "b": 2}, {"a": "z", "b": 3}]
    assert bad == {0: "value 1 has a quote that is not closed at its end"}


def test_line_breaks_are_part_of_a_value() -> None:
    assert decode(TWO, b'"x\ny",1', b"x\ny,1", b"z,3")[0] == [
        {"a": "x\ny", "b": 1},
        {"a": "x\ny", "b": 1},
        {"a": "z", "b": 3},
    ]


def test_quotes() -> None:
    assert [row["a"] for row in decode(TWO, b'"x\\"\\\\\\n",1', b'"x" ,1', b'x"y,1')[0]] == [
        'x"\\\\n',
        "x",
        'x"y',
    ]
    assert decode(TWO, b'"x""y",1', **RFC)[0] == [{"a": 'x"y', "b": 1}]
    assert decode(TWO, b'"x""y",1')[1] == {0: "value 1 has a quote that is not closed at its end"}
    assert decode(TWO, b'"x",1', quote="")[0] == [{"a": '"x"', "b": 1}]
    assert decode(TWO, b"'x;y';1", sep=";", quote="'")[0] == [{"a": "x;y", "b": 1}]
    assert decode(TWO, b"x\t1", sep="\\t")[0] == [{"a": "x", "b": 1}]


@pytest.mark.parametrize("sep", ["\t", " "])
def test_separators_that_are_white_space_end_a_quoted_value(sep: str) -> None:
    kind = pa.struct([(name, pa.string()) for name in "abc"])
    lines = [line.replace("|", sep).encode() for line in ('"x"||z', '"x\\"y"||z', '"x\\"y"||')]
    rows, bad = decode(kind, *lines, sep=sep)
    assert [tuple(row.values()) for row in rows] == [
        ("x", None, "z"),
        ('x"y', None, "z"),
        ('x"y', None, None),
    ]
    assert not bad


@pytest.mark.parametrize("text", ["12_5", "1 2", "1e", "0x1F", "\u0661", "nan"])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_what_only_python_takes_for_a_number_is_bad(kind: pa.DataType, text: str) -> None:
    decoder = CsvFormat().decoder(pa.struct([("d", kind)]), {})
    decoded = decoder.decode(pa.array([b"1.5", text.encode()], pa.binary()))
    assert decoded.array.to_pylist()[0] == {"d": 1.5}
    assert decoded.bad.rows == (1,)


def test_huge_exponents_do_not_end_the_process() -> None:
    """Arrow looks the power of ten up in a table, at any place; in a child, since that is a crash."""
    script = """
import pyarrow as pa
from spark_kafka_native.formats import load_format
decoder = load_format("csv").decoder(pa.struct([("x", pa.decimal128(10, 2))]), {})
good = [b"1.5"] * 100
for text in "0e-999999999 0.0e-99999999 -0E-99999999 1e-999999999 0e999999999 1e999999999".split():
    for payloads in ([text.encode()], [*good, text.encode(), *good]):
        decoded = decoder.decode(pa.array(payloads, pa.binary()))
        found = str(decoded.array[len(payloads) // 2]["x"]), len(decoded.bad.rows)
        assert found == (("None", 1) if text == "1e999999999" else ("0.00", 0)), (text, found)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (f"1.{'0' * 300}", "1.00"), (f"{2**256 + 5}", None), (f"{2**180}e76", None),
        (f"-{'0' * 90}7.125", "-7.13"), ("5e-85", "0.00"), ("1234e-2", "12.34"), ("9e39", None),
    ],
)  # fmt: skip
def test_decimals_of_more_digits_than_arrow_has(text: str, number: str | None) -> None:
    """They would wrap around."""
    kind = pa.struct([("x", pa.decimal128(10, 2))])
    rows, bad = decode(kind, *[b"1.5"] * 100, text.encode(), b"2.5")
    assert rows[-2:] == [{"x": None if number is None else Decimal(number)}, {"x": Decimal("2.50")}]
    assert [*bad] == ([] if number else [100])


@pytest.mark.parametrize("text", [f"-{'9' * 20}.{'9' * 18}", "1E+3", "-1.5e-7", f"0.{'0' * 60}"])
def test_usual_decimals_are_read_together(text: str) -> None:
    decoder = CsvFormat().decoder(pa.struct([("x", pa.decimal128(38, 18))]), {})
    assert decoder.read_together(pa.array([text.encode()])).to_pylist() == [{"x": Decimal(text)}]


def test_lines_of_another_length_are_bad_and_keep_what_fits() -> None:
    rows, bad = decode(TWO, b"x", b"x,1,2", b"x,y", b"x,y,2", b"x,1")
    assert [row["a"] for row in rows] == ["x"] * 5
    assert [row["b"] for row in rows] == [None, 1, None, None, 1]
    assert bad == {
        0: "the line has 1 values, and the schema 2",
        1: "the line has more values, and the schema 2",
        2: "`b` is not an integer of 32 bits: y",
        3: "the line has more values, and the schema 2",
    }


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
def test_an_integer_that_its_type_can_not_hold_spoils_its_own_row_only(kind: pa.DataType) -> None:
    end = 2 ** (kind.bit_width - 1)
    rows, bad = decode(pa.struct([("a", kind)]), *(b"%d" % n for n in (end - 1, end, -end, -end - 1)))
    assert [row["a"] for row in rows] == [end - 1, None, -end, None]
    said = f"`a` is not an integer of {kind.bit_width} bits"
    assert bad == {1: f"{said}: {end}", 3: f"{said}: {-end - 1}"}


def test_a_line_of_many_values_costs_no_more_than_the_schema_asks_for() -> None:
    _, bad = decode(TWO, b"," * 5_000_000)
    assert bad == {0: "the line has more values, and the schema 2"}


@pytest.mark.parametrize(
    "message", ["CSV parse error", "CSV parse error: Row #999: Expected 2 columns, got 1"]
)
def test_an_error_of_arrow_that_names_no_row_of_the_batch(
    monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    attempts = 0

    def refuse(*_: Any, **__: Any) -> Any:
        nonlocal attempts
        attempts += 1
        assert attempts < 100
        raise pa.ArrowInvalid(message)

    monkeypatch.setattr(csv_format.pv, "read_csv", refuse)
    for others in ((), (None, b"")):
        rows, bad = decode(TWO, *[b"x,%d" % i for i in range(100)], *others)
        assert rows[:100] == [{"a": "x", "b": i} for i in range(100)]
        assert rows[100:] == [None, {"a": None, "b": None}][: len(others)]
        assert not bad


def test_a_carriage_return_at_the_end_of_a_line_is_a_part_of_its_last_value() -> None:
    """Also beside other lines, where it would pass for the end of one."""
    kind = pa.struct([("b", pa.int32()), ("a", pa.string())])
    rows = [{"b": 1, "a": "x\r"}, {"b": 2, "a": "y"}]
    assert decode(kind, b"1,x\r")[0] == rows[:1]
    assert decode(kind, b"1,x\r", b"2,y")[0] == rows


def test_an_arrow_that_writes_into_foreign_memory_reads_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_format, "_ARROW_OVERFLOWS", True)
    monkeypatch.setattr(csv_format.CsvDecoder, "read_together", None)
    rows, bad = decode(TWO, b"x,1", b"x,y,z", None, b"z,2")
    assert rows[0] == {"a": "x", "b": 1}
    assert rows[2:] == [None, {"a": "z", "b": 2}]
    assert bad.keys() == {1}


def test_the_zone_of_timestamps_that_name_none() -> None:
    kind = pa.struct([("t", pa.timestamp("us", "UTC"))])
    (row,), _ = decode(kind, b"2020-01-01 12:00:00", timezone="Europe/Berlin")
    assert row["t"] == dt.datetime(2020, 1, 1, 11, tzinfo=dt.UTC)


def test_a_timestamp_without_a_zone_is_in_no_zone() -> None:
    """Also among lines that are read one by one, as the second is bad."""
    kind = pa.struct([("t", pa.timestamp("us")), ("i", pa.int32())])
    lines = (b"2020-01-01 12:00:00,1", b"2020-01-01 12:00:00,x", b"2020-01-01T00:00:00+02:00,1")
    rows, bad = decode(kind, *lines, timezone="Europe/Berlin")
    noon = dt.datetime(2020, 1, 1, 12)
    assert [row["t"] for row in rows] == [noon, noon, None]
    assert list(bad) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.date32(), b"0000-12-31"),
        (pa.timestamp("us", "UTC"), b"0000-12-31T23:59:59Z"),
        (pa.timestamp("us"), b"0000-12-31 23:59:59"),
        (pa.decimal128(4, 1), b"12345.6"),
        (pa.decimal128(38, 18), b"9" * 30),
        (pa.decimal128(38, 2), b"1" * 38),
        (pa.int32(), b"0x11"),
        (pa.bool_(), b"1"),
    ],
    ids=str,
)
def test_values_that_arrow_alone_would_take_are_bad(kind: pa.DataType, text: bytes) -> None:
    """In 128 bits the decimals wrap around to others."""
    assert decode(pa.struct([("a", kind), ("b", pa.int32())]), text + b",1") == (
        [{"a": None, "b": 1}], {0: ANY},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (pa.string(), {}, "CSV needs a struct"),
        (pa.struct([("a", pa.list_(pa.int8()))]), {}, "CSV can't hold the type list<.*> of `a`"),
        (pa.struct([("a", pa.binary())]), {}, "CSV can't hold the type binary of `a`"),
        (pa.struct([("a", pa.int8()), ("a", pa.int8())]), {}, "A field appears twice: a, a"),
        (TWO, {"header": "true"}, "CSV has no setting 'header' here"),
        (TWO, {"timestampformat": "yyyy"}, "CSV has no setting 'timestampformat' here"),
        (TWO, {"inferschema": "true"}, "CSV has no setting 'inferschema' here"),
        (TWO, {"mode": "failfast"}, "CSV has no setting 'mode' here"),
        (TWO, {"sep": "||"}, r"CSV: sep must be one ASCII character, not '\|\|'"),
        (TWO, {"sep": "\n"}, "CSV: sep must be one ASCII character"),
        (TWO, {"quote": '""'}, "CSV: quote must be one ASCII character"),
        (TWO, {"escape": ""}, "CSV: escape must be one ASCII character"),
        (TWO, {"sep": '"'}, "the separator must differ"),
        (TWO, {"sep": "\\"}, "the separator must differ"),
        (TWO, {"sep": "é"}, "CSV: sep must be one ASCII character"),
        (TWO, {"nullvalue": "a,b"}, "nullValue must be without separators"),
        (TWO, {"timezone": "Nowhere"}, "there is no time zone 'Nowhere'"),
    ],
)
def test_types_and_settings_that_can_not_be(kind: pa.DataType, options: dict[str, str], text: str) -> None:
    with pytest.raises(FormatError, match=text):
        CsvFormat().decoder(kind, options)
    if "timezone" not in options:
        with pytest.raises(FormatError, match=text):
            CsvFormat().encoder(kind, options)


TEXT = st.text(st.sampled_from(list("ab,;\"'\\\n\r \té0")), max_size=6)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.none() | st.tuples(st.none() | TEXT, st.none() | st.integers(-5, 5)), min_size=1, max_size=6),
    st.sampled_from([{}, RFC, {"nullvalue": "NA"}, {"sep": ";"}, {"sep": "-"}, {"nullvalue": "NA", **RFC}]),
)
def test_rows_that_are_written_are_read(rows: list[Any], options: dict[str, str]) -> None:
    given = [None if row is None else {"a": row[0], "b": row[1]} for row in rows]
    payloads = CsvFormat().encoder(TWO, options).encode(pa.array(given, TWO))
    decoded = CsvFormat().decoder(TWO, options).decode(payloads)
    assert decoded.bad.rows == ()
    if "nullvalue" not in options:  # an empty text is a null then, as in Spark
        given = [None if row is None else {"a": row["a"] or None, "b": row["b"]} for row in given]
    assert decoded.array.to_pylist() == given


def test_what_is_written() -> None:
    kind = pa.struct(
        [
            ("s", pa.string()), ("f", pa.float64()), ("b", pa.bool_()), ("d", pa.date32()),
            ("t", pa.timestamp("us", "UTC")), ("x", pa.decimal128(4, 1)),
        ]
    )  # fmt: skip
    row = {
        "s": "a,b", "f": float("inf"), "b": True, "d": dt.date(2020, 1, 2), "x": Decimal("1.5"),
        "t": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    }  # fmt: skip
    written = CsvFormat().encoder(kind, {}).encode(pa.array([row, None, {}], kind)).to_pylist()
    assert written == [b'"a,b",Infinity,true,2020-01-02,2020-01-01T00:00:00.000000Z,1.5', None, b",,,,,"]


@pytest.mark.parametrize("options", [{"sep": one} for one in "-:.0T "] + [{"quote": "1"}], ids=str)
def test_numbers_and_times_are_quoted_where_they_have_the_separator(options: dict[str, str]) -> None:
    kind = pa.struct(
        [
            ("f", pa.float64()), ("b", pa.bool_()), ("d", pa.date32()), ("t", pa.timestamp("us", "UTC")),
            ("x", pa.decimal128(4, 1)), ("i", pa.int64()),
        ]
    )  # fmt: skip
    row = {
        "f": -10.5, "b": True, "d": dt.date(2020, 1, 2), "x": Decimal("-1.5"), "i": -10,
        "t": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    }  # fmt: skip
    rows = [row, dict.fromkeys(row), row]
    payloads = CsvFormat().encoder(kind, options).encode(pa.array(rows, kind))
    decoded = CsvFormat().decoder(kind, options).decode(payloads)
    assert (decoded.array.to_pylist(), decoded.bad.rows) == (rows, ())
    with pytest.raises(EncodeError, match="row 0: a text has a separator or a line break"):
        CsvFormat().encoder(kind, {"sep": "-", "quote": ""}).encode(pa.array(rows, kind))


@pytest.mark.parametrize("text", ["x\ry", "x\ny", "\r", "x\r\n"])
def test_a_text_with_a_line_break_is_quoted(text: str) -> None:
    rows = pa.array([{"a": text, "b": 1}], TWO)
    assert CsvFormat().encoder(TWO, {}).encode(rows).to_pylist() == [f'"{text}",1'.encode()]


@pytest.mark.parametrize("text", ["x,y", "x\ny", "x\ry"])
def test_a_text_that_needs_quotes_where_there_are_none(text: str) -> None:
    rows = pa.array([{"a": "x", "b": 1}, {"a": text, "b": 1}], TWO)
    with pytest.raises(EncodeError, match="row 1: a text has a separator or a line break"):
        CsvFormat().encoder(TWO, {"quote": ""}).encode(rows)


def test_a_field_without_a_value_is_written() -> None:
    kind = pa.struct([("a", pa.null()), ("b", pa.int8())])
    rows = pa.array([{"a": None, "b": 1}, None, {"a": None, "b": 2}], kind)
    assert CsvFormat().encoder(kind, {}).encode(rows[1:]).to_pylist() == [None, b",2"]
    assert CsvFormat().encoder(kind, {"nullvalue": "-"}).encode(rows).to_pylist() == [b"-,1", None, b"-,2"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NaN", "nan"),
        ("Inf", "inf"),
        ("Infinity", "inf"),
        ("+Infinity", "inf"),
        ("-Inf", "-inf"),
        ("-Infinity", "-inf"),
        (" 1.5 ", "1.5"),
        ("+.5", "0.5"),
    ],
)
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_numbers_that_java_writes_are_numbers(kind: pa.DataType, text: str, value: str) -> None:
    ([row], bad) = decode(pa.struct([("f", kind), ("s", pa.string())]), f"{text},x".encode())
    assert (str(row["f"]), row["s"], bad) == (value, "x", {})


@pytest.mark.parametrize(
    ("options", "payload"),
    [
        ({"delimiter": ";"}, b"x;1"),
        ({"sep": "|"}, b"x|1"),
        ({"sep": "|", "delimiter": ";"}, b"x|1"),
        ({"delimiter": "\\t"}, b"x\t1"),
    ],
    ids=str,
)
def test_the_separator_has_two_names_of_which_the_short_one_counts(
    options: dict[str, str], payload: bytes
) -> None:
    assert decode(TWO, payload, **options) == ([{"a": "x", "b": 1}], {})
    encoded = CsvFormat().encoder(TWO, options).encode(pa.array([{"a": "x", "b": 1}], TWO))
    assert encoded.to_pylist() == [payload]


def test_settings_with_the_values_that_rows_are_read_by_in_any_case_are_none() -> None:
    same = {
        "header": "false",
        "mode": " PERMISSIVE",
        "inferschema": "False",
        "quoteall": "false",
        "multiline": "false",
    }
    assert CsvDialect.parse(same | {"compression": "none"}) == CsvDialect.parse({})
    for name in same:
        with pytest.raises(FormatError, match=f"CSV has no setting '{name}' here"):
            CsvDialect.parse({name: "true"})
