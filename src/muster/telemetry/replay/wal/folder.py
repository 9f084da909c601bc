"""Reads what Prometheus replays from the folder of its database when it starts."""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from muster.telemetry.replay.wal.compression import Undecodable
from muster.telemetry.replay.wal.fragments import Damaged, Torn, records
from muster.telemetry.replay.wal.tally import BadRecord, Counts, Tally

READ_BYTES_MAX: Final = 4 << 30
"""Most bytes of a log that are read. Of a longer one every n-th segment is read."""
_DECODE_BYTES: Final = 48 << 20
_ATTEMPTS: Final = 3
_SEGMENT: Final = re.compile(r"\d{6,}")
_CHECKPOINT: Final = re.compile(r"checkpoint\.(\d{6,})")
_SNAPSHOT: Final = re.compile(r"chunk_snapshot\.\d+\.\d+")
_PROGRESS_S: Final = 0.5

Progress = Callable[[int, int], None]
"""Receives bytes that were read, and bytes that will be read."""


class FolderError(Exception):
    """The folder cannot be read, or is not that of a database. The message says what to change."""


class Damage(msgspec.Struct, frozen=True):
    """A place where a log is damaged.

    Attributes:
        file: relative to the folder.
        offset: byte in the file.
        reason: what is wrong.
        lost_bytes: bytes from there on, which Prometheus drops when it starts, also those of newer segments.
        fatal: Prometheus does not start, since the checkpoint is damaged, or a segment is missing between others.
    """

    file: str
    offset: int
    reason: str
    lost_bytes: int
    fatal: bool = False


class Folder(msgspec.Struct, frozen=True):
    """What a database replays.

    Attributes:
        path: of the folder.
        checkpoint: the newest checkpoint; None without one.
        log: segments that are newer than the checkpoint.
        segments: their number.
        out_of_order: log of samples that came out of order (wbl).
        chunks_bytes: chunks of the head on disk, whose samples are not appended again.
        snapshot_bytes: snapshot of the last clean shutdown; 0 without one.
        damage: the first damaged place; None without one.
        growing: a server writes to it while it is read.
        partly_read: some segments were left out, so the numbers are less exact.
    """

    path: str
    checkpoint: Counts | None
    log: Counts
    segments: int
    out_of_order: Counts
    chunks_bytes: int
    snapshot_bytes: int
    damage: Damage | None
    growing: bool
    partly_read: bool

    @property
    def counts(self) -> Counts:
        """All that is replayed."""
        return (self.checkpoint or Counts()) + self.log + self.out_of_order


class _Vanished(Exception):
    """A file was removed after it was listed: the server made a checkpoint."""


class _Read(NamedTuple):
    counts: Counts
    damage: Damage | None
    partly: bool


class _End(NamedTuple):
    """Where reading a segment ended, and why; the reason is empty at its end."""

    offset: int
    reason: str
    torn: bool


def read_folder(path: Path, progress: Progress = lambda done, total: None) -> Folder:
    """Read the folder of a database (`--storage.tsdb.path`), or its folder `wal`. Nothing is written.

    Raises:
        FolderError: the folder holds no log, a file cannot be read, or the server removed files each time.
        MissingExtra: records are compressed, and the library for that is not installed.
    """
    for _ in range(_ATTEMPTS):
        try:
            return _read(path, progress)
        except _Vanished:
            continue
        except OSError as error:
            raise FolderError(
                f"{error.filename or path}: {error.strerror or error}: read it as the user of the server, "
                "or read a copy of the folder"
            ) from error
    raise FolderError(f"{path}: the server removed segments each time that they were read: read a copy of the folder")


def _read(path: Path, progress: Progress) -> Folder:
    data, wal = _wal_of(path)
    number, checkpoint = _checkpoint(wal)
    segments = [each for each in _segments(wal) if int(each.name) > number]
    parts = (_segments(checkpoint) if checkpoint else [], segments, _segments(data / "wbl"))
    newest_bytes = _total(segments[-1:])
    meter = _Meter(progress, sum(min(_total(part), READ_BYTES_MAX) for part in parts))
    old = _read_log(data, parts[0], meter, fatal=True)
    new = _read_log(data, parts[1], meter, fatal=False)
    out_of_order = _read_log(data, parts[2], meter, fatal=False)
    again = [each for each in _segments(wal) if int(each.name) > number]
    growing = again != segments or (bool(again) and _total(again[-1:]) != newest_bytes)
    return Folder(
        path=str(path),
        checkpoint=old.counts if checkpoint else None,
        log=new.counts,
        segments=len(segments),
        out_of_order=out_of_order.counts,
        chunks_bytes=_total(_files(data / "chunks_head")),
        snapshot_bytes=_snapshot_bytes(data),
        damage=old.damage or _gap(data, (*parts, _segments(wal))) or new.damage or out_of_order.damage,
        growing=growing,
        partly_read=old.partly or new.partly or out_of_order.partly,
    )


def _wal_of(path: Path) -> tuple[Path, Path]:
    """Return the folder of the database and the one of its log."""
    if not path.is_dir():
        why = "is not a folder" if path.exists() else "does not exist"
        raise FolderError(f"{path} {why}: name the folder of --storage.tsdb.path")
    if (path / "wal").is_dir():
        return path, path / "wal"
    if path.name == "wal" or _segments(path):
        return path.parent, path
    raise FolderError(f"{path} has no folder wal: name the folder of --storage.tsdb.path")


def _segments(folder: Path) -> list[Path]:
    """Return segments by number; none if the folder does not exist."""
    return sorted((each for each in _files(folder) if _SEGMENT.fullmatch(each.name)), key=lambda each: int(each.name))


def _gap(data: Path, logs: Iterable[Sequence[Path]]) -> Damage | None:
    """Return where a segment is missing: Prometheus ends with "segments are not sequential"."""
    for segments in logs:
        for before, after in pairwise(segments):
            missing = int(before.name) + 1
            if int(after.name) > missing:
                reason = f"the segment {missing:08} before it is missing"
                return Damage(str(after.relative_to(data)), 0, reason, _total([after]), fatal=True)
    return None


def _checkpoint(wal: Path) -> tuple[int, Path | None]:
    """Return number and folder of the newest checkpoint. Prometheus reads only segments with larger numbers."""
    found = [(int(match[1]), each) for each in wal.iterdir() if (match := _CHECKPOINT.fullmatch(each.name))]
    return max(found, default=(-1, None))


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _total(files: Sequence[Path]) -> int:
    return sum(map(_size, files))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _snapshot_bytes(data: Path) -> int:
    """Return the size of the newest snapshot."""
    found = [each for each in _files(data) if _SNAPSHOT.fullmatch(each.name)]
    return _total(_files(found[-1])) if found else 0


class _Meter:
    """Reports progress, at most twice a second."""

    def __init__(self, report: Progress, total_bytes: int) -> None:
        self._report = report
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._reported_s = time.monotonic()

    def add(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if time.monotonic() - self._reported_s >= _PROGRESS_S:
            self._reported_s = time.monotonic()
            self._report(self._done_bytes, self._total_bytes)


def _read_log(data: Path, segments: Sequence[Path], meter: _Meter, *, fatal: bool) -> _Read:
    """Count the records of these segments, up to the first damaged one."""
    sizes = [_size(each) for each in segments]
    total = sum(sizes)
    step = -(-total // READ_BYTES_MAX) if total else 1
    tally = Tally(share=min(1.0, _DECODE_BYTES / total) if total else 1.0)
    read_bytes = 0
    for index, (segment, size) in enumerate(zip(segments, sizes, strict=True)):
        if index % step and index != len(segments) - 1:
            continue
        try:
            end = _read_segment(segment, size, tally, meter)
        except FileNotFoundError:
            raise _Vanished from None
        if end.reason and not (end.torn and index == len(segments) - 1 and not fatal):
            read_bytes += end.offset
            lost = size - end.offset + sum(sizes[index + 1 :])
            damage = Damage(str(segment.relative_to(data)), end.offset, end.reason, lost, fatal)
            return _Read(tally.counts(read_bytes, total - lost), damage, step > 1)
        read_bytes += size
    return _Read(tally.counts(read_bytes, total), None, step > 1)


def _read_segment(segment: Path, size: int, tally: Tally, meter: _Meter) -> _End:
    """Count the records in the first `size` bytes of a segment. Raises FileNotFoundError and FolderError."""
    offset = 0
    if not stat.S_ISREG(segment.stat().st_mode):  # a pipe without a writer would be opened for ever
        raise FolderError(f"{segment} is not a regular file: remove it, or read a copy of the folder")
    with segment.open("rb") as file:
        try:
            for record in records(file, size):
                meter.add(record.offset - offset)
                offset = record.offset
                tally.add(record)
        except Damaged as error:
            return _End(error.offset, error.reason, isinstance(error, Torn))
        except (BadRecord, Undecodable) as error:
            return _End(offset, str(error), False)
    return _End(size, "", False)
