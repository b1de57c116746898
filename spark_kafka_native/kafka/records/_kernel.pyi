from collections.abc import Sequence
from typing import Any

def scan_records(sources: Sequence[Any], batches: Any, /, *columns: Any) -> tuple[int, int, int] | None: ...
def gather(
    sources: Sequence[Any],
    ends: Any,
    owners: Any,
    starts: Any,
    lengths: Any,
    offsets: Any,
    validity: Any,
    data: Any,
    /,
) -> None: ...
def scan_headers(
    sources: Sequence[Any], ends: Any, owners: Any, starts: Any, limits: Any, counts: Any, /, *out: Any
) -> int: ...
def shift_crc32c(crc: int, zeros: int, /) -> int: ...
def encode(
    n: int,
    rows: Any,
    timestamps: Any,
    key: Any,
    value: Any,
    header_offsets: Any,
    header_key: Any,
    header_value: Any,
    out: Any,
    reserve: int,
    /,
) -> int | None: ...
def hash_keys(
    kind: int, offsets: Any, wide: bool, first: int, length: int, data: Any, out: Any, /
) -> None: ...
def group_rows(partition: Any, count: int, order: Any, bounds: Any, /) -> None: ...
