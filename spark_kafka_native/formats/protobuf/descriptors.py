"""Descriptors of messages: from a file that ``protoc`` wrote, from a class, and as the text of a setting."""

from __future__ import annotations

import base64
import binascii
import importlib
import os
import stat
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..errors import FormatError, SetupError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

MAX_DESCRIPTOR_BYTES: Final = 4 * 1024 * 1024
"""Of a descriptor set: it is sent to each task."""
INSTALL: Final = "pip install 'spark-kafka-native[protobuf]'"


def require_libraries() -> None:
    """Raise `SetupError` where the libraries are missing."""
    for name in ("google.protobuf", "ptars"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SetupError(
                f"protobuf needs the package {name.replace('google.', '')}: {INSTALL}"
            ) from error


def is_repeated(field: FieldDescriptor) -> bool:
    """True for a list or a map. protobuf has this property since 6.31, and no `label` since 7."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def is_required(field: FieldDescriptor) -> bool:
    """True for a field that proto2 calls required; see `is_repeated`."""
    return bool(field.is_required if hasattr(field, "is_required") else field.label == field.LABEL_REQUIRED)


def named_descriptor(settings: Mapping[str, str]) -> Descriptor | None:
    """The message that ``descriptorfile`` and ``message``, or ``messageclass``, name; None if neither is
    there. Raises `FormatError`."""
    path, name, class_name = (settings.get(one) for one in ("descriptorfile", "message", "messageclass"))
    if class_name is not None and path is not None:
        raise FormatError("descriptorFile and messageClass exclude each other")
    if class_name is not None:
        found = _of_class(class_name)
        if name is not None and name != found.full_name:
            raise FormatError(f"messageClass is the message '{found.full_name}', not '{name}'")
        return found
    if path is None:
        return None
    if name is None:
        raise FormatError("descriptorFile needs `message`, the full name of the message in it")
    try:
        # Non-blocking: opening a pipe would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FormatError(f"descriptorFile {path} is not a regular file")
            content = file.read(MAX_DESCRIPTOR_BYTES + 1)
    except OSError as error:
        raise FormatError(f"descriptorFile {path} can't be read: {error.strerror}") from error
    return find_message(parse_set(content, f"descriptorFile {path}"), name)


def _of_class(name: str) -> Descriptor:
    module, _, attribute = name.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise FormatError(f"messageClass '{name}' can't be imported: {error}") from error
    descriptor = getattr(found, "DESCRIPTOR", None)
    if not hasattr(descriptor, "fields_by_name"):
        raise FormatError(f"messageClass '{name}' is no class of a message that protoc has made")
    return descriptor


def parse_set(content: bytes, where: str) -> FileDescriptorSet:
    """A serialized ``FileDescriptorSet``. ``where`` says in errors where it is from. Raises `FormatError`."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    if len(content) > MAX_DESCRIPTOR_BYTES:
        raise FormatError(f"{where} is longer than {MAX_DESCRIPTOR_BYTES} bytes")
    found = FileDescriptorSet()
    try:
        found.ParseFromString(content)
    except DecodeError:
        found.Clear()
    if not any(file.name for file in found.file):
        raise FormatError(
            f"{where} is no descriptor set; protoc writes one with --descriptor_set_out=FILE "
            "--include_imports"
        )
    return found


def find_message(files: FileDescriptorSet, name: str) -> Descriptor:
    """The message with the full name ``name``. Raises `FormatError`."""
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    for one in in_order(files):
        _add(pool, one)
    try:
        return pool.FindMessageTypeByName(name.removeprefix("."))
    except KeyError:
        known = sorted(full for file in files.file for full in _full_names(file.package, file.message_type))
        shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
        raise FormatError(f"There is no message '{name}' in the descriptor; it has {shown}") from None


def _full_names(prefix: str, messages: Iterable[Any]) -> list[str]:
    names = []
    for one in messages:
        full = f"{prefix}.{one.name}" if prefix else one.name
        names += [full, *_full_names(full, [n for n in one.nested_type if not n.options.map_entry])]
    return names


def _add(pool: Any, file: Any) -> None:
    try:
        pool.Add(file)
        pool.FindFileByName(file.name)
    except (TypeError, KeyError, ValueError) as error:
        reason = str(error).strip()[:500]
        raise FormatError(f"The descriptor of {file.name} can't be used: {reason}") from error


def in_order(files: FileDescriptorSet) -> list[Any]:
    """The files, each behind those that it imports. Google's own may be missing. Raises `FormatError`."""
    given = {file.name: file for file in files.file}
    ordered: dict[str, Any] = {}
    pending: set[str] = set()
    todo = [(name, False) for name in reversed(given)]
    while todo:
        name, is_done = todo.pop()
        if is_done:
            ordered[name] = given[name]
            pending.discard(name)
            continue
        if name in ordered:
            continue
        if name in pending:
            raise FormatError(f"The descriptor of {name} imports itself")
        if name not in given:
            given[name] = _google_file(name)
        pending.add(name)
        todo.append((name, True))
        todo += [(one, False) for one in given[name].dependency if one not in ordered]
    return list(ordered.values())


def _google_file(name: str) -> Any:
    from google.protobuf import descriptor_pb2

    if name.startswith(("google/protobuf/", "google/type/")) and name.endswith(".proto"):
        module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
        try:
            file = descriptor_pb2.FileDescriptorProto()
            importlib.import_module(module).DESCRIPTOR.CopyToProto(file)
            return file
        except ImportError:
            pass
    raise FormatError(f"The descriptor set has no file {name}: make it with protoc's --include_imports")


def to_text(descriptor: Descriptor) -> str:
    """The files that ``descriptor`` needs, in Base64: how it travels in settings. Raises `FormatError`."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    files: dict[str, FileDescriptor] = {}
    todo = [descriptor.file]
    while todo:
        file = todo.pop()
        if file.name not in files:
            files[file.name] = file
            todo += file.dependencies
    found = FileDescriptorSet()
    for file in files.values():
        file.CopyToProto(found.file.add())
    for copied in found.file:
        copied.ClearField("source_code_info")
    content = found.SerializeToString()
    if len(content) > MAX_DESCRIPTOR_BYTES:
        raise FormatError(
            f"The descriptor of {descriptor.full_name} is longer than {MAX_DESCRIPTOR_BYTES} bytes"
        )
    return base64.b64encode(content).decode()


def from_text(text: str, name: str) -> Descriptor:
    """The message ``name`` in what `to_text` returned. Raises `FormatError`."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError("The setting `descriptor` is not Base64") from error
    return find_message(parse_set(content, "The setting `descriptor`"), name)
