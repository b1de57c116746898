"""The format that the page on formats writes down works as it says."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_kafka_native.formats import Format

PAGE = Path(__file__).parents[2] / "docs/formats.md"


def test_a_format_of_your_own() -> None:
    block = next(
        code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "class " in code
    )
    names: dict[str, Any] = {}
    exec(block, names)
    made = names["BigEndianLong"]()
    assert isinstance(made, Format)
    numbers = pa.array([1, None, -(2**63)])
    payloads = made.encoder(pa.int64(), {}).encode(numbers)
    assert payloads.to_pylist()[0] == bytes(7) + b"\1"
    decoded = made.decoder(pa.int64(), {}).decode(payloads)
    assert decoded.array.equals(numbers)
    assert made.decoder(pa.int64(), {}).decode(pa.array([b"short"])).bad.reasons == ("not 8 bytes",)
