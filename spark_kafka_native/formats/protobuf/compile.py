"""`compile_proto`: the descriptors of ``.proto`` text, for registries that keep text."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from ..errors import FormatError, SetupError
from .descriptors import INSTALL, MAX_DESCRIPTOR_BYTES, parse_set

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet

MAX_SECONDS: Final = 60.0
_LOG_LINE: Final = re.compile(r"WARNING: All log messages|[WI][0-9]{4} ")
_OF_NAMES: Final = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
"""A stranger's names of files cause these."""
_LACKS: Final = ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "ENOMEM", "EMFILE")
_WORDS: Final = "|".join(os.strerror(getattr(errno, name)) for name in _LACKS)
_OF_THE_MACHINE: Final = re.compile(f": ({_WORDS})$|bad_alloc", re.MULTILINE)
_DECIMAL: Final = """
syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
"""
KNOWN_FILES: Final = {
    "confluent/meta.proto": """
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}
message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": _DECIMAL,
    "confluent/types/decimal.proto": _DECIMAL,
}
"""Registries keep no references for these files, which schemas of Confluent's serializers and Kafka Connect
import; nor for those of ``google/type``."""
_ENTRY_OPTION: Final = re.compile(
    r"""("(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|//[^\n]*|/\*.*?(?:\*/|\Z))"""
    r"|\boption\s+map_entry\s*=\s*true\s*;",
    re.DOTALL,
)
"""Strings and comments, or the option."""
_MARK: Final = "_map_entry_"


def compile_proto(
    name: str, files: Mapping[str, str], compiled: FileDescriptorSet | None = None
) -> FileDescriptorSet:
    """The file ``name`` and those that it imports: of ``files``, of ``compiled``, Google's, or Confluent's.

    ``protoc`` runs in a process of its own: the text is a stranger's. It refuses the option ``map_entry``,
    which Confluent's registry writes for each map of a schema that came from a descriptor: messages with it
    are compiled without it, and get it back. Raises `FormatError`, and `SetupError` where that says nothing
    about the text.
    """
    if sum(map(len, files.values())) > MAX_DESCRIPTOR_BYTES:
        raise FormatError(f"The schema {name} is longer than {MAX_DESCRIPTOR_BYTES} characters")
    with TemporaryDirectory(prefix="spark-kafka-native-") as folder:
        for one, text in files.items():
            _write(Path(folder, "in"), one, _ENTRY_OPTION.sub(_marked, text))
        Path(folder, "in").mkdir(exist_ok=True)
        for one, text in KNOWN_FILES.items():
            _write(Path(folder, "known"), one, text)
        output = Path(folder, "out")
        places = [f"{folder}/in", f"{folder}/known", *_google_types()]
        flags = [*(f"-I{place}" for place in places), "--include_imports", f"--descriptor_set_out={output}"]
        if compiled is not None:
            Path(folder, "set").write_bytes(compiled.SerializeToString())
            flags.append(f"--descriptor_set_in={folder}/set")
        _run(name, flags, folder)
        found = parse_set(output.read_bytes(), f"The schema {name}")
    for file in found.file:
        if file.name in files:
            _set_entries(file.message_type)
    return found


def is_synthetic(message: DescriptorProto) -> bool:
    """True for the entry of a ``map<>``, which does not stand in the text. Only in files that were text."""
    return _MARK in message.reserved_name


def _marked(found: re.Match[str]) -> str:
    return found[1] or f"message {_MARK} {{}}"


def _set_entries(messages: Iterable[DescriptorProto]) -> None:
    for one in messages:
        if one.options.map_entry:
            one.reserved_name.append(_MARK)
        elif [inner.name for inner in one.nested_type] == [_MARK]:
            one.options.map_entry = True
            del one.nested_type[:]
        _set_entries(one.nested_type)


def _google_types() -> list[str]:
    """Where the folder with ``google/type`` is, if the package is there (googleapis-common-protos)."""
    found = importlib.util.find_spec("google.type")
    return [str(Path(one).parent.parent) for one in (found and found.submodule_search_locations) or ()]


def _write(folder: Path, name: str, text: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or not path.name:
        raise FormatError(f"The schema imports a file with the name '{name[:100]}', which is refused")
    place = folder / path
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    except (OSError, UnicodeError) as error:
        is_of_name = isinstance(error, UnicodeError) or error.errno in _OF_NAMES
        kind = FormatError if is_of_name else SetupError
        raise kind(f"The schema '{name[:100]}' can't be written for protoc: {error}") from error


def _run(name: str, flags: list[str], folder: str) -> None:
    # -P: nothing is imported from the current folder.
    command = [sys.executable, "-P", "-m", "grpc_tools.protoc", *flags, name]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=MAX_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"The schema {name} can't be compiled: {error}") from error
    if "No module named" in done.stderr and "grpc_tools" in done.stderr:
        raise SetupError(f"A schema that is .proto text needs the package grpcio-tools: {INSTALL}")
    if done.returncode:
        lines = done.stderr.replace(f"{folder}/in/", "").splitlines()
        reason = "; ".join(one for one in lines if not _LOG_LINE.match(one))[:1_000]
        # Other signals than that of a kernel without memory may be the work of a stranger's text.
        is_of_machine = done.returncode == -signal.SIGKILL or _OF_THE_MACHINE.search(done.stderr)
        kind = SetupError if is_of_machine else FormatError
        raise kind(f"The schema {name} can't be compiled: {reason or f'protoc ended with {done.returncode}'}")
