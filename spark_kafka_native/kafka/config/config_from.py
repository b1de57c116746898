"""What a user gives to reach a cluster, and keywords -> configs. Pure: no file, no socket.

Every front (producer, consumer, admin) takes the same: ``Producer("localhost:9092", acks="all")``.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final, TypeVar, overload

from ..errors import ConfigError
from .client_config import ClientConfig, ConsumerConfig, unknown_properties
from .properties import Properties
from .security_config import SecurityConfig

DEFAULT_PORT: Final = 9092
"""Where a broker listens if the address does not say; Kafka's own default."""

Bootstrap = str | list[str] | tuple[str, ...] | ClientConfig | Mapping[str, Any]
"""How to reach a cluster: ``host:port`` of some brokers, comma-separated or as a list or tuple (port 9092 by
default); a `ClientConfig`; or Kafka's dotted property names with their values, as librdkafka's clients take
them."""

Own = TypeVar("Own", bound=Properties)
Other = TypeVar("Other", bound=Properties)


@overload
def configs_from(bootstrap: Bootstrap | None, keywords: Mapping[str, Any]) -> tuple[ClientConfig]: ...
@overload
def configs_from(
    bootstrap: Bootstrap | None, keywords: Mapping[str, Any], own: type[Own] | Own, /
) -> tuple[ClientConfig, Own]: ...
@overload
def configs_from(
    bootstrap: Bootstrap | None,
    keywords: Mapping[str, Any],
    own: type[Own] | Own,
    other: type[Other] | Other,
    /,
) -> tuple[ClientConfig, Own, Other]: ...
def configs_from(bootstrap: Bootstrap | None, keywords: Mapping[str, Any], *owns: Any) -> tuple[Any, ...]:
    """A `ClientConfig`, and a config of each of ``owns``: config classes, or instances to start from.

    ``keywords`` are names of their fields, and of `SecurityConfig`'s; they take precedence over what
    ``bootstrap`` says. A name that several configs have is the client's (``client_id``) or the first one's;
    ``security=SecurityConfig(...)`` sets the others. ``bootstrap_servers=`` may stand for ``bootstrap``.

    Raises TypeError for an unknown keyword, `ConfigError` for a value; warns about properties of a mapping
    that no config of this client reads.
    """
    known = (ClientConfig, *(own if isinstance(own, type) else type(own) for own in owns), SecurityConfig)
    values = _by_config(keywords, known)
    properties = bootstrap if isinstance(bootstrap, Mapping) else {}
    _warn_of_unknown(properties, known)
    client = _client(bootstrap, values[ClientConfig], values[SecurityConfig])
    return (client, *(_own(own, properties, values) for own in owns))


def _by_config(
    keywords: Mapping[str, Any], configs: Iterable[type[Properties]]
) -> dict[type[Properties], dict[str, Any]]:
    """``keywords`` by the config that has a field of that name."""
    values: dict[type[Properties], dict[str, Any]] = {config: {} for config in configs}
    names = {config: {f.name for f in fields(config)} for config in values}
    for keyword, value in keywords.items():
        config = next((config for config in values if keyword in names[config]), None)
        if config is None:
            raise TypeError(f"there is no setting {keyword!r}{_nearest_keyword(keyword, values)}")
        values[config][keyword] = value
    return values


def _nearest_keyword(keyword: str, configs: Iterable[type[Properties]]) -> str:
    """What was probably meant; other clients spell some keywords as the property with underscores."""
    spelled = {f.name: f.name for config in configs for f in fields(config)}
    for config in configs:
        for f in fields(config):
            for name in (f.metadata.get("property"), *f.metadata.get("aliases", ())):
                spelled.setdefault(str(name).replace(".", "_"), f.name)
    near = difflib.get_close_matches(keyword.lower().replace(".", "_"), spelled, n=1)
    return f": did you mean {spelled[near[0]]!r}?" if near else ""


def _client(bootstrap: Bootstrap | None, values: dict[str, Any], security: dict[str, Any]) -> ClientConfig:
    if bootstrap is None and "bootstrap_servers" in values:
        bootstrap = values.pop("bootstrap_servers")
    if "bootstrap_servers" in values:
        raise ConfigError("bootstrap_servers is given twice: as the first argument and as a keyword")
    given = values.get("security")
    if "security" in values and not isinstance(given, SecurityConfig):  # never shown: it may be a password
        raise ConfigError(f"security must be a SecurityConfig, not of the type {type(given).__name__}")
    if isinstance(bootstrap, ClientConfig):
        start = values.get("security", bootstrap.security)
        return replace(bootstrap, **values | {"security": replace(start, **security) if security else start})
    properties: Mapping[str, Any] = bootstrap if isinstance(bootstrap, Mapping) else {}
    if "security" not in values:
        values["security"] = SecurityConfig.from_properties(properties, **security)
    elif security:
        values["security"] = replace(values["security"], **security)
    if bootstrap is properties:
        bootstrap = properties.get("bootstrap.servers", properties.get("metadata.broker.list", ()))
    addresses = _addresses(bootstrap)
    return ClientConfig.from_properties(properties, bootstrap_servers=addresses, **values)


def _addresses(given: Any) -> tuple[str, ...]:
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(
            "bootstrap must be host:port of some brokers (a str, list or tuple), a ClientConfig, or a "
            f"mapping of Kafka's property names, not of the type {type(given).__name__}"
        )
    return tuple(_with_port(one.strip()) for part in parts for one in part.split(",") if one.strip())


def _with_port(address: str) -> str:
    host = address.partition("://")[2] or address
    has_port = not host.endswith("]") if host.startswith("[") else ":" in host
    return address if has_port else f"{address}:{DEFAULT_PORT}"


def _warn_of_unknown(properties: Mapping[str, Any], known: tuple[type[Properties], ...]) -> None:
    for name in properties:
        if not isinstance(name, str):
            raise ConfigError(f"a property's name is a str, not {name!r}")
    if not unknown_properties(properties, *known, ConsumerConfig):
        return
    from .client_config import ProducerConfig  # late: a reader's are seldom among them

    for name, near in unknown_properties(properties, *known, ConsumerConfig, ProducerConfig).items():
        hint = "" if near is None else f"; did you mean {near!r}?"
        # Of the caller of the front that was given them: here, configs_from, the front.
        warnings.warn(f"the unknown property {name!r} is ignored{hint}", stacklevel=4)


def _own(
    own: type[Properties] | Properties,
    properties: Mapping[str, Any],
    values: dict[type[Properties], dict[str, Any]],
) -> Properties:
    if isinstance(own, type):
        return own.from_properties(properties, **values[own])
    twice = sorted(own.property_names().intersection(properties))
    if twice:
        raise ConfigError(
            f"{', '.join(twice)} stands in the mapping, and a {type(own).__name__} is given too"
        )
    return replace(own, **values[type(own)])
