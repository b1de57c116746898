"""`SchemaRegistry`: the schemas of a registry, each of them looked up once in a process."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic, sleep
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from ..format import ABOUT_SCHEMAS
from .errors import RegistryError, UnknownSchemaError
from .registered_schema import MAX_DEPTH, RegisteredSchema, SchemaReference, json_depth
from .registry_client import OPERATION_S, RegistryClient, parse_client

TYPES: Final = ("AVRO", "PROTOBUF", "JSON")
MAX_REFERENCES: Final = 200
"""Of one schema, indirect ones included."""
_MAX_REFERENCE_DEPTH: Final = 20
_MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
MAX_UNKNOWN: Final = 1_000
"""Schemas of one batch of records that the registry does not have. With more of them the records are of
something else, and each would cost a request."""
_MAX_KEPT_UNKNOWN: Final = 10_000
_UNKNOWN_S: Final = (1.0, 60.0)
"""A schema that the registry does not have is asked for again once that has been so for as long again, at
least and at most after these."""
_FOLLOWER_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""A node of a registry that gave an id may be ahead of the one that is asked for the schema."""
_AGAIN_S: Final = 10.0
"""The last of these pauses begins no later."""
_LEAST_PAUSES: Final = 2
_MANY_NEW: Final = 100
"""More unknown schemas of one batch are most likely of another registry, and each costs a request after each
pause."""
_IMPATIENT_S: Final = 60.0
"""After waiting in vain for schemas that records name, others are waited for half as long within that time:
the records may be of another registry."""
_VERSION_KEPT_S: Final = 2 * OPERATION_S
"""How long the schema is kept that a subject had under a number."""
_CONTEXT: Final = re.compile(r":\.[^:]*:")
"""What a subject in a context begins with: each context counts its own ids."""


Found = RegisteredSchema | UnknownSchemaError


class _Wanted(NamedTuple):
    """A schema to look up."""

    path: str
    what: str
    """For errors."""
    known: Mapping[str, Any]
    """Fields of the `RegisteredSchema` that need no answer."""


class _Unknown(NamedTuple):
    """A schema that the registry does not have."""

    since: float
    until: float
    """The registry is not asked again before."""
    error: UnknownSchemaError


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
        self._versions: dict[str, tuple[float, RegisteredSchema]] = {}
        """When they were found, and the schemas that others refer to, by path."""
        self._unknown: dict[str, _Unknown] = {}
        """By path."""
        self._impatience = (0, 0.0)
        """How often it has waited in vain for schemas that records name, and until when that counts."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> SchemaRegistry | None:
        """The registry that the settings ``registry.*`` name, in the context of ``subject``, the same one
        each time; None without ``registry.url``. Raises `RegistryError`."""
        if "registry.url" in settings:
            return _shared(_own(settings))
        for name in ABOUT_SCHEMAS:
            if name.lower() in settings:
                payload = settings.get("payload", "value")
                raise RegistryError(f"{payload}.{name} has no effect without registry.url")
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
        return self._keep(self._named(id))

    def schema_of_guid(self, guid: str) -> RegisteredSchema:
        """The schema with this GUID. Raises as `schema`."""
        return self._keep(self._named(guid))

    def schema_just_given(self, id: int) -> RegisteredSchema:
        """The schema with an id that `register` or `lookup` has returned: one that is unknown is asked for
        again, for some seconds. Raises as `schema`."""
        found = self._ask_for(id, afresh=True)
        if isinstance(found, UnknownSchemaError):
            found = self._ask_again([id], _FOLLOWER_PAUSES_S)[id]
        if isinstance(found, UnknownSchemaError):
            raise found
        return found

    def schemas_of_records(self, keys: Iterable[int | str]) -> dict[int | str, Found]:
        """The schemas with the ids and GUIDs that a batch of records names. Those that are unknown for the
        first time are asked for again, all together, for some seconds. Raises `RegistryError`, also for more
        than `MAX_UNKNOWN` that are unknown."""
        found, unknown, new = {}, 0, []
        for key in keys:
            is_new = self._named(key).path not in self._unknown
            found[key] = one = self._ask_for(key, afresh=is_new)
            if isinstance(one, RegisteredSchema):
                continue
            unknown += 1
            if is_new:
                new.append(key)
            if unknown > MAX_UNKNOWN:
                self._note_unknown({key: found[key] for key in new})  # the task runs again
                raise RegistryError(
                    f"More than {MAX_UNKNOWN} schemas of one batch of records are not in the schema registry "
                    f"at {self.url}: they are records of another registry, or of none"
                ) from one
        return {**found, **self._wait_for(new)}

    def _wait_for(self, new: list[int | str]) -> dict[int | str, Found]:
        if not new:
            return {}
        in_vain, until = self._impatience
        in_vain = in_vain if monotonic() < until else 0
        most = len(_FOLLOWER_PAUSES_S) - in_vain if len(new) <= _MANY_NEW else 0
        pauses = _FOLLOWER_PAUSES_S[: max(_LEAST_PAUSES, most)]
        found = self._ask_again(new, pauses)
        if any(isinstance(one, UnknownSchemaError) for one in found.values()):
            self._impatience = in_vain + 1, monotonic() + _IMPATIENT_S
        return found

    def _ask_again(self, keys: list[int | str], pauses: Iterable[float]) -> dict[int | str, Found]:
        """As `_ask_for`, after each pause for those that are still unknown, which are kept as that then."""
        found: dict[int | str, Found] = {}
        until = monotonic() + _AGAIN_S
        for pause_s in pauses:
            if monotonic() > until:  # asking takes long
                break
            sleep(pause_s)
            found |= {key: self._ask_for(key, afresh=True) for key in keys}
            keys = [key for key in keys if isinstance(found[key], UnknownSchemaError)]
            if not keys:
                break
        self._note_unknown(found)
        return found

    def _ask_for(self, key: int | str, *, afresh: bool) -> Found:
        try:
            return self._keep(self._named(key), afresh=afresh)
        except UnknownSchemaError as error:
            return error

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """One version of a subject, which are counted from 1, asked for anew each time: a subject that is
        deleted and registered again has another schema under the same number. Raises as `schema`."""
        what = f"version {version} of subject {subject!r}"
        known = {"subject": subject, "version": version}
        return self._ask(f"{_versions_of(subject)}/{version}", what, known)

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest version of a subject, asked for anew each time. Raises as `schema`."""
        what = f"latest version of subject {subject!r}"
        return self._ask(f"{_versions_of(subject)}/latest", what, {"subject": subject})

    def _ask(self, path: str, what: str, known: Mapping[str, Any]) -> RegisteredSchema:
        with self._alone():
            chain = _Chain().to(path)
            found = self._read(self._client.ask(what, path, until=chain.until), what, known, chain)
            self._versions.clear()  # the next one is of its own moment; one that failed goes on with them
            return found

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

    def _named(self, key: int | str) -> _Wanted:
        """The schema with this id or GUID."""
        if isinstance(key, str):
            return _Wanted(f"/schemas/guids/{_quoted(key)}", f"schema with GUID {key}", {"guid": key})
        # Without it the id is one of the default context, and most often another schema.
        asked = f"?subject={_quoted(self._context)}" if self._context else ""
        return _Wanted(f"/schemas/ids/{key}{asked}", f"schema with id {key}", {"id": key})

    def _keep(self, wanted: _Wanted, *, afresh: bool = False) -> RegisteredSchema:
        """The schema from the cache or from the registry. ``afresh``: also if that did not have it just now,
        which is not kept."""
        found = self._kept.get(wanted.path)
        if found is not None:
            return found
        with self._alone():
            return self._fetch(wanted, _Chain(), afresh=afresh)

    def _alone(self) -> threading.Lock:
        """For one look-up at a time: other threads most often wait for the same schema."""
        if self._owner != os.getpid():
            # A thread of the parent may have held the lock when it forked.
            self._lock, self._owner = threading.Lock(), os.getpid()
        return self._lock

    def _fetch(self, wanted: _Wanted, chain: _Chain, *, afresh: bool = False) -> RegisteredSchema:
        path, what, known = wanted
        is_version = "version" in known
        if (found := self._version_kept(path) if is_version else self._kept.get(path)) is not None:
            return found
        unknown = None if afresh else self._unknown.get(path)
        if unknown is not None and monotonic() < unknown.until:
            raise UnknownSchemaError(str(unknown.error))
        try:
            answer = self._client.ask(what, path, until=chain.until)
        except UnknownSchemaError as error:
            if not afresh:
                self._note(path, error)
            raise
        schema = self._read(answer, what, known, chain.to(path))
        self._unknown.pop(path, None)
        if is_version:
            self._versions[path] = monotonic(), schema
            return schema
        self._kept[path] = schema
        self._kept_bytes += len(schema.text)
        while self._kept_bytes > _MAX_KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1].text)
        return schema

    def _version_kept(self, path: str) -> RegisteredSchema | None:
        """A schema that others refer to by subject and version, which may be of another one later. Those of
        a batch share it, and a look-up that took too long goes on with it when it is tried again."""
        oldest = monotonic() - _VERSION_KEPT_S
        self._versions = {one: kept for one, kept in self._versions.items() if kept[0] >= oldest}
        found = self._versions.get(path)
        return None if found is None else found[1]

    def _note_unknown(self, found: Mapping[int | str, Found]) -> None:
        for key, one in found.items():
            if isinstance(one, UnknownSchemaError):
                self._note(self._named(key).path, one)

    def _note(self, path: str, error: UnknownSchemaError) -> None:
        if len(self._unknown) >= _MAX_KEPT_UNKNOWN and path not in self._unknown:
            self._unknown.clear()
        now, before = monotonic(), self._unknown.get(path)
        since = now if before is None else before.since
        pause_s = min(max(_UNKNOWN_S[0], now - since), _UNKNOWN_S[1])
        self._unknown[path] = _Unknown(since, now + pause_s, error)

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
            wanted = _Wanted(path, what, {"subject": subject, "version": version})
            return SchemaReference(name, self._fetch(wanted, chain))
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
