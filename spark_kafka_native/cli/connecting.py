"""How a command reaches the cluster: ``-b``, ``--config``, ``-X``; the same options for every command."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from ..kafka.config.client_config import ClientConfig, ConsumerConfig, configs_from
from ..kafka.config.properties import Properties
from ..kafka.config.properties_file import parse_properties
from ..kafka.errors import ConfigError
from .command_parser import number, pair, wrong_usage
from .output import note

if TYPE_CHECKING:
    from pathlib import Path

    from ..kafka.admin.admin import Admin
    from ..kafka.config.client_config import ProducerConfig
    from ..kafka.group.group_config import GroupConfig

_CLIENT_ID = "pykafka"
_BOOTSTRAP, _CONFIG_FILE = "PYKAFKA_BOOTSTRAP", "PYKAFKA_CONFIG"
"""Environment variables, for what no option says."""
VALUE_OPTIONS = ("-b", "--bootstrap-server", "--bootstrap-servers", "--config", "-X", "--timeout")
"""Those of the connection options that have a value."""
_TIMEOUT_S = 30
Own = TypeVar("Own", bound=Properties)


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say which cluster is meant, and how it is reached."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "-b", "--bootstrap-server", "--bootstrap-servers",
        metavar="HOST:PORT,...", dest="bootstrap",
        help=f"some brokers of the cluster (port 9092 by default); default: ${_BOOTSTRAP}",
    )  # fmt: skip
    group.add_argument(
        "--config", type=_path, metavar="FILE",
        help="a .properties file as Kafka's own tools take it; a value may be env:NAME or file:/path; "
        f"default: ${_CONFIG_FILE}",
    )  # fmt: skip
    group.add_argument(
        "-X", action="append", type=pair, default=[], metavar="NAME=VALUE", dest="properties",
        help="a property, as -X security.protocol=SSL; takes precedence over the file; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--timeout", type=number(1, 86_400), metavar="SECONDS",
        help=f"limit for each answer from the cluster, retries included (default {_TIMEOUT_S})",
    )  # fmt: skip
    group.add_argument(
        "-v", "--verbose", action="count", default=0, help="log what the client does; -vv logs details"
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def client_config(arguments: argparse.Namespace) -> ClientConfig:
    """The config that the options stand for. Raises `ConfigError`."""
    return _configs(arguments, ConsumerConfig)[0]


def consumer_configs(arguments: argparse.Namespace) -> tuple[ClientConfig, ConsumerConfig]:
    """`client_config`, and what the properties say of reading."""
    return _configs(arguments, ConsumerConfig)


def producer_configs(arguments: argparse.Namespace) -> tuple[ClientConfig, ProducerConfig]:
    """`client_config`, and what the properties say of writing."""
    from ..kafka.config.client_config import ProducerConfig

    limits = {}
    if arguments.timeout is not None:
        limits = dict.fromkeys(("delivery.timeout.ms", "max.block.ms"), str(arguments.timeout * 1000))
    return _configs(arguments, ProducerConfig, limits)


def group_configs(arguments: argparse.Namespace, group_id: str) -> tuple[ClientConfig, GroupConfig]:
    """`client_config`, and what the properties say of a member of the group. Raises `ConfigError`."""
    from ..kafka.group.group_config import GroupConfig

    own = [("group.id", group_id), ("enable.auto.commit", "false")]
    arguments.properties = [*arguments.properties, *own]
    return _configs(arguments, GroupConfig)


def connect(arguments: argparse.Namespace) -> Admin:
    """An `Admin` of the cluster; use it in a ``with`` block."""
    from ..kafka.admin.admin import Admin

    return Admin(client_config(arguments))


def given_properties(arguments: argparse.Namespace) -> dict[str, str]:
    """The properties of options, the file and the environment. Raises `ConfigError`.

    Options take precedence over the file, and a file that an option names over the environment.
    """
    file = arguments.config or _environment_file()
    properties = (
        {} if file is None else _file_properties(file, "--config" if arguments.config else _CONFIG_FILE)
    )
    if servers := os.environ.get(_BOOTSTRAP):
        if arguments.config is None:
            properties["bootstrap.servers"] = servers
        else:
            properties.setdefault("bootstrap.servers", servers)
    properties.update(arguments.properties)
    if arguments.bootstrap is not None:
        properties["bootstrap.servers"] = arguments.bootstrap
    if not properties.get("bootstrap.servers", "").strip():
        wrong_usage(
            arguments,
            f"which cluster? Give -b HOST:PORT, --config FILE with bootstrap.servers, or set {_BOOTSTRAP}",
        )
    properties.setdefault("client.id", _CLIENT_ID)
    if arguments.timeout is not None:
        properties["default.api.timeout.ms"] = str(arguments.timeout * 1000)
    properties.setdefault("default.api.timeout.ms", str(_TIMEOUT_S * 1000))
    return properties


def names_a_cluster(arguments: argparse.Namespace) -> bool:
    """True if an option or the environment says how to reach a cluster."""
    given = (arguments.bootstrap, arguments.config, arguments.properties or None)
    return any(one is not None for one in given) or bool(
        os.environ.get(_BOOTSTRAP) or os.environ.get(_CONFIG_FILE)
    )


def _environment_file() -> Path | None:
    name = os.environ.get(_CONFIG_FILE)
    return _path(name) if name else None


def _file_properties(file: Path, source: str) -> dict[str, str]:
    try:
        return parse_properties(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{source}: {file} can't be read: {why}") from None


def _path(text: str) -> Path:
    from pathlib import Path  # late: most commands are given none

    return Path(text)


def _configs(
    arguments: argparse.Namespace, own: type[Own], limits: Mapping[str, str] | None = None
) -> tuple[ClientConfig, Own]:
    properties = {**given_properties(arguments), **(limits or {})}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client, config = configs_from(properties, {}, own)
    for warning in caught:
        note(f"warning: {warning.message}")
    return client, config
