"""Reads audit logs and request logs of any size: a line at a time, plain or gzip, in the order of their first line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from muster.doctor.costs.auditlog import audit_line
from muster.kube.loglines import Reading, log_lines, opened_log
from muster.kube.requestlog import RequestLine


def read_requests(
    files: Sequence[Path], reading: Reading, *, since: Mapping[Path, tuple[int, int]] | None = None
) -> Iterator[RequestLine]:
    """Yield the requests of all files.

    Rotated files may be given in any order. Broken lines are counted and skipped.

    Args:
        files: audit logs or request logs; their formats may differ.
        reading: is updated while the files are read.
        since: inode and size of files at an earlier moment; what they held then is skipped, unless it was compressed.

    Raises:
        LogFileError: a file cannot be opened or read.
    """
    for path in sorted(files, key=_first_time):
        with opened_log(path, (since or {}).get(path, (0, 0))) as stream:
            for data in log_lines(stream, reading):
                line = _parsed(data, reading)
                if line is not None:
                    yield line


_decode_own = msgspec.json.Decoder(RequestLine).decode


def _parsed(data: bytes, reading: Reading) -> RequestLine | None:
    try:
        return audit_line(data) if b'"stage"' in data and b'"auditID"' in data else _decode_own(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        reading.add_broken()
        return None


def _first_time(path: Path) -> float:
    """The time of a file's first good line, infinity if it has none among the first hundred."""
    with opened_log(path) as stream:
        for number, data in enumerate(log_lines(stream, Reading())):
            line = _parsed(data, Reading())
            if line is not None:
                return line.time
            if number >= 100:
                break
    return float("inf")
