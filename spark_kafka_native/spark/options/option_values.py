"""`OptionValues`: the options of one load or save, their names checked against the table, their values parsed
on demand.

Values are parsed when they are asked for, not at once: which error comes first is part of being compatible.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, Self

from ...kafka.config.client_config import JAVA_ONLY, ClientConfig, ConsumerConfig, ProducerConfig
from ...kafka.config.properties import Properties
from ...kafka.errors import ConfigError
from .kafka_properties import NO_EFFECT, describe_unread
from .option import Option, Scope
from .table import OPTIONS

_BY_NAME: Final[dict[str, Option]] = {option.name.lower(): option for option in OPTIONS}
_CLIENT_PROPERTIES: Final = JAVA_ONLY.union(
    *(config.property_names() for config in (ClientConfig, ConsumerConfig, ProducerConfig))
)
_FROM_SPARK: Final = frozenset({"path", "checkpointlocation", "queryname"})
"""What Spark itself puts among the options, and reads from there: each streaming write has the last two."""
_NEAR: Final = 0.85
"""How alike a given name and a missing one are (`difflib`) where it is a slip of the finger."""
_SYNONYMS: Final = {
    "kafka.bootstrap.servers": ("brokers", "broker.list", "metadata.broker.list", "servers", "hosts"),
    "subscribe": ("topic", "topics", "topicname"),
    "topic": ("topics", "topicname", "subscribe"),
}
"""What people write instead, with or without ``kafka.``."""


class OptionValues:
    """The options that were given. Plain data; ``kafka`` are the client's properties without their prefix."""

    def __init__(
        self, texts: Mapping[str, str], kafka: Mapping[str, str], warnings: tuple[str, ...], scope: Scope
    ) -> None:
        self.kafka: dict[str, str] = dict(kafka)
        self.warnings = warnings
        """What to tell the user: unknown names, and options that mean nothing here."""
        self._texts = dict(texts)
        self._scope = scope

    @classmethod
    def parse(cls, options: Mapping[str, str], scope: Scope) -> Self:
        """Sort ``options``, names in any case, into ours and the client's. No value is looked at."""
        texts: dict[str, str] = {}
        kafka: dict[str, str] = {}
        warnings: list[str] = []
        for name, text in options.items():
            lowered = name.lower()
            if lowered.startswith("kafka."):
                kafka[lowered.removeprefix("kafka.")] = str(text)
                continue
            texts[lowered] = str(text)
            if warning := _judge(lowered, name, scope):
                warnings.append(warning)
        return cls(texts, kafka, tuple(warnings), scope)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    def text(self, name: str) -> str | None:
        """The text given for ``name``, unparsed."""
        return self._texts.get(name.lower())

    def value(self, name: str) -> Any:
        """The parsed value of ``name``, its default, or None. Raises `ConfigError`."""
        option = _BY_NAME[name.lower()]
        text = self._texts.get(name.lower(), option.default_in(self._scope))
        return None if text is None else option.parse(text)

    def require_bootstrap_servers(self, client: str) -> None:
        """Raise `ConfigError` where no option says which cluster; ``client`` is Spark's word: consumer or
        producer.
        """
        if "bootstrap.servers" not in self.kafka:
            raise ConfigError(
                f"Option 'kafka.bootstrap.servers' must be specified for configuring Kafka {client}"
                + self.near_miss("kafka.bootstrap.servers")
            )

    def near_miss(self, *wanted: str) -> str:
        """What to add to an error because none of the options ``wanted`` was given: which option was
        probably meant to be one. Empty where none looks like it."""
        for given in (*self._texts, *(f"kafka.{name}" for name in self.kafka)):
            for name in wanted:
                alike = difflib.SequenceMatcher(None, _letters(given), _letters(name)).ratio() >= _NEAR
                if alike or _letters(given) in map(_letters, _SYNONYMS.get(name, ())):
                    return f" ('{given}' was given: did you mean '{name}'?)"
        return ""

    def judge_names(
        self, configs: Collection[type[Properties]], meaningless: Collection[str] = ()
    ) -> tuple[str, ...]:
        """What to warn of, properties that none of ``configs`` reads included. Raises `ConfigError` for
        unknown names with ``unknownOptions=error``."""
        lines = (*self.warnings, *describe_unread(self.kafka, configs, meaningless))
        choice = self.value("unknownOptions")
        unknown = [line for line in lines if line.startswith("Unknown option ")]
        if choice == "error" and (refused := [*unknown, *(line for line in lines if NO_EFFECT in line)]):
            raise ConfigError("unknownOptions=error: " + "\n".join(refused).replace("' is ignored", "'"))
        return tuple(line for line in lines if choice == "warn" or line not in unknown)

    def __reduce__(self) -> tuple[Any, ...]:
        return OptionValues, (self._texts, self.kafka, self.warnings, self._scope)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("kafka")


def _judge(lowered: str, name: str, scope: Scope) -> str | None:
    option = _BY_NAME.get(lowered)
    if option is None:
        return None if lowered in _FROM_SPARK else _name_nearest(lowered, name, scope)
    if option.scope & scope:
        return None
    where = {Scope.READ: "batch queries", Scope.STREAM: "streaming queries", Scope.WRITE: "writes"}[scope]
    return f"{option.name} option ignored in {where}"


def _name_nearest(lowered: str, name: str, scope: Scope) -> str:
    if lowered in _CLIENT_PROPERTIES:
        return (
            f"Unknown option '{name}' is ignored; a property of the Kafka client is written 'kafka.{lowered}'"
        )
    candidates = [known for known, option in _BY_NAME.items() if option.scope & scope]
    nearest = difflib.get_close_matches(lowered, candidates, n=1)
    hint = f"; did you mean '{_BY_NAME[nearest[0]].name}'?" if nearest else ""
    return f"Unknown option '{name}' is ignored{hint}"
