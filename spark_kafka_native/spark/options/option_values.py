"""`OptionValues`: the options of one load or save, their names checked against the table, their values parsed
on demand. `options_from_properties`: the same options out of a Kafka client's ``.properties`` file.

Values are parsed when they are asked for, not at once: which error comes first is part of being compatible.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Self

from ...kafka.config.client_config import (
    JAVA_ONLY,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    TransactionConfig,
    unknown_properties,
)
from ...kafka.config.properties import Properties, trimmed
from ...kafka.errors import ConfigError
from .option import Option, Scope
from .table import OPTIONS

_BY_NAME: Final[dict[str, Option]] = {option.name.lower(): option for option in OPTIONS}
MEANINGLESS_IN_WRITES: Final = frozenset(
    [
        "enable.metrics.push",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "transaction.timeout.ms",
        "transaction.two.phase.commit.enable",
        "auto.include.jmx.reporter",
        "security.providers",
        "keep.undelivered",
    ]
)
"""Legal for Java's producer, and without a meaning here."""
IGNORE_KEYS: Final = "partitioner.ignore.keys"
_CLIENT_PROPERTIES: Final = JAVA_ONLY.union(
    *(config.property_names() for config in (ClientConfig, ConsumerConfig, ProducerConfig))
)
_OF_ONE_DIRECTION: Final = _CLIENT_PROPERTIES.union(
    TransactionConfig.property_names(), MEANINGLESS_IN_WRITES, {IGNORE_KEYS, "auto.offset.reset"}
)
"""Also those that reads or writes refuse."""
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

    @property
    def scope(self) -> Scope:
        """What they are options of."""
        return self._scope

    @classmethod
    def parse(cls, options: Mapping[str, str], scope: Scope) -> Self:
        """Sort ``options``, names in any case, into ours and the client's. No value is looked at."""
        texts: dict[str, str] = {}
        kafka: dict[str, str] = {}
        warnings: list[str] = []
        for name, text in options.items():
            lowered = name.lower()
            if lowered.startswith("kafka."):
                kafka[lowered.removeprefix("kafka.")] = trimmed(str(text))  # as Java does
                continue
            texts[lowered] = str(text)
            if not _is_setting(lowered, options) and (warning := _judge(lowered, name, scope)):
                warnings.append(warning)
        return cls(texts, kafka, tuple(warnings), scope)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    def text(self, name: str) -> str | None:
        """The text given for ``name``, unparsed."""
        return self._texts.get(name.lower())

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """The texts of all options that begin with ``prefix``; names without it, in lower case."""
        return {n.removeprefix(prefix): text for n, text in self._texts.items() if n.startswith(prefix)}

    def meaningful_names(self, prefix: str) -> list[str]:
        """The options given that begin with ``prefix`` and mean something in this scope, as the table
        writes them."""
        found = [_find(name) for name in self._texts if name.startswith(prefix)]
        return [written for written, option in filter(None, found) if option.scope & self._scope]

    def value(self, name: str) -> Any:
        """The parsed value of ``name``, its default, or None. Raises `ConfigError`."""
        option = _BY_NAME[name.lower()]
        text = self._texts.get(name.lower(), option.default_in(self._scope))
        return None if text is None else option.parse(text)

    def require_bootstrap_servers(self, client: str) -> None:
        """Raise `ConfigError` where no option says which cluster; ``client`` is Spark's word: consumer or
        producer.
        """
        if not self.kafka.keys() & {"bootstrap.servers", "metadata.broker.list"}:
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
                if given != name and (alike or _letters(given) in map(_letters, _SYNONYMS.get(name, ()))):
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


OWN_FORMATS: Final = ("raw", "string", "json", "csv", "avro", "protobuf", "arrow-ipc")
"""Their settings are in the table."""


def _find(lowered: str) -> tuple[str, Option] | None:
    """The option, and its name as the table writes it. One of the registry may be given for keys or values
    alone."""
    payload, _, name = lowered.partition(".")
    if (option := _BY_NAME.get(lowered)) is not None:
        return option.name, option
    if payload in ("key", "value") and name.startswith("registry.") and name in _BY_NAME:
        return f"{payload}.{_BY_NAME[name].name}", _BY_NAME[name]
    return None


def _is_setting(lowered: str, options: Mapping[str, str]) -> bool:
    """True for what the format judges itself: an option of the registry, given for keys or values alone, one
    that CSV refuses, and each one of a format of another package."""
    payload, _, setting = lowered.partition(".")
    if payload not in ("key", "value") or lowered in _BY_NAME:
        return False
    if _find(lowered) is not None:
        return True
    given = {name.lower(): str(text) for name, text in options.items()}
    name = given.get(f"{payload}.format", "raw").strip().lower()
    if name == "csv":
        from ...formats.csv.rows import REFUSED  # late: it takes pyarrow

        return setting in REFUSED
    return name not in OWN_FORMATS


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


MEANINGLESS: Final = {
    "group.remote.assignor",
    "internal.throw.on.fetch.stable.offset.unsupported",
    "metadata.max.idle.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "share.acknowledgement.mode",
    "share.acquire.mode",
}
"""Legal for Java's clients, and without a meaning here: nothing is said."""
_NOT_YET: Final = ("sasl.", "ssl.", "config.providers")
"""How names begin that Java's clients know and that would make a difference."""
NO_EFFECT: Final = "is not supported yet: it has no effect"
_TYPO: Final = 0.9
"""How alike a name and a known one are (`difflib`) where it is a slip of the finger."""


def describe_unread(
    names: Iterable[str], configs: Iterable[type[Properties]], meaningless: Collection[str] = ()
) -> tuple[str, ...]:
    """A warning for each of ``names`` (without their prefix) that none of ``configs`` reads and that is not
    ``meaningless`` here."""
    unknown = unknown_properties(names, *configs)
    return tuple(
        _describe(name, nearest)
        for name, nearest in unknown.items()
        if name not in MEANINGLESS and name not in meaningless
    )


def _describe(name: str, nearest: str | None) -> str:
    if name in _OF_ONE_DIRECTION:  # options are often shared by reads and writes
        return f"Option 'kafka.{name}' is ignored here: it is one of the other direction"
    is_typo = nearest is not None and difflib.SequenceMatcher(None, name, nearest).ratio() >= _TYPO
    if name.startswith(_NOT_YET) and not is_typo:
        return f"Option 'kafka.{name}' {NO_EFFECT}"
    hint = "" if nearest is None else f"; did you mean 'kafka.{nearest}'?"
    return f"Unknown option 'kafka.{name}' is ignored{hint}"


_OWN: Final = frozenset(option.name.lower() for option in OPTIONS)
_LEFT_OUT: Final = ("key.serializer", "value.serializer", "key.deserializer", "value.deserializer")
"""Settings that Java's clients need and ``pykafka`` does not: keys and values are bytes."""


def _is_read(lowered: str) -> bool:
    """True if a property of a client's file, with or without a prefix, means something to reads or writes."""
    is_format = lowered.startswith(("key.", "value.")) and lowered not in _LEFT_OUT
    return is_format or lowered in _OWN or lowered.removeprefix("kafka.") in _OF_ONE_DIRECTION


def options_from_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the file that Java's clients and Kafka's tools take, for
    ``options(**options_from_properties(path))``.

    The client's properties get their ``kafka.`` prefix; names that have it, options such as ``subscribe``,
    and all that begin with ``key.`` or ``value.`` (settings of a format or its registry) stay as they are;
    (de)serializers and ``config.providers`` are left out. ``${env:NAME}`` becomes the reference ``env:NAME``
    where a setting may be one, as a password; elsewhere the variable is read now. Raises `ConfigError`.
    """
    # Late: `pykafka` parses times with this module and reads no files.
    from ...kafka.security.config_providers import read_file, read_properties

    content = read_file("options_from_properties", os.fspath(path))
    found: dict[str, str] = {}
    for name, value in read_properties(content, _is_read).items():
        lowered = name.lower()
        if lowered in _LEFT_OUT:
            continue
        own = lowered in _OWN or lowered.startswith(("kafka.", "key.", "value."))
        found[name if own else f"kafka.{name}"] = value
    return found
