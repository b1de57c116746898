"""Every error code against Java's ``Errors``, asked by a Java program: nothing is taken on trust."""

from __future__ import annotations

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.testing.java import run_java

JAVA = """
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.protocol.Errors;

public class ErrorCodes {
    public static void main(String[] args) {
        for (Errors error : Errors.values()) {
            ApiException exception = error.exception();
            System.out.println(String.join(" ", Integer.toString(error.code()), error.name(),
                Boolean.toString(exception instanceof RetriableException),
                Boolean.toString(exception instanceof InvalidMetadataException),
                Boolean.toString(exception instanceof TimeoutException)));
        }
    }
}
"""


@pytest.fixture(scope="module")
def java_errors() -> dict[int, tuple[str, bool, bool, bool]]:
    errors = {}
    for line in run_java(JAVA).splitlines():
        code, name, *kinds = line.split()
        retriable, stale_metadata, timeout = (kind == "true" for kind in kinds)
        errors[int(code)] = name, retriable, stale_metadata, timeout
    return errors


def test_codes_are_those_of_java(java_errors: dict[int, tuple[str, bool, bool, bool]]) -> None:
    ours = {code.value: (code.name, code.retriable, code.stale_metadata, code.timeout) for code in ErrorCode}

    assert ours == java_errors


def test_java_says_as_many_as_are_documented(java_errors: dict[int, tuple[str, bool, bool, bool]]) -> None:
    assert len(java_errors) == 135
    assert sum(retriable for _, retriable, _, _ in java_errors.values()) == 32
