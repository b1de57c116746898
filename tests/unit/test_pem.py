"""PEM in the lines that OpenSSL takes; `trust` is tested with its users."""

import time

import pytest

from spark_kafka_native.pem import in_lines


@pytest.mark.parametrize("before", ["", "DEK-Info: AES-128-CBC,0A", "DEK-Info:"])
def test_a_block_with_many_blanks_takes_no_longer(before: str) -> None:
    """It can't be read, and stays as it is."""
    block = f"-----BEGIN CERTIFICATE-----{before}{' ' * 25_000}!-----END CERTIFICATE-----"
    began = time.process_time()
    assert in_lines(block) == block + "\n"
    assert time.process_time() - began < 1


@pytest.mark.parametrize("blank", ["\n", " ", "\r\n", " \n\t "])
@pytest.mark.parametrize("headers", [(), ("Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,0A")])
def test_a_block_gets_lines(blank: str, headers: tuple[str, ...]) -> None:
    text = ["A" * 64, "B=="]
    given = blank.join(["-----BEGIN KEY-----", *headers, *text, "-----END KEY-----"])
    made = "\n".join(
        ["-----BEGIN KEY-----", *headers, *([""] if headers else []), *text, "-----END KEY-----"]
    )
    assert in_lines(f"a{given}b") == f"a{made}\nb"


@pytest.mark.parametrize("body", ["", " \n ", "DEK-Info: a \n"])
def test_a_block_without_text_is_still_one(body: str) -> None:
    assert in_lines(f"-----BEGIN KEY-----{body}-----END KEY-----").startswith("-----BEGIN KEY-----")
