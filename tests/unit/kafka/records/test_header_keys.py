"""Header keys as strings or bytes, also if they are not UTF-8."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_native.kafka.model import HeaderKeys
from spark_kafka_native.kafka.records import columns as record_headers
from spark_kafka_native.kafka.records.columns import HeaderKeyError, read_header_keys, replace_malformed


def binary(*keys: bytes) -> pa.Array:
    return pa.array(keys, pa.binary())


@pytest.mark.parametrize("form", [HeaderKeys.STRICT, HeaderKeys.REPLACE])
def test_utf8_is_left_as_it_is(form: HeaderKeys) -> None:
    read = read_header_keys(binary(b"a", b"", "\U0001f600".encode(), b"a"), form)
    assert read.type == pa.string()
    assert read.to_pylist() == ["a", "", "\U0001f600", "a"]


def test_bytes_are_not_looked_at() -> None:
    keys = binary(b"\xff", b"a")
    assert read_header_keys(keys, HeaderKeys.BYTES) is keys


def test_strict_names_the_first_key_that_is_not_utf8() -> None:
    with pytest.raises(HeaderKeyError, match="not UTF-8") as caught:
        read_header_keys(binary(b"a", b"b", b"\xe2\x82", b"\xff"), HeaderKeys.STRICT)
    assert caught.value.index == 2
    assert caught.value.reason == r"not UTF-8: b'\xe2\x82' (unexpected end of data)"


def test_replacing_keeps_order_and_repeats() -> None:
    read = read_header_keys(binary(b"b\xff", b"a", b"b\xff", b"\xc3\xbc", b"a", b""), HeaderKeys.REPLACE)
    read.validate(full=True)
    assert read.type == pa.string()
    assert read.to_pylist() == ["b\ufffd", "a", "b\ufffd", "\u00fc", "a", ""]


@pytest.mark.parametrize(
    ("malformed", "replacements"),
    [
        (b"\x80", 1),
        (b"\xc0\x80", 2),  # an overlong NUL
        (b"\xe2\x82", 1),  # cut off
        (b"\xe0\x80\x80", 3),  # overlong
        (b"\xed\xa0\x80", 1),  # a surrogate, where Python would put three
        (b"\xed\xa0", 1),
        (b"\xed\xa0\xed\xbf\xbf", 2),
        (b"\xf0\x9f\x98", 1),
        (b"\xf4\x90\x80\x80", 4),  # beyond U+10FFFF
        (b"\xff\xfe", 2),
    ],
)
def test_as_many_replacements_as_java_puts(malformed: bytes, replacements: int) -> None:
    wanted = "\N{REPLACEMENT CHARACTER}" * replacements
    assert replace_malformed(malformed).decode() == wanted
    assert replace_malformed(b"a" + malformed + b"z").decode() == f"a{wanted}z"


def test_more_than_a_column_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_headers, "MAX_KEYS_BYTES", 7)
    assert read_header_keys(binary(b"\xff", b"\xff", b"a"), HeaderKeys.REPLACE).to_pylist()[2] == "a"
    with pytest.raises(HeaderKeyError, match="more than 2 GiB"):
        read_header_keys(binary(b"\xff", b"\xff", b"ab"), HeaderKeys.REPLACE)
