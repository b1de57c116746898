"""The declaration of messages: once for all versions, as frozen keyword-only dataclasses.

    class FetchPartition(Struct):
        partition: Int32
        current_leader_epoch: Int32 = field(since=9, default=-1, ignorable=True)

A type checker sees a typed constructor; `codec.codec` compiles the same declaration into a reader and a
writer per version. Names, types, order, ranges and defaults are Kafka's own (``common/message/*.json`` in
``kafka-clients``), and ``tests/spec`` compares every declared version with them. A declaration holds no code
that reads or writes bytes.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, dataclass_transform

from .wire import Blob, Fixed, Text, WireType

FOREVER: Final = 1 << 15
"""Above every version: an API version is an int16."""

_METADATA_KEY: Final = "wire"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """The arguments of `field`."""

    since: int = 0
    until: int = FOREVER
    tag: int | None = None
    nullable: int = 0
    ignorable: bool = False


def field(  # noqa: PLR0913 - the attributes of a field in a Kafka message spec
    *,
    since: int = 0,
    until: int = FOREVER,
    tag: int | None = None,
    nullable: int = 0,
    ignorable: bool = False,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
) -> Any:
    """Declare the versions in which a field is present, and its default in the others.

    ``since`` and ``until`` (inclusive) are versions of the message; ``nullable`` is the first version in
    which a field annotated ``... | None`` may be null; ``tag`` puts it into the tag section (KIP-482). A
    non-default value at a version without the field is dropped if the field is ``ignorable``, else refused.
    """
    rule = _Rule(since=since, until=until, tag=tag, nullable=nullable, ignorable=ignorable)
    return dataclasses.field(default=default, default_factory=default_factory, metadata={_METADATA_KEY: rule})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Struct:
    """A structure of fields; a subclass becomes a frozen, keyword-only dataclass without a decorator.

    All subclasses share ``__eq__``, ``__hash__`` and ``__repr__``: if `dataclass` generated them for each
    class, they would take much of the time of importing the protocol.
    """

    spec_name: ClassVar[str]
    """Its name in Kafka's specification, which repeats some names."""

    def __init_subclass__(cls, *, spec_name: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.spec_name = spec_name or cls.__name__
        dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)

    def __eq__(self, other: object) -> bool:
        return _values(self) == _values(other) if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash(_values(self))

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        shown = (f"{field.name}={value!r}" for field, value in zip(fields, _values(self), strict=True))
        return f"{type(self).__qualname__}({', '.join(shown)})"


def _values(struct: Any) -> tuple[Any, ...]:
    """Return the values in declaration order, in which the ``__dict__`` of a decoded message may not be."""
    return tuple(getattr(struct, field.name) for field in dataclasses.fields(struct))


class Message(Struct):
    """A structure with versions of its own: a request or a response."""

    api_key: ClassVar[int]
    versions: ClassVar[tuple[int, int]]
    """The lowest and the highest version that this client supports."""
    flexible: ClassVar[int]
    """The first flexible version (KIP-482)."""


class Data(Message):
    """A structure with versions of its own that travels as bytes inside a message."""

    def __init_subclass__(cls, *, versions: tuple[int, int], flexible: int = FOREVER, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.versions, cls.flexible = versions, flexible


class Response(Message):
    """A response. It has the API key and the versions of its request, which is declared after it."""

    def upgraded(self, version: int, request: Any) -> Self:
        """Return this response, which was read at ``version``, in the form of the latest version."""
        del version, request
        return self


R = TypeVar("R", bound=Response)


class Request(Message, Generic[R]):
    """A request; ``Request[FetchResponse]`` names the class of its response."""

    response: ClassVar[type[Response]]
    polled: ClassVar[bool] = False
    """True if the request is repeated and mostly gets the same bytes as response."""

    def __init_subclass__(
        cls, *, api_key: int, versions: tuple[int, int], flexible: int = FOREVER, **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        response: type[Response] = typing.get_args(vars(cls)["__orig_bases__"][0])[0]
        cls.response = response
        for message in (cls, response):
            message.api_key, message.versions, message.flexible = api_key, versions, flexible

    @classmethod
    def api_name(cls) -> str:
        """The API's name, as in Kafka's documentation: ``ListOffsets``."""
        return cls.__name__.removesuffix("Request")

    @property
    def answered(self) -> bool:
        """True if the broker answers the request: it does not answer a produce request with ``acks=0``."""
        return True

    def downgraded(self, version: int) -> Self:
        """Return this request in the form of ``version``; callers build the latest form only."""
        del version
        return self


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array; ``element`` is a wire type or a struct class."""

    element: WireType | type[Struct]


FieldType = WireType | ArrayOf | type[Struct]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A declared field: `codec` compiles it, and the spec test compares it."""

    name: str
    type: FieldType
    since: int
    until: int
    tag: int | None
    nullable: int
    """The first version in which it may be null; `FOREVER` for never."""
    ignorable: bool
    required: bool
    """True if the constructor has no default for it."""
    default: Any
    """None if required."""

    @property
    def fixed(self) -> bool:
        """True if its type has a fixed width."""
        return isinstance(self.type, Fixed)

    def present(self, version: int) -> bool:
        """Return True if ``version`` has this field."""
        return self.since <= version <= self.until


def declared_fields(struct: type[Struct]) -> tuple[Field, ...]:
    """Resolve a struct's annotations into its fields, in the order of the declaration."""
    hints = typing.get_type_hints(struct, include_extras=True)
    declared = dataclasses.fields(struct)  # type: ignore[arg-type]
    return tuple(_declared_field(one, hints[one.name]) for one in declared)


def _declared_field(declared: dataclasses.Field[Any], hint: Any) -> Field:
    rule: _Rule = declared.metadata.get(_METADATA_KEY, _Rule())
    optional = type(None) in typing.get_args(hint)
    if optional:
        hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    required = declared.default is declared.default_factory is dataclasses.MISSING
    return Field(
        name=declared.name,
        type=_field_type(hint),
        since=rule.since,
        until=rule.until,
        tag=rule.tag,
        nullable=rule.nullable if optional else FOREVER,
        ignorable=rule.ignorable,
        required=required,
        default=_default(declared),
    )


def _field_type(hint: Any) -> FieldType:
    if typing.get_origin(hint) is list:
        element = _field_type(typing.get_args(hint)[0])
        if isinstance(element, ArrayOf):
            raise TypeError("the protocol has no arrays of arrays")
        return ArrayOf(element)
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, Fixed | Text | Blob):
            return mark
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint
    raise TypeError(f"{hint!r} is no wire type")


def _default(declared: dataclasses.Field[Any]) -> Any:
    if declared.default is not dataclasses.MISSING:
        return declared.default
    if declared.default_factory is not dataclasses.MISSING:
        return declared.default_factory()
    return None
