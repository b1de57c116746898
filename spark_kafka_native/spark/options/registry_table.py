"""`REGISTRY_OPTIONS`: the part of the table of options that is about schema registries."""

from __future__ import annotations

from typing import Final

from .option import Option, OptionType, Scope

_ALL: Final = Scope.READ | Scope.STREAM | Scope.WRITE
_PEM: Final = "PEM, or `file:/path`, `env:NAME`"


def _of_both(
    name: str, scope: Scope, values: str, sentence: str, type: OptionType = OptionType.TEXT
) -> tuple[Option, Option]:
    """One for the values and one for the keys."""
    return (
        Option(name=f"value.{name}", scope=scope, type=type, values=values, ours=True, sentence=sentence),
        Option(
            name=f"key.{name}",
            scope=scope,
            type=type,
            values=f"as `value.{name}`",
            ours=True,
            sentence="The same for keys.",
        ),
    )


REGISTRY_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        name="registry.url",
        scope=_ALL,
        values="`https://host:port/path`; several of them, comma-separated, are asked in turn",
        ours=True,
        sentence=(
            "A schema registry with Confluent's interface. Payloads then begin with the id of their schema, "
            "see [formats.md](formats.md#schema-registry). Each `registry.` option can also be given for "
            "values or keys alone: `value.registry.url`."
        ),
    ),
    Option(
        name="registry.user",
        scope=_ALL,
        values="text",
        ours=True,
        sentence="With `registry.password`: basic authentication.",
    ),
    Option(
        name="registry.password",
        scope=_ALL,
        values="text, or `env:NAME`, `file:/path`",
        ours=True,
        sentence="See `registry.user`. A reference is resolved on the driver and on the executors.",
    ),
    Option(
        name="registry.token",
        scope=_ALL,
        values="text, or `env:NAME`, `file:/path`",
        ours=True,
        sentence="A bearer token.",
    ),
    Option(
        name="registry.allowHttp",
        scope=_ALL,
        type=OptionType.BOOLEAN,
        default="false",
        ours=True,
        sentence="Send credentials over http, in clear, also to another machine.",
    ),
    Option(
        name="registry.ssl.ca",
        scope=_ALL,
        values=_PEM,
        ours=True,
        sentence="The certificates to trust instead of the system's.",
    ),
    Option(
        name="registry.ssl.certificate",
        scope=_ALL,
        values=_PEM,
        ours=True,
        sentence="The client's certificate and its chain.",
    ),
    Option(
        name="registry.ssl.key",
        scope=_ALL,
        values=_PEM,
        ours=True,
        sentence="The private key of `registry.ssl.certificate`.",
    ),
    Option(
        name="registry.ssl.keyPassword",
        scope=_ALL,
        values="text, or `env:NAME`, `file:/path`",
        ours=True,
        sentence="Of an encrypted `registry.ssl.key`.",
    ),
    Option(
        name="registry.register",
        scope=Scope.WRITE,
        type=OptionType.BOOLEAN,
        default="false",
        ours=True,
        sentence="Register the schema of a write if its subject does not have it yet.",
    ),
    *_of_both(
        "subject",
        _ALL,
        "text",
        "The subject of the schema; by default `<topic>-value` (and `<topic>-key`).",
    ),
    *_of_both(
        "subjectStrategy",
        _ALL,
        "`topic`, `record` or `topic-record`",
        "How a write names the subject: after the topic (the default), the record's full name, or both.",
    ),
    *_of_both(
        "schemaVersion",
        _ALL,
        "`latest` or a number",
        "The version of the subject under which to read or write: of a read when it starts, of a stream's "
        "write before each micro-batch.",
    ),
    *_of_both(
        "schemaId",
        _ALL,
        "a number",
        "The id of the schema under which to read or write, instead of a subject.",
    ),
    *_of_both(
        "schemaReferences",
        Scope.WRITE,
        '`[{"name": ..., "subject": ..., "version": ...}]`',
        "The schemas that `value.schema` refers to, where a write looks it up or registers it.",
    ),
    *_of_both(
        "schemaIdIn",
        Scope.WRITE,
        "`payload` or `header`",
        "Where a write names the schema: its id in front of the payload (the default), or its GUID in the "
        "header `__value_schema_id` (`__key_schema_id`), as by Confluent's `HeaderSchemaIdSerializer`.",
    ),
)
