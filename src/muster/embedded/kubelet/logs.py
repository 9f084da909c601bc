"""Reading container logs: a file per start, a line per record (time, stream, F or P, text; see shim.LineLog)."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogOptions:
    """What a reader wants; the fields of PodLogOptions.

    Attributes:
        follow: go on with what is written later, until the container ends.
        tail_lines: only the last so many lines.
        since: only what was written at or after that time.
        timestamps: begin each line with its time.
        limit_bytes: end after so many bytes.
    """

    follow: bool = False
    tail_lines: int | None = None
    since: datetime.datetime | None = None
    timestamps: bool = False
    limit_bytes: int | None = None


def log_files(folder: Path) -> list[Path]:
    """The logs of a container, oldest start first."""
    return sorted(folder.glob("*.log"), key=lambda file: int(file.stem)) if folder.is_dir() else []


def read_tail(file: Path, lines: int, limit_bytes: int) -> str:
    """The text of the last lines of a log."""
    if not file.is_file():
        return ""
    text = b"".join(_text(record, False) for record in _last_records(file, lines)[1])
    return text[-limit_bytes:].decode(errors="replace")


async def read_log(file: Path, options: LogOptions, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield a log as its reader wants it; with follow, until `ended` says that nothing more will come."""
    left = options.limit_bytes
    position, records = (0, []) if options.tail_lines is None else _last_records(file, options.tail_lines)
    since = options.since.strftime("%Y-%m-%dT%H:%M:%S.%f").encode() if options.since else b""
    rest = b""
    while True:
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
        was_over = ended()
        data = _read(file, position)
        position += len(data)
        *complete, rest = (rest + data).split(b"\n")
        records = complete
        if not data:
            if was_over or not options.follow:
                return
            await asyncio.sleep(_POLL_S)


def since_time(since_seconds: str | None, since: str | None) -> datetime.datetime | None:
    """The moment that sinceSeconds or sinceTime means; raises ValueError where they mean none."""
    if since_seconds is not None:
        return datetime.datetime.fromtimestamp(time.time() - int(since_seconds), datetime.UTC)
    return datetime.datetime.fromisoformat(since).astimezone(datetime.UTC) if since else None


def _read(file: Path, position: int) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(position)
            return stream.read(_CHUNK_BYTES)
    except FileNotFoundError:
        return b""


def _last_records(file: Path, count: int) -> tuple[int, list[bytes]]:
    """Where the file ends, and its last `count` complete records."""
    if not file.is_file():
        return 0, []
    with file.open("rb") as stream:
        stream.seek(0, 2)
        position = end = stream.tell()
        data = b""
        while position > 0 and data.count(b"\n") <= count:
            step = min(_CHUNK_BYTES, position)
            position -= step
            stream.seek(position)
            data = stream.read(step) + data
    complete = data.rfind(b"\n") + 1
    records = data[:complete].split(b"\n")[:-1]
    return end - (len(data) - complete), records[len(records) - count if count < len(records) else 0 :]


def _text(record: bytes, timestamps: bool) -> bytes:
    stamp, _, tag, text = (*record.split(b" ", 3), b"", b"", b"")[:4]
    return (stamp + b" " if timestamps else b"") + text + (b"\n" if tag == b"F" else b"")
