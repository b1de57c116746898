"""The options that commands share: the parser of a command, the connection to the cluster (``-b``,
``--config``, ``-X``), the topics that are named.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Never, TypeVar

from ..kafka.config.client_config import ClientConfig, ConsumerConfig, SecurityConfig, configs_from
from ..kafka.config.properties import Properties, all_names
from ..kafka.error_code import ErrorCode
from ..kafka.errors import BrokerError, ConfigError, KafkaError
from ..kafka.model import TopicPartition
from .output import note

if TYPE_CHECKING:
    from pathlib import Path

    from ..kafka.admin.admin import Admin
    from ..kafka.cluster.router import Router
    from ..kafka.config.client_config import ProducerConfig
    from ..kafka.group.group_config import GroupConfig

_CLIENT_ID = "pykafka"
_BOOTSTRAP, _CONFIG_FILE = "PYKAFKA_BOOTSTRAP", "PYKAFKA_CONFIG"
"""Environment variables, used where no option is given."""
VALUE_OPTIONS = ("-b", "--bootstrap-server", "--bootstrap-servers", "--config", "-X", "--timeout")
"""The connection options that take a value."""
TOPICS = "topics, or patterns: 'orders-*', or a regular expression that begins with ^: '^orders-[0-9]+$'"
_SERVERS, _SERVERS_ALIAS = "bootstrap.servers", "metadata.broker.list"
_TIMEOUT_S = 30
Own = TypeVar("Own", bound=Properties)


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that name the cluster and configure the connection."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "-b", "--bootstrap-server", "--bootstrap-servers",
        metavar="HOST:PORT,...", dest="bootstrap",
        help=f"some brokers of the cluster (port 9092 by default); default: ${_BOOTSTRAP}",
    )  # fmt: skip
    group.add_argument(
        "--config", type=_path, metavar="FILE",
        help="a .properties file as Kafka's own tools take it; a secret may be env:NAME or file:/path; "
        f"default: ${_CONFIG_FILE}",
    )  # fmt: skip
    group.add_argument(
        "-X", action="append", type=pair, default=[], metavar="NAME=VALUE", dest="properties",
        help="a property, as -X security.protocol=SSL; takes precedence over the file; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--timeout", type=number(1, 86_400), metavar="SECONDS",
        help=f"limit for each response of the cluster, retries included (default {_TIMEOUT_S}, for "
        "records that are written or read 120)",
    )  # fmt: skip
    group.add_argument(
        "-v", "--verbose", action="count", default=0, help="log what the client does; -vv logs details"
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def client_config(arguments: argparse.Namespace) -> ClientConfig:
    """Return the configuration given by the options. Raises `ConfigError`."""
    return _configs(arguments, ConsumerConfig)[0]


def consumer_configs(arguments: argparse.Namespace) -> tuple[ClientConfig, ConsumerConfig]:
    """Return `client_config` and the configuration of a consumer."""
    return _configs(arguments, ConsumerConfig, _limits(arguments, "poll.timeout.ms"))


def producer_configs(arguments: argparse.Namespace) -> tuple[ClientConfig, ProducerConfig]:
    """Return `client_config` and the configuration of a producer."""
    from ..kafka.config.client_config import ProducerConfig

    return _configs(arguments, ProducerConfig, _limits(arguments, "delivery.timeout.ms", "max.block.ms"))


def _limits(arguments: argparse.Namespace, *names: str) -> dict[str, str]:
    """Return these properties with ``--timeout``, if it was given. Its default is too short for them: a
    silent broker is given up after ``request.timeout.ms``, which is as long, and the next attempt takes time.
    """
    return {} if arguments.timeout is None else dict.fromkeys(names, str(arguments.timeout * 1000))


def group_configs(arguments: argparse.Namespace, group_id: str) -> tuple[ClientConfig, GroupConfig]:
    """Return `client_config` and the configuration of a group member. Raises `ConfigError`."""
    from ..kafka.group.group_config import GroupConfig

    own = [("group.id", group_id), ("enable.auto.commit", "false")]
    arguments.properties = [*arguments.properties, *own]
    return _configs(arguments, GroupConfig)


def connect(arguments: argparse.Namespace) -> Admin:
    """Return an `Admin` of the cluster, for a ``with`` block."""
    from ..kafka.admin.admin import Admin

    return Admin(client_config(arguments))


def given_properties(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the properties of the connection: `all_properties` without those of formats. Wrong usage if they
    name no cluster.
    """
    properties = all_properties(arguments)
    if not properties.get(_SERVERS, properties.get(_SERVERS_ALIAS, "")).strip():
        wrong_usage(
            arguments,
            f"which cluster? Give -b HOST:PORT, --config FILE with bootstrap.servers, or set {_BOOTSTRAP}",
        )
    properties.setdefault("client.id", _CLIENT_ID)
    if arguments.timeout is not None:
        properties["default.api.timeout.ms"] = str(arguments.timeout * 1000)
    properties.setdefault("default.api.timeout.ms", str(_TIMEOUT_S * 1000))
    return {name: text for name, text in properties.items() if not is_of_format(name)}


def is_of_format(name: str) -> bool:
    """Return True for a property of a format or a registry, as the data source names them. Kafka's own
    ``key.serializer`` and their like are none."""
    return name.startswith(("registry.", "value.", "key.")) and not name.endswith("serializer")


def all_properties(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the properties from options, file and environment. Raises `ConfigError`.

    Options take precedence over the file, and a file that an option names over the environment.
    """
    file = arguments.config or _environment_file()
    properties = (
        {} if file is None else _file_properties(file, "--config" if arguments.config else _CONFIG_FILE)
    )
    named_in_file = properties.keys() & {_SERVERS, _SERVERS_ALIAS}
    replaced: list[tuple[str, str]] = []
    if (servers := os.environ.get(_BOOTSTRAP)) and not (arguments.config and named_in_file):
        replaced.append((_SERVERS, servers))
    replaced += arguments.properties
    if arguments.bootstrap is not None:
        replaced.append((_SERVERS, arguments.bootstrap))
    return _with(properties, replaced)


def _with(properties: Mapping[str, str], typed: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return ``properties`` with ``typed``, each in place of all names that this property has."""
    found = dict(properties)
    for name, text in typed:
        javas, *aliases = all_names(name, _all_configs())
        for alias in aliases:
            found.pop(alias, None)
        found[javas] = text
    return found


def names_a_cluster(arguments: argparse.Namespace) -> bool:
    """Return True if an option or the environment names a cluster."""
    given = (arguments.bootstrap, arguments.config, arguments.properties or None)
    return any(one is not None for one in given) or bool(
        os.environ.get(_BOOTSTRAP) or os.environ.get(_CONFIG_FILE)
    )


def _environment_file() -> Path | None:
    name = os.environ.get(_CONFIG_FILE)
    return _path(name) if name else None


def _all_configs() -> Iterator[type[Properties]]:
    yield from (ClientConfig, SecurityConfig, ConsumerConfig)
    # Late: most commands read no file, and are given properties of those above.
    from ..kafka.config.client_config import ProducerConfig, TransactionConfig
    from ..kafka.group.group_config import GroupConfig

    yield from (GroupConfig, ProducerConfig, TransactionConfig)


def _file_properties(file: Path, source: str) -> dict[str, str]:
    from ..kafka.security.config_providers import read_properties  # late: most commands read no file

    known = frozenset[str]().union(*(config.property_names() for config in _all_configs()))
    try:
        return read_properties(file.read_bytes(), lambda name: name in known or is_of_format(name))
    except OSError as error:
        raise ConfigError(f"{source}: {file} can't be read: {error.strerror}") from None


def _path(text: str) -> Path:
    from pathlib import Path  # late: most commands get no file

    return Path(text)


def _configs(
    arguments: argparse.Namespace, own: type[Own], limits: Mapping[str, str] | None = None
) -> tuple[ClientConfig, Own]:
    properties = _with(given_properties(arguments), (limits or {}).items())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client, config = configs_from(properties, {}, own)
    for warning in caught:
        note(f"warning: {warning.message}")
    return client, config


# --- parsing ------------------------------------------------------------------------------------------------


NAME: Final = "\0"
"""In front of a word with a dash that is a name, as it stands behind ``--``."""


class BriefParser(argparse.ArgumentParser):
    """A parser with errors of one line and a hint at ``--help``."""

    def error(self, message: str) -> Never:
        """Print one line and a hint at ``--help``; exit with 2."""
        shown = message.replace(NAME, "").replace(repr(NAME)[1:-1], "")
        self.exit(2, f"{self.prog}: {shown}\nTry '{self.prog} --help'.\n")


class CommandParser(BriefParser):
    """The parser of one command. Names may stand before, after and between options.

    Options must not be abbreviated: ``--d`` must not be taken for ``--delete``.
    """

    _parsing = False

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings | {"allow_abbrev": False})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse options and names in any order (argparse calls this method again for each of two passes)."""
        if self._parsing:
            return super().parse_known_args(args, namespace)
        self._parsing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._parsing = False

    def error_of_unknown(self, words: Sequence[str]) -> Never:
        """Print an error for ``words`` that are neither options nor names; exit with 2."""
        options = [option for action in self._actions for option in action.option_strings]
        first = words[0].partition("=")[0]
        hint = "" if first in options else did_you_mean(first, options)  # a name behind --, one too many
        self.error(f"unrecognized arguments: {' '.join(words)}{hint}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the one of ``known`` that is like ``word``; nothing if none is."""
    import difflib  # late: few commands are misspelt

    close = difflib.get_close_matches(word, list(known), 1, 0.7)
    return f"; did you mean {close[0] if close[0].startswith('-') else repr(close[0])}?" if close else ""


def number(min_value: int, max_value: int | None = None) -> Callable[[str], int]:
    """Return the type of an option: a whole number within these bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text.replace("_", ""))
        except ValueError:
            raise argparse.ArgumentTypeError(f"a number is wanted, not {text!r}") from None
        if value < min_value or (max_value is not None and value > max_value):
            bounds = f"at least {min_value}" if max_value is None else f"from {min_value} to {max_value}"
            raise argparse.ArgumentTypeError(f"it must be {bounds}, not {value}")
        return value

    return parse


def pair(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE; the type of an option. No error shows the value, which may be a secret."""
    name, found, value = text.partition("=")
    if not found or not name.strip():
        raise argparse.ArgumentTypeError("it is not of the form NAME=VALUE")
    return name.strip(), value


def check_named_once(arguments: argparse.Namespace, names: Iterable[str]) -> None:
    """Wrong usage if a setting is named twice: only one of its changes could be made."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            wrong_usage(arguments, f"{name!r} is named twice: name each setting only once")
        seen.add(name)


def check_options(arguments: argparse.Namespace, actions: Mapping[str, Collection[str]]) -> None:
    """Wrong usage if an option is given that means nothing to the action. ``actions``: those of each option,
    by the name that it has in ``arguments``."""
    for name, own in actions.items():
        if arguments.action in own or getattr(arguments, name) == arguments.parser.get_default(name):
            continue
        option = next(one.option_strings[-1] for one in arguments.parser._actions if one.dest == name)
        wrong_usage(arguments, f"{arguments.action}: {option} is for {' and '.join(own)}")


def wrong_usage(arguments: argparse.Namespace, text: str) -> Never:
    """Print an error in the command line and exit with 2."""
    parser: argparse.ArgumentParser = arguments.parser
    parser.error(text)


@contextmanager
def checked_values(arguments: argparse.Namespace) -> Iterator[None]:
    """A `ValueError` within is wrong usage. A `ConfigError`, which is one too, is not: it is about the
    connection, such as a certificate that can't be read."""
    try:
        yield
    except KafkaError:
        raise
    except ValueError as error:
        wrong_usage(arguments, str(error))


# --- topics -------------------------------------------------------------------------------------------------


def add_topics(parser: argparse.ArgumentParser, text: str = TOPICS) -> None:
    """Declare the topics of a command: at any position, or each after ``-t``."""
    parser.add_argument("names", nargs="*", metavar="TOPIC", help=text)
    parser.add_argument("-t", "--topic", action="append", default=[], help="the same as TOPIC; repeatable")


def given_topics(arguments: argparse.Namespace) -> list[str]:
    """Return the topics that were named. Wrong usage if there are none."""
    names = list(dict.fromkeys([*arguments.topic, *arguments.names]))
    if not names:
        wrong_usage(arguments, "which topics?")
    return names


def is_pattern(name: str) -> bool:
    """Return True if ``name`` is a pattern for topic names, which no topic can have as its name."""
    return name.startswith("^") or any(letter in name for letter in "*?[")


def topics_matching(router: Router, names: Collection[str]) -> list[str]:
    """Return ``names`` with each pattern replaced by the topics that match it.

    Internal topics match only a pattern that begins with ``_``. Raises `BrokerError` if no topic matches a
    pattern, `ConfigError` for a bad regular expression.
    """
    if not any(map(is_pattern, names)):
        return list(dict.fromkeys(names))
    topics = router.metadata(None, refresh=True).topics
    found: dict[str, None] = {}
    for name in names:
        pattern = _compiled(name) if is_pattern(name) else None
        if pattern is None:
            found[name] = None
            continue
        internal = name.lstrip("^").startswith("_")
        matching = [one for one in sorted(topics) if internal or not topics[one].internal]
        matching = [one for one in matching if pattern.match(one)]
        if not matching:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic matches {name!r}")
        found.update(dict.fromkeys(matching))
    return list(found)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern if pattern.startswith("^") else fnmatch.translate(pattern))
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}") from None


def partitions_of(
    router: Router, names: Collection[str], partitions: Collection[int] | None = None
) -> list[TopicPartition]:
    """Return the partitions of topics (names and patterns), all or those in ``partitions``.

    Raises `BrokerError` for an unknown topic or partition.
    """
    topics = topics_matching(router, names)
    metadata = router.metadata(topics)
    found = []
    for name in topics:
        existing = sorted(metadata.topic(name).partitions)
        for index in existing if partitions is None else sorted(set(partitions)):
            metadata.partition(TopicPartition(name, index))
            found.append(TopicPartition(name, index))
    return found
