"""`SpillFolder`: batches that could not be delivered, kept on disk in order until a producer has sent them.

A folder has one owner at a time (a lock that dies with its process). Files are written to the end and
synced before anything is reported as kept; a process killed in the middle of a write leaves a torn tail,
which was never reported and is ignored. A damaged file is set aside under another name, never deleted.

One file: MAGIC, then entries of ``lengths and their CRC | meta (JSON) | record batch | CRC of both``.
Beside it a ``.delivered`` file has a mark for each entry that was delivered: its number, and a CRC of that
and of the entry's own CRC; when all are, both files go. A mark that is damaged, or of another entry, counts
for nothing: at worst a batch is sent again, and the log says so. Former releases listed bare numbers in a
``.done`` file, which is still read; where it can't be right, none of it counts.

Replacements of an entry (its halves, or itself under new numbers) are written behind all others and name the
entry that they replace; the last of them makes all valid, so that a crash leaves the one or the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import json
import logging
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ..errors import ConfigError, KafkaError
from ..model import TopicPartition
from ..records.crc32c import crc32c

_LOG = logging.getLogger("spark_kafka_native")
MAGIC = b"sknspill1\n"
_ENTRY = struct.Struct(">II")
_CRC = struct.Struct(">I")
_META = {"topic": str, "partition": int, "records": int, "possibly_persisted": bool, "reason": str}
_HEAD_BYTES = _ENTRY.size + _CRC.size
_INDEX = struct.Struct(">I")
_MARK = struct.Struct(">II")
_MARKS, _OLD_MARKS = ".delivered", ".done"
MAX_ENTRY_BYTES = (1 << 32) - 1
"""What the lengths of an entry can say. The reader has no limit of its own: all that was kept comes back."""
_NAME = re.compile(r"([0-9]{10})\.batches")


class SpillError(KafkaError):
    """The spill folder could not be written; the records are not kept."""


class SpilledBatch(NamedTuple):
    """A batch in the folder."""

    topic_partition: TopicPartition
    topic_id: UUID | None
    records: int
    possibly_persisted: bool
    """True if an attempt with an unknown outcome was made. Its numbering lets the broker recognise it."""
    reason: str
    file: Path
    number: int
    start: int
    length: int
    crc: int
    """The entry's checksum."""
    place: tuple[int, ...]
    """Where it is in the order: its file and number, or the place of what it replaces and which part."""
    completes: bool
    """True if it is the last of those that replace another."""

    def read(self) -> bytearray:
        """The record batch. Its checksum was right when the folder was opened; brokers check it again."""
        with self.file.open("rb") as stream:
            stream.seek(self.start)
            data = bytearray(stream.read(self.length))
        if len(data) != self.length:
            raise SpillError(f"{self.file} was cut short while its producer had it open")
        return data


class NewEntry(NamedTuple):
    """A batch to keep."""

    topic_partition: TopicPartition
    topic_id: UUID | None
    records: int
    possibly_persisted: bool
    reason: str
    data: bytes | bytearray | memoryview
    place: tuple[int, ...] | None = None
    completes: bool = False


class SpillFolder:
    """The folder, owned by this process until `close`. One thread at a time."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._writing: io.FileIO | None = None
        self._end = 0
        """Of the file that is written, as far as its entries are kept."""
        self._writing_path = self._path
        self._number = 0
        """Of the newest file."""
        self._written = 0
        self._left: dict[Path, set[int]] = {}
        self._unmarked: dict[Path, list[SpilledBatch]] = {}
        """Delivered; a full disk has refused their marks so far."""
        self._locks = self._own()
        try:
            self.entries: list[SpilledBatch] = self._without_replaced(list(self._scan()))
        except BaseException as error:
            self._close_locks()
            if isinstance(error, OSError):
                raise _unusable(self._path, error) from error
            raise

    def keep(self, entries: Iterable[NewEntry]) -> list[SpilledBatch]:
        """Write ``entries`` in their order; once this returns they survive a crash. Raises `SpillError`."""
        kept: list[SpilledBatch] = []
        try:
            if self._writing is not None and not os.fstat(self._writing.fileno()).st_nlink:
                # It has been deleted: more entries would go with the descriptor.
                self._writing.close()
                self._writing = None
            stream = self._writing or self._start_file()
            at = self._end
            try:
                for entry in entries:
                    parts = _encode(entry)
                    number = self._written + len(kept)
                    start = at + len(parts[0]) + len(parts[1])
                    (crc,) = _CRC.unpack(parts[3])
                    kept.append(_read_meta(parts[1], self._writing_path, number, start, len(entry.data), crc))
                    at += _write_all(stream, parts)
                os.fsync(stream.fileno())
            except BaseException:  # a lack of memory, too
                self._take_back(stream)
                raise
            self._end = at
        except OSError as error:
            raise SpillError(
                f"cannot write to the spill folder {self._path}: {error.strerror or error}"
            ) from error
        self._written += len(kept)
        self._left.setdefault(self._writing_path, set()).update(one.number for one in kept)
        return kept

    def replace(self, batch: SpilledBatch, entries: list[NewEntry]) -> list[SpilledBatch]:
        """Put ``entries`` in the place of ``batch``. Raises `SpillError`: then it stays."""
        last = len(entries) - 1
        kept = self.keep(
            entry._replace(place=(*batch.place, i), completes=i == last) for i, entry in enumerate(entries)
        )
        self.delivered(batch)
        return kept

    def delivered(self, batch: SpilledBatch) -> None:
        """``batch`` is in the log; it will not be sent again. Its file goes once all of it is."""
        self._left[batch.file].discard(batch.number)
        self._unmarked.setdefault(batch.file, []).append(batch)
        self._mark()

    def close(self) -> None:
        """Release the folder; harmless when repeated."""
        if self._locks:
            self._mark()
        if self._writing is not None:
            self._writing.close()
            self._writing = None
        for lock in self._locks:
            # Said, not only closed: a process forked meanwhile may still have the descriptor, and with it the
            # lock.
            fcntl.flock(lock, fcntl.LOCK_UN)
        self._close_locks()

    def forget(self) -> None:
        """In a forked child: release the parent's lock and file, without taking them from the parent."""
        self._close_locks()
        if self._writing is not None:
            self._writing.close()

    def _close_locks(self) -> None:
        while self._locks:
            os.close(self._locks.pop())

    def _own(self) -> list[int]:
        """The descriptors of the file that names the owner, and of the folder: that file may be deleted by
        a cleaner of temporary files, which leaves locked folders alone."""
        path = self._path / "owner.lock"
        locks: list[int] = []
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            locks.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666))
            locks.append(os.open(self._path, os.O_RDONLY))
            for lock in locks:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(locks[0], 0)
            os.write(locks[0], f"{os.getpid()}\n".encode())
        except OSError as error:
            owner = ""
            if isinstance(error, BlockingIOError):
                owner = os.pread(locks[0], 20, 0).decode("ascii", "replace").strip() or "unknown"
            for lock in locks:
                os.close(lock)
            if owner:
                raise ConfigError(
                    f"spill.dir={self._path} is in use by another producer (process {owner}): a spill folder "
                    "has one owner at a time"
                ) from None
            raise _unusable(self._path, error, path) from error
        return locks

    def _start_file(self) -> io.FileIO:
        numbers = [int(match[1]) for match in map(_NAME.fullmatch, os.listdir(self._path)) if match]
        # Of one that was deleted, the number is not used again: its batches would be read from this one.
        self._number = max([*numbers, self._number]) + 1
        self._writing_path = self._path / f"{self._number:010d}.batches"
        # One that a crash left behind is not about the file that gets its number now.
        _remove_marks(self._writing_path)
        # Unbuffered: what a full disk refused must not be written later, behind its refusal.
        stream = self._writing_path.open("xb", buffering=0)
        try:
            self._end = _write_all(stream, [MAGIC])
            _sync_folder(self._path)
        except OSError:
            stream.close()
            self._writing_path.unlink(missing_ok=True)
            raise
        self._writing, self._written = stream, 0
        return stream

    def _mark(self) -> None:
        """Write the marks that are due. Those that can't be written are due again at the next one."""
        for path, batches in list(self._unmarked.items()):
            try:
                if self._left[path]:
                    _write_marks(path, batches)
                else:
                    self._remove(path)
            except OSError as error:
                _LOG.warning(
                    "spill folder %s: %d batches of %s that were delivered may be sent again, as this can't "
                    "be noted yet: %s", self._path, len(batches), path.name, error,
                )  # fmt: skip
            else:
                del self._unmarked[path]

    def _remove(self, path: Path) -> None:
        """All of ``path`` was delivered. Raises OSError."""
        # The batches first: marks alone mean nothing, batches alone would be sent again.
        path.unlink(missing_ok=True)
        if self._writing is not None and path == self._writing_path:
            self._writing.close()
            self._writing = None
        del self._left[path]
        with contextlib.suppress(OSError):
            _remove_marks(path)

    def _take_back(self, stream: io.FileIO) -> None:
        """A half-written entry must not stand in front of later ones. Where it can't be taken away, nothing
        is kept behind it: the next entries get a file of their own."""
        try:
            os.ftruncate(stream.fileno(), self._end)
            os.lseek(stream.fileno(), self._end, os.SEEK_SET)
        except OSError as error:
            _LOG.warning("spill folder: %s can't be cut: %s", self._writing_path, error)
            self._writing = None
            stream.close()

    def _scan(self) -> Iterator[SpilledBatch]:
        for path in sorted(path for path in self._path.iterdir() if _NAME.fullmatch(path.name)):
            self._number = int(path.stem)
            found, entries, damaged = _read_entries(path)
            done = _read_marks(path, {batch.number: batch.crc for batch in found})
            done |= _read_old_marks(path, entries)
            left = [batch for batch in found if batch.number not in done]
            if damaged:
                _set_aside(path, damaged)
            self._left[path] = {batch.number for batch in left}
            if not left:
                del self._left[path]
                path.unlink()
                _remove_marks(path)
            yield from left

    def _without_replaced(self, entries: list[SpilledBatch]) -> list[SpilledBatch]:
        """In order, without replaced entries, and without a replacement that was not written to its end."""
        replaced = {entry.place[:-1] for entry in entries if entry.completes}
        standing = {entry.place for entry in entries} - replaced
        kept = []
        for entry in sorted(entries, key=lambda entry: entry.place):
            if entry.place in replaced or entry.place[:-1] in standing:
                self.delivered(entry)
            else:
                kept.append(entry)
        return kept


def _unusable(folder: Path, error: OSError, file: Path | None = None) -> ConfigError:
    named = error.filename or file
    where = f" ({named})" if named else ""
    return ConfigError(
        f"spill.dir={folder} can't be used: {error.strerror or error}{where}. It needs room, and "
        "files that this process may read, write and remove: make room, mend the rights, or set another one"
    )


def _write_all(stream: io.FileIO, parts: Sequence[bytes | bytearray | memoryview]) -> int:
    """Write ``parts``, each to its end; returns how many bytes that were. Raises OSError."""
    size = 0
    for part in parts:
        left = memoryview(part).cast("B")
        size += len(left)
        while len(left):
            left = left[stream.write(left) or 0 :]
    return size


def _sync_folder(path: Path) -> None:
    """A file that was synced may still be lost with its name, until the folder is."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _set_aside(path: Path, damaged: str) -> None:
    """Keep a damaged file under another name, as a link: a full disk has room for that. An earlier one may
    have had the same number, and stays.
    """
    for earlier in itertools.count():
        aside = path.with_suffix(f".{earlier}.damaged" if earlier else ".damaged")
        try:
            os.link(path, aside)
        except FileExistsError:
            if aside.samefile(path):
                return
        except OSError as error:
            raise ConfigError(
                f"spill folder: {damaged}; and the file can't be set aside as {aside.name}: {error}. Move it "
                "away yourself"
            ) from error
        else:
            _LOG.error("spill folder: %s; the file is set aside as %s", damaged, aside)
            return


def _encode(entry: NewEntry) -> tuple[bytes, bytes, bytes | bytearray | memoryview, bytes]:
    meta = json.dumps(
        {
            "topic": entry.topic_partition.topic,
            "partition": entry.topic_partition.partition,
            "topic_id": None if entry.topic_id is None else str(entry.topic_id),
            "records": entry.records,
            "possibly_persisted": entry.possibly_persisted,
            "reason": entry.reason[:1000],
            **({"place": entry.place, "completes": entry.completes} if entry.place else {}),
        }
    ).encode()
    if len(meta) + len(entry.data) > MAX_ENTRY_BYTES:
        raise SpillError(f"a batch of {len(entry.data)} bytes is too large for the spill folder")
    lengths = _ENTRY.pack(len(meta), len(entry.data))
    body_crc = _CRC.pack(crc32c(meta) ^ crc32c(entry.data))
    return lengths + _CRC.pack(crc32c(lengths)), meta, entry.data, body_crc


def _read_entries(path: Path) -> tuple[list[SpilledBatch], int, str | None]:
    """The whole entries of a file, the number of all, and its damage beyond a torn tail. One batch at a time
    is in memory: a folder may be larger than that."""
    found, damaged = list[SpilledBatch](), None
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        magic = stream.read(len(MAGIC))
        if magic != MAGIC[: len(magic)]:
            return [], 0, f"{path} is no spill file"
        at, index = len(MAGIC), 0
        while at + _HEAD_BYTES <= size:
            lengths, crc = stream.read(_ENTRY.size), stream.read(_CRC.size)
            meta_length, length = _ENTRY.unpack(lengths)
            if _CRC.pack(crc32c(lengths)) != crc:
                return found, index, f"{path} is damaged at byte {at}: what follows can't be read"
            start = at + _HEAD_BYTES + meta_length
            end = start + length + _CRC.size
            if end > size:
                break  # torn: the process died while it wrote
            meta, data = stream.read(meta_length), stream.read(length)
            body_crc = crc32c(meta) ^ crc32c(data)
            is_whole = _CRC.pack(body_crc) == stream.read(_CRC.size)
            try:
                if is_whole:
                    found.append(_read_meta(meta, path, index, start, length, body_crc))
            except (ValueError, RecursionError):
                is_whole = False
            if not is_whole:
                damaged = f"{path} is damaged at byte {at}: one batch is lost"
            at, index = end, index + 1
    return found, index, damaged


def _read_meta(meta: bytes, path: Path, number: int, start: int, length: int, crc: int) -> SpilledBatch:
    """The batch that `_encode` has described. Raises ValueError or RecursionError for anything else: a right
    checksum proves no author.
    """
    fields = json.loads(meta)
    if not isinstance(fields, dict) or any(type(fields.get(one)) is not _META[one] for one in _META):
        raise ValueError("it does not describe a batch")
    place, topic_id = fields.get("place", [int(path.stem), number]), fields.get("topic_id")
    if not isinstance(place, list) or not all(type(part) is int for part in place):
        raise ValueError("it has no place")
    return SpilledBatch(
        topic_partition=TopicPartition(fields["topic"], fields["partition"]),
        topic_id=None if topic_id is None else UUID(str(topic_id)),
        records=fields["records"],
        possibly_persisted=fields["possibly_persisted"],
        reason=fields["reason"],
        file=path,
        number=number,
        start=start,
        length=length,
        crc=crc,
        place=tuple(place),
        completes=fields.get("completes") is True,
    )


def _mark(number: int, crc: int) -> bytes:
    """Bound to its entry by the ``crc`` of that: it is about no other file, and zeros are no mark."""
    return _MARK.pack(number, crc32c(_MARK.pack(number, crc)))


def _write_marks(path: Path, batches: list[SpilledBatch]) -> None:
    """Raises OSError."""
    marks = os.open(path.with_suffix(_MARKS), os.O_WRONLY | os.O_CREAT, 0o666)
    with io.FileIO(marks, "wb") as stream:
        # Over a part of a mark, which a full disk may have left: those behind it would be out of step.
        stream.seek(os.fstat(marks).st_size // _MARK.size * _MARK.size)
        _write_all(stream, [_mark(batch.number, batch.crc) for batch in batches])
        os.fsync(marks)


def _read_marks(path: Path, crcs: dict[int, int]) -> set[int]:
    """Which entries of the spill file ``path``, with these ``crcs`` by their numbers, were delivered."""
    marks = path.with_suffix(_MARKS)
    try:
        data = marks.read_bytes()
    except FileNotFoundError:
        return set()
    done, damaged = set[int](), 0
    for at in range(0, len(data), _MARK.size):
        mark = data[at : at + _MARK.size]
        (number,) = _INDEX.unpack_from(mark.ljust(_MARK.size))
        if number in crcs and _mark(number, crcs[number]) == mark:
            done.add(number)
        else:
            damaged += 1
    if damaged:
        _LOG.warning(
            "spill folder: %s has %d damaged marks: batches that were delivered may be sent again",
            marks,
            damaged,
        )
    return done


def _read_old_marks(path: Path, entries: int) -> set[int]:
    """The same, as a former release noted it, without checksums. If one can't be right, none counts."""
    marks = path.with_suffix(_OLD_MARKS)
    try:
        data = marks.read_bytes()
    except FileNotFoundError:
        return set()
    numbers = [number for (number,) in _INDEX.iter_unpack(data[: len(data) // _INDEX.size * _INDEX.size])]
    done = set(numbers)
    if len(data) % _INDEX.size or len(done) < len(numbers) or max(done, default=-1) >= entries:
        _LOG.warning(
            "spill folder: %s is damaged and is not used: batches that were delivered may be sent again",
            marks,
        )
        return set()
    return done


def _remove_marks(path: Path) -> None:
    for suffix in (_MARKS, _OLD_MARKS):
        path.with_suffix(suffix).unlink(missing_ok=True)
