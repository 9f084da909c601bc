"""An object as a file whose bytes come from blocks of the node cache, or from the bucket where the cache fails."""

from __future__ import annotations

import io
import os
import threading
from typing import Callable, NamedTuple

from muster.sdk.data.errors import ObjectChanged
from muster.sdk.data.store import Store
from muster.sdk.data.wire import BLOCK_BYTES, Answer, CacheUnavailable, Message, block_range

_BASE_S = 40.0
_SLOWEST_BYTES_PER_S = 1 << 20
_OPEN_BLOCKS = 4


class _OpenBlock(NamedTuple):
    descriptor: int
    length: int
    end: Callable[[], None]


class CachedObject(io.RawIOBase):
    """One version of an object, as a seekable file without buffer. `CacheClient.open_object` makes it.

    Args:
        request: sends a request and returns the answer.
        count: called with a source and a number of bytes.
        key: the object.
        etag: its version.
        size_bytes: its length.
        store: read where the cache fails; None: such reads raise CacheUnavailable.
    """

    def __init__(
        self,
        request: Callable[[Message, float], Answer],
        count: Callable[[str, int], None],
        key: str,
        etag: str,
        size_bytes: int,
        store: Store | None,
    ) -> None:
        super().__init__()
        self._request, self._count = request, count
        self._key, self._etag, self._store = key, etag, store
        self.size_bytes = size_bytes
        self._position = 0
        self._lock = threading.Lock()
        self._blocks: dict[int, _OpenBlock] = {}
        self._opening: dict[int, threading.Lock] = {}

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position of `read`, as for any file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the position of `read`."""
        return self._position

    def readinto(self, buffer: object) -> int:
        """Fill the buffer, as far as the object goes.

        Raises CacheUnavailable without a store, and the store's StoreError.
        """
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        view = view[: max(0, self.size_bytes - self._position)]
        done = 0
        while done < len(view):
            done += self._part(view[done:], self._position + done)
        self._position += done
        return done

    def readall(self) -> bytes:
        """Read the rest of the object. Errors as for `readinto`."""
        data = self.pread(self.size_bytes - self._position, self._position)
        self._position += len(data)
        return data

    def pread(self, length: int, offset: int) -> bytes:
        """Return bytes at an offset; fewer only at the end of the object. Thread-safe. Errors as for `readinto`."""
        data = bytearray(max(0, min(length, self.size_bytes - offset)))
        view = memoryview(data)
        done = 0
        while done < len(data):
            done += self._part(view[done:], offset + done)
        view.release()
        return bytes(data)

    def close(self) -> None:
        """End the leases and close the descriptors."""
        super().close()
        with self._lock:
            blocks, self._blocks = self._blocks, {}
        for block in blocks.values():
            _end(block)

    def _part(self, view: memoryview, offset: int) -> int:
        """Read some bytes of one block."""
        number = offset // BLOCK_BYTES
        piece = block_range(self.size_bytes, number)
        within = offset - piece.start
        try:
            count = self._from_block(number, view, within)
            if not count:
                raise CacheUnavailable(f"block {number} of {self._key} is too short")
            return count
        except (CacheUnavailable, OSError) as error:
            if self._store is None:
                if isinstance(error, CacheUnavailable):
                    raise
                raise CacheUnavailable(f"block {number} of {self._key}: {error.strerror}") from None
        data = self._store.read(self._key, offset, min(len(view), piece.length - within), self._etag)
        if not data:
            raise ObjectChanged(f"{self._key}: the object is shorter than it was", self._store.url, self._key)
        view[: len(data)] = data
        self._count("bucket", len(data))
        return len(data)

    def _from_block(self, number: int, view: memoryview, within: int) -> int:
        """Read from a block that is open, or open it. Other blocks can be read while one is being opened."""
        with self._lock:
            block = self._blocks.get(number)
            if block is not None:
                return _read(block, view, within)
            opening = self._opening.setdefault(number, threading.Lock())
        with opening:
            with self._lock:
                block = self._blocks.get(number)
                if block is not None:
                    return _read(block, view, within)
            try:
                block = self._open(number)
            finally:
                self._opening.pop(number, None)
            with self._lock:
                self._blocks[number] = block
                count = _read(block, view, within)
                limit = 0 if self.closed else _OPEN_BLOCKS
                surplus = [self._blocks.pop(each) for each in list(self._blocks)[: max(0, len(self._blocks) - limit)]]
        for block in surplus:
            _end(block)
        return count

    def _open(self, number: int) -> _OpenBlock:
        piece = block_range(self.size_bytes, number)
        deadline_s = _BASE_S + piece.length / _SLOWEST_BYTES_PER_S
        message = {
            "op": "block",
            "key": self._key,
            "etag": self._etag,
            "size": self.size_bytes,
            "index": number,
            "deadline_s": int(deadline_s),
        }
        answer = self._request(message, deadline_s)
        if answer.descriptor < 0:
            raise CacheUnavailable("the node cache sent no descriptor")
        found, end_lease = answer.message, answer.end_lease
        block = _OpenBlock(answer.descriptor, int(found["length"]), lambda: end_lease(int(found["lease"])))
        self._count(str(found["source"]), block.length)
        return block


def _read(block: _OpenBlock, view: memoryview, within: int) -> int:
    return os.preadv(block.descriptor, [view[: block.length - within]], within)


def _end(block: _OpenBlock) -> None:
    os.close(block.descriptor)
    block.end()
