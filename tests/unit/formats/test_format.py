"""Formats by their names: ours, those of other packages, and none."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.formats import (
    ColumnFormat,
    Decoded,
    FormatError,
    format,
    format_names,
    is_own_schema,
    load_format,
)
from spark_kafka_native.formats.arrays import numpy_type
from spark_kafka_native.formats.bad_records import BadRecords, decode_column, encode_column
from spark_kafka_native.formats.format import BadRows
from spark_kafka_native.formats.json.json_format import JsonFormat


class Upper:
    """A format of another package."""

    def decoder(self, *_: object):
        return self

    encoder = decoder


class NoFormat:
    pass


@pytest.fixture
def offered(monkeypatch):
    """Entry points of this module."""

    def offer(**values: str) -> None:
        found = [EntryPoint(name, value, format.ENTRY_POINT) for name, value in values.items()]

        def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
            assert group == "spark_kafka_native.formats"
            return [one for one in found if name in (None, one.name)]

        monkeypatch.setattr(format, "entry_points", entry_points)

    return offer


def test_ours() -> None:
    assert isinstance(load_format("json"), JsonFormat)
    assert {"json", "string"} <= set(format_names())


def test_each_of_ours_can_be_loaded() -> None:
    for name in format_names():
        assert isinstance(load_format(name), format.Format)


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(
        FormatError, match=r"There is no format 'jsn'; did you mean 'json'\? \(formats: .*json"
    ):
        load_format("jsn")


def test_one_of_another_package(offered, monkeypatch) -> None:
    monkeypatch.setitem(
        __import__("sys").modules, "upper_format", __import__("types").SimpleNamespace(Upper=Upper)
    )
    offered(upper="upper_format:Upper", json="upper_format:Upper")
    assert isinstance(load_format("upper"), Upper)
    assert "upper" in format_names()
    # Ours can't be replaced by what happens to be installed.
    assert isinstance(load_format("json"), JsonFormat)


def test_one_that_can_not_be_loaded(offered, monkeypatch) -> None:
    monkeypatch.setitem(
        __import__("sys").modules, "bad_format", __import__("types").SimpleNamespace(no=NoFormat)
    )
    offered(gone="no_such_module_at_all:X", bad="bad_format:no")
    with pytest.raises(
        FormatError, match=r"Format 'gone' \(no_such_module_at_all:X\) can't be loaded: No module"
    ):
        load_format("gone")
    with pytest.raises(FormatError, match=r"Format 'bad' .* has no methods `decoder` and `encoder`"):
        load_format("bad")


def test_strings() -> None:
    codec = load_format("string").decoder(pa.string(), {})
    payloads = [b"a", None, b"\xff", "é".encode()] * 50
    decoded = codec.decode(pa.array(payloads, pa.binary()))
    assert decoded.array.to_pylist() == ["a", None, None, "é"] * 50
    assert decoded.bad.rows == tuple(range(2, 200, 4))
    assert set(decoded.bad.reasons) == {"not UTF-8 at byte 0"}
    assert load_format("string").encoder(pa.string(), {}).encode(pa.array(["é", None])).to_pylist() == [
        "é".encode(),
        None,
    ]
    with pytest.raises(FormatError, match="The format 'string' has the type string, not int64"):
        load_format("string").decoder(pa.int64(), {})


class TooLarge:
    """A format with columns of more than 2 GiB."""

    type = pa.string()

    def __init__(self, error: Exception) -> None:
        self._error = error

    def decode(self, _payloads: pa.Array) -> Decoded:
        raise self._error

    encode = decode


@pytest.mark.parametrize(
    "error", [OverflowError("2 GiB"), pa.ArrowCapacityError("array cannot contain more")]
)
def test_a_column_of_more_than_2_gib_is_an_error_that_says_what_to_do(error: Exception) -> None:
    rows = pa.array([b"a", b"b"], pa.binary())
    with pytest.raises(FormatError, match=r"2 payloads .* 'avro' of the value, .*max.partition.fetch.bytes"):
        decode_column(TooLarge(error), rows, pa.string(), "'avro' of the value")
    with pytest.raises(FormatError, match=r"2 rows .* 'avro' of the value, .*maxRecordsPerBatch"):
        encode_column(TooLarge(error), rows, "'avro' of the value")


class Writes:
    """A format that writes this for any rows."""

    def __init__(self, payloads: pa.Array) -> None:
        self._payloads = payloads

    def encode(self, _rows: pa.Array) -> pa.Array:
        return self._payloads


@pytest.mark.parametrize("payloads", [[b"a", b"b"], [None, None]], ids=["no tombstone", "two tombstones"])
def test_tombstones_are_the_rows_that_are_null_and_no_others(payloads: list[bytes | None]) -> None:
    rows = pa.array(["a", None])
    assert encode_column(Writes(pa.array([b"a", None])), rows, "x").to_pylist() == [b"a", None]
    with pytest.raises(FormatError, match=r"gave [02] nulls for 2 rows with 1"):
        encode_column(Writes(pa.array(payloads, pa.binary())), rows, "x")


def test_a_record_whose_key_or_value_may_be_good_later_is_not_bad_for_good() -> None:
    bad = BadRecords()
    bad.add("key", BadRows((0, 1), ("the registry is away", "cut off"), passing=(0,)))
    bad.add("value", BadRows((0, 2), ("cut off", "the registry is away"), passing=(2,)))
    assert [bad.is_passing(row) for row in bad.rows] == [True, False, True]


WITHOUT_PANDAS = """
import sys

class NoPandas:
    def find_spec(self, name, *_):
        if name == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoPandas())
import pyarrow as pa
from spark_kafka_native.formats import ColumnFormat
from spark_kafka_native.formats.bad_records import decode_column, encode_column

fields = {"id": pa.int32(), "at": pa.timestamp("us", "UTC"), "day": pa.date32(), "text": pa.string(), "x": pa.float32()}
kind = pa.struct(list(fields.items()))
row = {"id": 1, "at": 10**15, "day": 19000, "text": "a", "x": 1.5}
rows = pa.array([row, None, {**row, "at": None}], kind)
for name in ("json", "csv", "arrow-ipc"):
    given = ColumnFormat(name, kind)
    payloads = encode_column(given.encoder(kind, "value", "t"), rows, name)
    decoded = decode_column(given.decoder("value", "t")[0], payloads, kind, name)
    assert decoded.array.equals(rows) and not decoded.bad.rows, (name, decoded)
print("done")
"""  # noqa: E501


def test_formats_need_no_pandas() -> None:
    # Where it was missing, older pyarrows raised in the middle of a read.
    done = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr[-2000:]


@pytest.mark.parametrize("kind", [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)])
def test_types_of_numpy(kind: str) -> None:
    assert numpy_type(pa.type_for_alias(kind)) == np.dtype(kind)
    assert numpy_type(pa.float64()) == np.dtype("float64")
    assert numpy_type(pa.float32()) == np.dtype("float32")
    assert numpy_type(pa.float16()) == np.dtype("float16")


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ('{"type": "record", "name": "R", "fields": []}', True),
        ('"long"', True),
        ('["null", "long"]', True),
        ("{broken", True),
        pytest.param("[" * 100_000, True, id="deep"),
        ('{"type": "struct"}', True),
        ('{"type": "struct", "fields": []}', False),
        ("struct<a: int>", False),
    ],
)
def test_a_schema_in_the_language_of_its_format_or_in_that_of_spark(text: str, is_own: bool) -> None:
    for given in (text, f"\n  {text}"):
        assert is_own_schema(given, load_format("avro")) is is_own
        assert not is_own_schema(given, load_format("string"))


@pytest.mark.parametrize(
    ("name", "setting", "hint"),
    [
        ("json", "timeZne", "; did you mean 'timeZone'?"),
        ("json", "value.TimeZone", "; did you mean 'timeZone'?"),
        ("csv", "key.sep", "; did you mean 'sep'?"),
        ("csv", "delimitr", "; did you mean 'delimiter'?"),
        ("avro", "regstry.url", "; did you mean 'registry.url'?"),
        ("avro", "sep", ""),
        ("protobuf", "mode", ""),
        ("string", "timeZone", ""),
    ],
)
def test_a_setting_that_one_of_our_formats_does_not_know_is_refused(
    name: str, setting: str, hint: str
) -> None:
    """Misspelt, it was ignored, and another time or another schema was read."""
    with pytest.raises(FormatError) as raised:
        ColumnFormat(name, None, {setting: "x"})
    assert str(raised.value) == f"The format '{name}' has no setting '{setting}'{hint}"


def test_a_format_of_another_package_may_have_any_setting(offered) -> None:
    offered(other="spark_kafka_native.formats.json.json_format:JsonFormat")
    assert ColumnFormat("other", None, {"timeZne": "x"}).settings == (("timezne", "x"),)
