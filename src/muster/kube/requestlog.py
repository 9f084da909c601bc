"""Log of requests to an API server: one JSON line per request, without tokens, bodies or header values.

The read cache and the recorder of `muster doctor record` write it, and the doctor reads it. A request has one line when
it ends. A watch also has a line with `"open": true` when it begins, because it may last for an hour.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from pathlib import Path
from typing import Final

import msgspec

FLUSH_S: Final = 1.0
"""A line is in the file at most this long after the request, if another request follows."""


class RequestLine(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One request, as far as its cost depends on it.

    Attributes:
        time: when it ended, or began if `open`, in Unix seconds.
        seconds: how long it took.
        verb: verb of RBAC, such as `list`.
        id: pairs the two lines of a watch.
        open: the request is a watch that has just begun.
        user: the authenticated user, "" if unknown.
        pod, node: of a service account's token, "" if unknown.
        peer: address from which the request came.
        group, resource, subresource, namespace, name: what it is about.
        limit: number of objects per page, 0 for no limit.
        continued: it asks for a later page of a list.
        initial: a watch that asks for the state first (`sendInitialEvents`).
        code: HTTP status, 0 if the connection broke before the answer.
        bytes: size of the answer's body as sent, -1 if unknown.
        events: number of events that a watch delivered, -1 if unknown.
    """

    time: float
    seconds: float = 0.0
    verb: str = ""
    id: str = ""
    open: bool = False
    user: str = ""
    user_agent: str = ""
    pod: str = ""
    node: str = ""
    peer: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    label_selector: str = ""
    field_selector: str = ""
    resource_version: str = ""
    match: str = ""
    limit: int = 0
    continued: bool = False
    initial: bool = False
    code: int = 0
    bytes: int = -1
    events: int = -1


class RequestLog:
    """Writes lines to a file that is rotated, so that the disk use is bounded. Not thread-safe.

    `path` is the newest file, and `path.1` the one before it. A line that cannot be written is dropped and counted,
    because a full disk must not stop the requests.

    Attributes:
        dropped: number of lines that could not be written.
    """

    def __init__(self, path: Path, *, max_bytes: int = 64 << 20, files: int = 4) -> None:
        """Open the log for appending.

        Args:
            path: the newest file. Its folder must exist.
            max_bytes: size at which a file is rotated.
            files: number of files that are kept, including the newest one; at least 1.

        Raises:
            OSError: the file cannot be opened.
            ValueError: a limit is not positive.
        """
        if max_bytes <= 0 or files <= 0:
            raise ValueError("max_bytes and files must be positive")
        self.path = path
        self.dropped = 0
        self._max_bytes = max_bytes
        self._files = files
        self._encode = msgspec.json.Encoder().encode
        self._file: io.BufferedWriter | None = self._opened()
        self._size = path.stat().st_size
        self._flushed = time.monotonic()

    def write(self, line: RequestLine) -> None:
        """Append a line."""
        data = self._encode(line) + b"\n"
        try:
            if self._file is None or (self._size and self._size + len(data) > self._max_bytes):
                self._rotate()
            assert self._file is not None
            self._file.write(data)
            self._size += len(data)
            if (now := time.monotonic()) - self._flushed >= FLUSH_S:
                self._flushed = now
                self._file.flush()
        except OSError:
            self.dropped += 1
            self._discard()

    def flush(self) -> None:
        """Write buffered lines to the file."""
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _opened(self) -> io.BufferedWriter:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return io.BufferedWriter(io.FileIO(descriptor, "wb"), 1 << 16)

    def _rotate(self) -> None:
        full = self._file is not None
        self.close()
        if full:
            for number in range(self._files - 1, 0, -1):
                newer = self.path if number == 1 else self._numbered(number - 1)
                if newer.exists():
                    newer.replace(self._numbered(number))
            if self._files == 1:
                self.path.unlink(missing_ok=True)
        self._file = self._opened()
        self._size = self.path.stat().st_size

    def _discard(self) -> None:
        """Drop the file and what it buffers, so that the next line tries to open it again."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.raw.close()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
