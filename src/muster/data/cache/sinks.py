"""Files that receive a download: they count, hash, and stop it when it is not wanted any more. Run in threads."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import time
from collections.abc import Callable

from muster.data.cache.files import write_all


class Abandoned(Exception):
    """No reader waits for this download any more."""


class WriteFailed(Exception):
    """The local file could not be written. `error` says why."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Sink(io.RawIOBase):
    """Writes a download to a file. The thread of the download closes it.

    Args:
        descriptor: receives the bytes. The sink uses a duplicate, so the owner may close it at any time.
        length: more bytes than these are refused.
        pace: called with the number of bytes of each write; returns seconds to wait.
        abandoned: when set, the next write raises Abandoned.
    """

    def __init__(self, descriptor: int, length: int, pace: Callable[[int], float], abandoned: threading.Event) -> None:
        super().__init__()
        self._descriptor = os.dup(descriptor)
        self._length = length
        self._pace = pace
        self._abandoned = abandoned
        self._digest = hashlib.sha256()
        self.count = 0
        self.write_s = 0.0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: object) -> int:
        """Write all of the data. Raises Abandoned, WriteFailed, and ValueError if there are too many bytes."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        if self._abandoned.wait(self._pace(len(view))):
            raise Abandoned
        if self.count + len(view) > self._length:
            raise ValueError(f"the store sent more than the {self._length} bytes of the range")
        began_s = time.monotonic()
        try:
            write_all(self._descriptor, view)
        except OSError as error:
            raise WriteFailed(error) from None
        self.write_s += time.monotonic() - began_s
        self._digest.update(view)
        self.count += len(view)
        return len(view)

    def sha256(self) -> str:
        """Checksum of all bytes, in hex."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the duplicate."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()
