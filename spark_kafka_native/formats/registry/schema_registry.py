"""`SchemaRegistry`: the schemas of a registry, each of them looked up once in a process."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any, Final
from urllib.parse import quote

from .errors import RegistryError, UnknownSchemaError
from .registered_schema import MAX_DEPTH, RegisteredSchema, SchemaReference, json_depth
from .registry_client import OPERATION_S, RegistryClient, parse_client

TYPES: Final = ("AVRO", "PROTOBUF", "JSON")
MAX_REFERENCES: Final = 200
"""Of one schema, indirect ones included."""
_MAX_REFERENCE_DEPTH: Final = 20
_MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
_MAX_UNKNOWN: Final = 10_000
_UNKNOWN_S: Final = 1.0
"""Until then a schema that the registry does not have is not asked for again."""
_FOLLOWER_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""A node of a registry that gave an id may be ahead of the one that is asked for the schema."""
_IMPATIENT_S: Final = 60.0
"""After waiting in vain, records with other unknown ids are not waited for: they may be of another
registry."""
_CONTEXT: Final = re.compile(r":\.[^:]*:")
"""What a subject in a context begins with: each context counts its own ids."""


class SchemaRegistry:
    """A schema registry. Any thread may use it, also one of a forked process."""

    def __init__(self, client: RegistryClient, own: tuple[tuple[str, str], ...] = ()) -> None:
        """``own``: the settings ``registry.*``, and the ``context`` of ids, as ``:.name:``, empty for the
        default."""
        self._client = client
        self._settings = own
        self._context = dict(own).get("context", "")
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._kept: OrderedDict[str, RegisteredSchema] = OrderedDict()
        """By path, the oldest first."""
        self._kept_bytes = 0
        self._unknown: dict[str, tuple[float, UnknownSchemaError]] = {}
        """By path, with the time until which the registry is not asked again."""
        self._impatient_until = 0.0

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> SchemaRegistry | None:
        """The registry that the settings ``registry.*`` name, in the context of ``subject``, the same one
        each time; None without ``registry.url``. Raises `RegistryError`."""
        if "registry.url" in settings:
            return _shared(_own(settings))
        if "schemaidin" in settings:
            name = f"{settings.get('payload', 'value')}.schemaIdIn"
            raise RegistryError(f"{name} has no effect without registry.url")
        return None

    def renew(self, settings: Mapping[str, str]) -> bool:
        """Log in as ``settings`` say from now on, and be the registry that they name. False if it does so
        already. Raises `RegistryError`."""
        own = _own(settings)
        if own == self._settings:
            return False
        self._client, self._settings = parse_client(dict(own)), own
        for known in [key for key, one in list(_registries.items()) if one is self]:
            _registries.pop(known, None)
        _registries.setdefault(own, self)
        return True

    @property
    def url(self) -> str:
        """For messages."""
        return self._client.shown

    def schema(self, id: int) -> RegisteredSchema:
        """The schema with this id. Raises `UnknownSchemaError` or another `RegistryError`."""
        return self._keep(*self._by_id(id))

    def schema_of_guid(self, guid: str) -> RegisteredSchema:
        """The schema with this GUID. Raises as `schema`."""
        return self._keep(*_by_guid(guid))

    def schema_just_given(self, id: int) -> RegisteredSchema:
        """The schema with an id that `register` or `lookup` has returned: one that is unknown is asked for
        again, for some seconds. Raises as `schema`."""
        return self._again(*self._by_id(id))

    def schema_of_records(self, key: int | str) -> RegisteredSchema:
        """The schema with the id or GUID that records name. One that is unknown is asked for again, for some
        seconds in a minute. Raises as `schema`."""
        wanted = self._by_id(key) if isinstance(key, int) else _by_guid(key)
        if monotonic() < self._impatient_until:
            return self._keep(*wanted)
        try:
            return self._again(*wanted)
        except UnknownSchemaError:
            self._impatient_until = monotonic() + _IMPATIENT_S
            raise

    def _again(self, path: str, what: str, known: Mapping[str, Any]) -> RegisteredSchema:
        """As `_keep`; a schema that is unknown is asked for again."""
        for pause_s in _FOLLOWER_PAUSES_S:
            self._unknown.pop(path, None)  # that was before
            try:
                return self._keep(path, what, known)
            except UnknownSchemaError:
                sleep(pause_s)
        self._unknown.pop(path, None)
        return self._keep(path, what, known)

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """One version of a subject, which are counted from 1. Raises as `schema`."""
        what = f"version {version} of subject {subject!r}"
        return self._keep(
            f"{_versions_of(subject)}/{version}", what, {"subject": subject, "version": version}
        )

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest version of a subject, asked for anew each time. Raises as `schema`."""
        what = f"latest version of subject {subject!r}"
        with self._alone():
            chain = _Chain()
            answer = self._client.ask(what, f"{_versions_of(subject)}/latest", until=chain.until)
            return self._read(answer, what, {"subject": subject}, chain)

    def lookup(self, subject: str, text: str, type: str, references: Sequence[Mapping[str, Any]] = ()) -> int:
        """The id that an equal schema has under ``subject``. Raises as `schema`."""
        what = f"equal {type} schema under subject {subject!r}"
        body = _body(text, type, references)
        return self._id(self._client.ask(what, f"/subjects/{_quoted(subject)}", body), what)

    def register(
        self, subject: str, text: str, type: str, references: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """The id of the schema, which becomes a new version of ``subject`` if that has no equal one.

        ``references``: ``{"name": ..., "subject": ..., "version": ...}``. Raises `RegistryError`, also if the
        registry refuses the schema as incompatible.
        """
        what = f"id for a new {type} schema under subject {subject!r}"
        return self._id(self._client.ask(what, _versions_of(subject), _body(text, type, references)), what)

    def _by_id(self, id: int) -> tuple[str, str, dict[str, Any]]:
        # Without it the id is one of the default context, and most often another schema.
        asked = f"?subject={_quoted(self._context)}" if self._context else ""
        return f"/schemas/ids/{id}{asked}", f"schema with id {id}", {"id": id}

    def _keep(self, path: str, what: str, known: Mapping[str, Any]) -> RegisteredSchema:
        """The schema at ``path``, from the cache or from the registry."""
        found = self._kept.get(path)
        if found is not None:
            return found
        with self._alone():
            return self._fetch(path, what, known, _Chain())

    def _alone(self) -> threading.Lock:
        """For one look-up at a time: other threads most often wait for the same schema."""
        if self._owner != os.getpid():
            # A thread of the parent may have held the lock when it forked.
            self._lock, self._owner = threading.Lock(), os.getpid()
        return self._lock

    def _fetch(self, path: str, what: str, known: Mapping[str, Any], chain: _Chain) -> RegisteredSchema:
        found = self._kept.get(path)
        if found is not None:
            return found
        ends, unknown = self._unknown.get(path, (0.0, None))
        if unknown is not None and monotonic() < ends:
            raise UnknownSchemaError(str(unknown))
        try:
            answer = self._client.ask(what, path, until=chain.until)
        except UnknownSchemaError as error:
            if len(self._unknown) >= _MAX_UNKNOWN:
                self._unknown.clear()
            self._unknown[path] = monotonic() + _UNKNOWN_S, error
            raise
        schema = self._read(answer, what, known, chain.to(path))
        self._kept[path] = schema
        self._kept_bytes += len(schema.text)
        while self._kept_bytes > _MAX_KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1].text)
        return schema

    def _read(
        self, answer: Mapping[str, Any], what: str, known: Mapping[str, Any], chain: _Chain
    ) -> RegisteredSchema:
        text, kind = answer.get("schema"), answer.get("schemaType") or "AVRO"
        where = f"{what} from the schema registry at {self.url}"
        if not isinstance(text, str) or kind not in TYPES:
            raise RegistryError(f"The {where} makes no sense: it has no schema, or an unknown schemaType")
        if kind != "PROTOBUF" and json_depth(text) > MAX_DEPTH:
            raise RegistryError(f"The {where} is nested more than {MAX_DEPTH} deep")
        found = {name: answer[name] for name in ("id", "version") if _is_number(answer.get(name))}
        found |= {name: answer[name] for name in ("guid",) if isinstance(answer.get(name), str)}
        if "subject" in known and "id" not in found:
            raise RegistryError(f"The {where} makes no sense: it has no id")
        context = _context_of(known.get("subject", "")) or self._context
        references = self._references(answer.get("references") or [], where, context, chain)
        return RegisteredSchema(type=kind, text=text, references=references, **{**found, **known})

    def _references(self, given: Any, where: str, context: str, chain: _Chain) -> tuple[SchemaReference, ...]:
        if not isinstance(given, list) or (given and len(chain.paths) > _MAX_REFERENCE_DEPTH):
            raise RegistryError(f"The {where} has references that make no sense, or are nested too deep")
        found: list[SchemaReference] = []
        count = 0
        for one in given:
            found.append(self._reference(one, where, context, chain))
            count += 1 + found[-1].schema.reference_count
            if count > MAX_REFERENCES:
                raise RegistryError(f"The {where} has more than {MAX_REFERENCES} references")
        return tuple(found)

    def _reference(self, given: Any, where: str, context: str, chain: _Chain) -> SchemaReference:
        """``context``: that of the schema with this reference, and of a subject that names none."""
        place = given if isinstance(given, dict) else {}
        name, subject, version = (place.get(key) for key in ("name", "subject", "version"))
        if not isinstance(name, str) or not isinstance(subject, str) or not _is_number(version):
            raise RegistryError(f"The {where} has a reference without name, subject and version")
        subject = subject if _context_of(subject) else f"{context}{subject}"
        path = f"{_versions_of(subject)}/{version}"
        if path in chain.paths:
            raise RegistryError(f"The {where} has references in a circle, by way of subject {subject!r}")
        what = f"version {version} of subject {subject!r}"
        try:
            known = {"subject": subject, "version": version}
            return SchemaReference(name, self._fetch(path, what, known, chain))
        except UnknownSchemaError as error:
            # The schema itself exists: no record is to blame.
            raise RegistryError(f"{error}; the {where} refers to it") from error

    def _id(self, answer: Mapping[str, Any], what: str) -> int:
        if not _is_number(answer.get("id")):
            raise RegistryError(
                f"The {what} from the schema registry at {self.url} makes no sense: it is no number"
            )
        return int(answer["id"])


class _Chain:
    """A look-up and those that it leads to: the paths that are being asked for, and until when."""

    def __init__(self, paths: tuple[str, ...] = (), until: float | None = None) -> None:
        self.paths = paths
        self.until = monotonic() + OPERATION_S if until is None else until

    def to(self, path: str) -> _Chain:
        """The chain with one more link."""
        return _Chain((*self.paths, path), self.until)


_registries: OrderedDict[tuple[tuple[str, str], ...], SchemaRegistry] = OrderedDict()
_MAX_REGISTRIES: Final = 16


def _own(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    own = {name: text for name, text in settings.items() if name.startswith("registry.")}
    return tuple(sorted({**own, "context": _context_of(settings.get("subject", ""))}.items()))


def _context_of(subject: str) -> str:
    """Empty for a subject that names none."""
    found = _CONTEXT.match(subject.strip())
    return found[0] if found else ""


def _shared(settings: tuple[tuple[str, str], ...]) -> SchemaRegistry:
    found = _registries.get(settings)
    if found is None:
        # Two threads at once: the first one's registry stays.
        found = _registries.setdefault(settings, SchemaRegistry(parse_client(dict(settings)), settings))
        while len(_registries) > _MAX_REGISTRIES:
            _registries.popitem(last=False)
    return found


def _quoted(name: str) -> str:
    # `replace`: JSON may have half of a surrogate pair.
    return quote(name, safe="", errors="replace")


def _by_guid(guid: str) -> tuple[str, str, dict[str, Any]]:
    return f"/schemas/guids/{_quoted(guid)}", f"schema with GUID {guid}", {"guid": guid}


def _versions_of(subject: str) -> str:
    return f"/subjects/{_quoted(subject)}/versions"


def _body(text: str, type: str, references: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # Avro is what a registry takes a schema for that has no type, also one that knows no types.
    return (
        {"schema": text}
        | ({} if type == "AVRO" else {"schemaType": type})
        | ({"references": list(references)} if references else {})
    )


def _is_number(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**31
