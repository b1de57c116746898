"""How a command reaches the cluster: ``-b``, ``--config``, ``-X``; the same options for every command."""

from __future__ import annotations

import argparse
import warnings
from typing import TYPE_CHECKING, TypeVar

from ..kafka.config import ClientConfig, ConsumerConfig
from ..kafka.config_from import configs_from
from ..kafka.errors import ConfigError
from ..kafka.properties import Properties
from ..kafka.properties_file import parse_properties
from .command_parser import number, pair, wrong_usage
from .output import note

if TYPE_CHECKING:
    from pathlib import Path

    from ..kafka.admin.admin import Admin
    from ..kafka.config import ProducerConfig

_CLIENT_ID = "pykafka"
_TIMEOUT_S = 30
Own = TypeVar("Own", bound=Properties)


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say which cluster is meant, and how it is reached."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "-b", "--bootstrap-server", "--bootstrap-servers",
        metavar="HOST:PORT,...", dest="bootstrap", help="some brokers of the cluster (port 9092 by default)",
    )  # fmt: skip
    group.add_argument(
        "--config", type=_path, metavar="FILE",
        help="a .properties file as Kafka's own tools take it; a value may be env:NAME or file:/path",
    )  # fmt: skip
    group.add_argument(
        "-X", action="append", type=pair, default=[], metavar="NAME=VALUE", dest="properties",
        help="a property, as -X security.protocol=SSL; takes precedence over the file; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--timeout", type=number(1, 86_400), metavar="SECONDS",
        help=f"limit for each answer from the cluster, retries included (default {_TIMEOUT_S})",
    )  # fmt: skip


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
    from ..kafka.config import ProducerConfig

    return _configs(arguments, ProducerConfig)


def connect(arguments: argparse.Namespace) -> Admin:
    """An `Admin` of the cluster; use it in a ``with`` block."""
    from ..kafka.admin.admin import Admin

    return Admin(client_config(arguments))


def given_properties(arguments: argparse.Namespace) -> dict[str, str]:
    """The properties of the file and the options, the latter taking precedence. Raises `ConfigError`."""
    properties: dict[str, str] = {}
    if arguments.config is not None:
        try:
            properties = parse_properties(arguments.config.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"--config: {arguments.config} can't be read: {why}") from None
    properties.update(arguments.properties)
    if arguments.bootstrap is not None:
        properties["bootstrap.servers"] = arguments.bootstrap
    if not properties.get("bootstrap.servers", "").strip():
        wrong_usage(arguments, "which cluster? Give -b HOST:PORT, or --config FILE with bootstrap.servers")
    properties.setdefault("client.id", _CLIENT_ID)
    if arguments.timeout is not None:
        properties["default.api.timeout.ms"] = str(arguments.timeout * 1000)
    properties.setdefault("default.api.timeout.ms", str(_TIMEOUT_S * 1000))
    return properties


def _path(text: str) -> Path:
    from pathlib import Path  # late: most commands are given none

    return Path(text)


def _configs(arguments: argparse.Namespace, own: type[Own]) -> tuple[ClientConfig, Own]:
    properties = given_properties(arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client, config = configs_from(properties, {}, own)
    for warning in caught:
        note(f"warning: {warning.message}")
    return client, config
