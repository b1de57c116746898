from typing import Any

def decode(
    *arguments: Any,
) -> tuple[list[tuple[int, int, bytes | None, bytes | None, bytes | None]], bytes]: ...
