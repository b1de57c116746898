"""Properties files as java.util.Properties reads them."""

from __future__ import annotations

import pytest

from spark_kafka_native.kafka.config.properties_file import parse_properties
from spark_kafka_native.kafka.errors import ConfigError


def unexpected(name: str, reference: str) -> str:
    raise AssertionError(f"{name} refers to {reference}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", {"a": "b"}),
        (" a = b ", {"a": "b "}),
        ("a:b\r\nc d\re", {"a": "b", "c": "d", "e": ""}),
        ("# x=y\n! z=1\n\n  # w\na=#b", {"a": "#b"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("a=b\\\n   c\\\n  d\ne=f", {"a": "bcd", "e": "f"}),
        ("a=b\\\n # c\nd=e", {"a": "b# c", "d": "e"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        (r"a\=b\ c\:=d\te\n\u00e4\q", {"a=b c:": "d\te\nä" + "q"}),
        ("a=\\uD83D\\uDE00", {"a": "😀"}),
        ("a=b\na=c", {"a": "c"}),
        ("a==b", {"a": "=b"}),
        ("a=x\\", {"a": "x"}),
        ("a=${env:KAFKA_PASSWORD}", {"a": "a<-env:KAFKA_PASSWORD"}),
        ("a=$ConnectionString", {"a": "$ConnectionString"}),
    ],
)
def test_what_java_reads(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text, lambda name, reference: f"{name}<-{reference}") == found


@pytest.mark.parametrize(
    "text",
    [
        "a=${file:/etc/marked:key}",
        "a=x${env:marked}",
        "a=${env:my.marked}",
        "a=${env:}",
        "a=${vault:marked:b}",
        "a=marked\\u12",
        "a=marked\\uzzzz",
    ],
)
def test_invalid_lines_are_refused_without_their_values(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_properties(text, unexpected)
    assert "marked" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1"])
def test_bytes_are_utf_8_or_latin_1(encoding: str) -> None:
    assert parse_properties("sasl.username=zoë".encode(encoding), unexpected) == {"sasl.username": "zoë"}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_a_file_in_an_encoding_that_java_does_not_read_is_refused(encoding: str) -> None:
    with pytest.raises(ConfigError, match="save it as UTF-8, it may be UTF-16"):
        parse_properties("security.protocol=SASL_SSL".encode(encoding), unexpected)
