"""Reads container logs: a file per start, a line per record (time, stream, F or P, text; see shim.LineLog).

As in the kubelet, a reader gets the newest file of a start only, and with `follow` the files that come after it:
https://kubernetes.io/docs/concepts/cluster-administration/logging/#log-rotation
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import gzip
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import IO, cast

from muster.embedded.kubelet.containers.shim import rotated_logs

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 16
_RECORD_BYTES_MAX = 1 << 20
_HEAD_BYTES = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogOptions:
    """A reader's options; the fields of PodLogOptions.

    Attributes:
        follow: continue with later lines, until the container ends.
        tail_lines: only this many last lines.
        since: only lines written at or after that time.
        timestamps: begin each line with its time.
        limit_bytes: end after this many bytes.
    """

    follow: bool = False
    tail_lines: int | None = None
    since: datetime.datetime | None = None
    timestamps: bool = False
    limit_bytes: int | None = None


def log_files(folder: Path) -> list[Path]:
    """The current log file of each start of a container, oldest start first; rotated files are left out."""
    return sorted(folder.glob("*.log"), key=lambda file: int(file.stem)) if folder.is_dir() else []


def read_tail(file: Path, lines: int, limit_bytes: int) -> str:
    """The text of the last lines of a log."""
    try:
        with file.open("rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            most = min(end, (limit_bytes + _CHUNK_BYTES) * 4)  # a record also has a time and a stream
            stream.seek(max(_tail_start(stream, lines, end), end - most))
            records = stream.read(most).split(b"\n")[:-1]
    except FileNotFoundError:
        return ""
    text = b"".join(_text(record, False) for record in records)
    return text[-limit_bytes:].decode(errors="replace")


async def read_log(file: Path, options: LogOptions, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield a log by the reader's options, in pieces of limited size.

    Without follow it ends at the size that the file had when it was opened. With follow it continues in the files that
    come after it, until `ended` returns that nothing more will come. If a slow reader's file was removed by rotation
    before its successor was opened, the oldest file that is left follows.
    """
    left = options.limit_bytes
    since = options.since.strftime("%Y-%m-%dT%H:%M:%S.%f").encode() if options.since else b""
    stream = _open(file)
    rest = b""
    try:
        position = end = 0
        if stream is not None:
            end = stream.seek(0, os.SEEK_END)
            if options.tail_lines is not None:
                position = await asyncio.to_thread(_tail_start, stream, options.tail_lines, end)
            stream.seek(position)
        while True:
            was_over = ended()
            size = _CHUNK_BYTES if options.follow else min(_CHUNK_BYTES, end - position)
            data = stream.read(size) if stream is not None else b""
            position += len(data)
            *records, rest = (rest + data).split(b"\n")
            if len(rest) > _RECORD_BYTES_MAX:  # no writer of ours makes such a record: the file is damaged
                rest = b""
            chunk = b"".join(
                _text(record, options.timestamps) for record in records if not since or record[: len(since)] >= since
            )
            if left is not None:
                chunk = chunk[:left]
                left -= len(chunk)
            if chunk:
                yield chunk
            if left == 0:
                return
            if data:
                await asyncio.sleep(0)  # let other work of the kubelet run during a flood
                continue
            if not options.follow:
                return
            following = _following(stream, file)
            if following is not None:
                if stream is not None:
                    stream.close()
                stream, rest = following, b""
            elif was_over:
                return
            else:
                await asyncio.sleep(_POLL_S)
    finally:
        if stream is not None:
            stream.close()


def since_time(since_seconds: str | None, since: str | None) -> datetime.datetime | None:
    """Convert sinceSeconds or sinceTime to a time. Raises ValueError if they are not valid."""
    if since_seconds is not None:
        return datetime.datetime.fromtimestamp(time.time() - int(since_seconds), datetime.UTC)
    return datetime.datetime.fromisoformat(since).astimezone(datetime.UTC) if since else None


def _open(path: Path | str) -> IO[bytes] | None:
    try:
        return cast(IO[bytes], gzip.open(path, "rb")) if str(path).endswith(".gz") else open(path, "rb")
    except FileNotFoundError:
        return None


def _following(stream: IO[bytes] | None, file: Path) -> IO[bytes] | None:
    """The log's file after the one that was read to its end; None while that one is still written."""
    if stream is None:
        return _open(file)
    while True:
        rotated = rotated_logs(str(file))
        at = _find(stream, rotated)
        if at is None and _find(stream, [str(file)]) is not None:
            return None
        later = rotated if at is None else rotated[at + 1 :]
        opened = _open(later[0] if later else file)
        if later or rotated_logs(str(file)) == rotated:
            return opened
        if opened is not None:  # the current file was rotated while it was opened: look for the one before it
            opened.close()


def _find(stream: IO[bytes], paths: Sequence[str]) -> int | None:
    """Returns the index of the path whose file `stream` reads, also if compressed; None if it was removed."""
    own = os.fstat(stream.fileno())
    for number, path in enumerate(paths):
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(path)
            if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                return number
    head = os.pread(stream.fileno(), _HEAD_BYTES, 0)  # begins with a time in nanoseconds
    for number, path in enumerate(paths):
        if path.endswith(".gz"):
            with contextlib.suppress(FileNotFoundError), gzip.open(path) as compressed:
                if compressed.read(_HEAD_BYTES) == head:
                    return number
    return None


def _tail_start(stream: IO[bytes], lines: int, end: int) -> int:
    """The position at which the last `lines` complete records before `end` begin."""
    position, missing, tail = end, lines + 1, 0
    while position > 0:
        step = min(_CHUNK_BYTES, position)
        position -= step
        stream.seek(position)
        chunk = stream.read(step)
        count = chunk.count(b"\n")
        if count < missing:
            missing -= count
            continue
        at = len(chunk)
        for _ in range(missing):
            at = chunk.rindex(b"\n", 0, at)
        tail = position + at + 1
        break
    return tail


def _text(record: bytes, timestamps: bool) -> bytes:
    stamp, _, tag, text = (*record.split(b" ", 3), b"", b"", b"")[:4]
    return (stamp + b" " if timestamps else b"") + text + (b"\n" if tag == b"F" else b"")
