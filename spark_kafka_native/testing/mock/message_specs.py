"""`MessageSpecs`: Kafka's own specification of its messages, out of a ``kafka-clients`` jar.

The jar is opened as a zip: no Java runs. Nothing of the specification is kept in this package.
"""

from __future__ import annotations

import functools
import json
import re
import zipfile
from pathlib import Path

from ..errors import JarsUnavailableError
from ..java import jars
from .message_spec import MessageSpec

_FOLDER = "common/message/"


class MessageSpecs:
    """All messages of one version of Kafka. Get it from `message_specs`."""

    def __init__(self, jar: Path) -> None:
        """Read them from ``jar``. Raises `JarsUnavailableError` if they are not in it."""
        try:
            with zipfile.ZipFile(jar) as opened:
                names = [
                    name
                    for name in opened.namelist()
                    if name.startswith(_FOLDER) and name.endswith(("Request.json", "Response.json"))
                ]
                self._texts = {
                    name[len(_FOLDER) : -len(".json")]: opened.read(name).decode() for name in names
                }
        except (OSError, zipfile.BadZipFile) as error:
            raise JarsUnavailableError(f"{jar} can't be read as a jar: {error}") from error
        if "ApiVersionsRequest" not in self._texts:
            raise JarsUnavailableError(f"{jar} has no specification of Kafka's messages in {_FOLDER}")
        self._specs: dict[str, MessageSpec] = {}
        self._apis = {
            int(key[1]): name.removesuffix("Request")
            for name, text in self._texts.items()
            if name.endswith("Request") and (key := re.search(r'"apiKey": *(\d+)', text))
        }

    def __getitem__(self, name: str) -> MessageSpec:
        """That of ``FetchRequest``. Raises `KeyError`."""
        if name not in self._specs:
            # The files are JSON with comments on lines of their own.
            text = re.sub(r"^\s*//.*$", "", self._texts[name], flags=re.MULTILINE)
            self._specs[name] = MessageSpec.from_json(json.loads(text))
        return self._specs[name]

    @property
    def apis(self) -> dict[int, str]:
        """The name of each API, as ``Fetch``, by its key."""
        return self._apis


@functools.cache
def message_specs(jar: Path | None = None) -> MessageSpecs:
    """Kafka's messages, from ``jar``, or by default from the one that the embedded broker uses, too.

    Raises `JarsUnavailableError` when there is none and none can be fetched.
    """
    if jar is None:
        jar = next(one for one in jars() if one.name.startswith("kafka-clients-"))
    return MessageSpecs(jar)
