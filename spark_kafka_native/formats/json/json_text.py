"""`JsonText`: JSON without a schema, as it is, to look at records and to write some by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa

from ..column_format import ColumnFormat
from ..format import BadRows, Decoded, Decoder


class JsonText(ColumnFormat):
    """JSON as it is, checked: the format `json` without a schema."""

    def __init__(self) -> None:
        super().__init__("json")

    def decoder(self, payload: str, topic: str | None) -> tuple[Decoder, pa.DataType]:  # noqa: ARG002
        """One into strings."""
        return _JsonTextDecoder(pa.string()), pa.string()


@dataclass(frozen=True)
class _JsonTextDecoder:
    type: pa.DataType

    def decode(self, payloads: pa.Array) -> Decoded:
        texts: list[str | None] = []
        bad: dict[int, str] = {}
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                texts.append(None if payload is None or not payload.strip() else checked_json(payload))
            except ValueError as error:
                texts.append(None)
                bad[row] = str(error)
        return Decoded(pa.array(texts, self.type), BadRows(tuple(bad), tuple(bad.values())))


def checked_json(payload: bytes) -> str:
    """``payload`` as text. Raises ValueError if it is no JSON."""
    try:
        text = payload.decode()
        json.loads(text, parse_int=str)  # `int` takes 4300 digits only
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"malformed JSON at character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return text
