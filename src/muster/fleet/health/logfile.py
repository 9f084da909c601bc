"""Follows a kernel log file through rotation: reads every line once, and reports what was lost.

The rotated file `path.1` is read first, and then the file from its beginning. So lines from before this process started
are not missed (NVIDIA/NVSentinel#1532). A file that was renamed is read to its end before the new one is begun
(#1417). A file that was truncated and filled again (copytruncate) is detected by its size, or by the bytes before the
read position.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from muster.fleet.health.finding import Finding

READ_BYTES: Final = 1 << 20
_MARK_BYTES: Final = 64


class LogFile:
    """Follows one file. Problems are findings of the check `kernel-log`, and reading is retried.

    Args:
        path: the file; `path.1` is read first if it exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._position = 0
        self._mark = b""
        self._older: Path | None = path.with_name(f"{path.name}.1")
        self._said: set[str] = set()

    def read(self, now_s: float) -> Iterator[bytes | Finding]:
        """Yield what was written since the last call, in pieces, and findings about problems with reading."""
        if self._older is not None:
            older, self._older = self._older, None
            yield from self._whole(older, now_s)
        while True:
            trouble = self._open()
            if trouble is not None:
                if trouble not in self._said:
                    self._said.add(trouble)
                    yield self._finding(trouble, now_s)
                return
            self._said.clear()
            if self._was_cut():
                yield self._finding("truncated", now_s)
                self._position, self._mark = 0, b""
            yield from self._rest()
            if not self._was_renamed():
                return
            yield b"\n"  # the last line of a complete file may lack its newline
            self.close()

    @property
    def trouble(self) -> str:
        """Why it cannot be opened, as last reported; "" if it can."""
        return next(iter(self._said), "")

    def close(self) -> None:
        """Close the file. The next read begins with the file that is then at the path."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._position, self._mark = None, 0, b""

    def _open(self) -> str | None:
        """Open the file if it is not open. Returns the problem, or None."""
        if self._file is not None:
            return None
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return "missing"
        except PermissionError:
            return "permission"
        except OSError:
            return "unreadable"
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            self.close()
            return "unreadable"
        return None

    def _rest(self) -> Iterator[bytes]:
        assert self._file is not None
        while data := self._pread(READ_BYTES, self._position):
            self._position += len(data)
            self._mark = (self._mark + data[-_MARK_BYTES:])[-_MARK_BYTES:]
            yield data

    def _pread(self, count: int, offset: int) -> bytes:
        assert self._file is not None
        try:
            return os.pread(self._file, count, offset)
        except OSError:  # an unreadable disk: return nothing, so that the mark does not match
            return b""

    def _was_cut(self) -> bool:
        return bool(self._mark) and self._pread(len(self._mark), self._position - len(self._mark)) != self._mark

    def _was_renamed(self) -> bool:
        """Return whether another file is at the path now. If there is none, the old file may still be written to."""
        assert self._file is not None
        try:
            at_path = os.stat(self.path)
        except OSError:
            return False
        return not os.path.samestat(os.fstat(self._file), at_path)

    def _whole(self, path: Path, now_s: float) -> Iterator[bytes | Finding]:
        try:
            with path.open("rb") as file:
                while data := file.read(READ_BYTES):
                    yield data
        except FileNotFoundError:
            return
        except OSError:
            yield self._finding("permission", now_s, path)
        yield b"\n"

    def _finding(self, code: str, now_s: float, path: Path | None = None) -> Finding:
        return Finding(
            check="kernel-log", component=str(path or self.path), code=code, first_s=now_s, last_s=now_s,
            message=_MESSAGES[code],
        )  # fmt: skip


_MESSAGES: Final = {
    "missing": "there is no such file: faults are not seen; name the kernel's log of this machine",
    "permission": "may not be read: faults are not seen; give the agent the right to read it",
    "unreadable": "is not a file that can be read: faults are not seen",
    "truncated": "the file was cut while it was read: lines written just before may not have been seen",
}
