"""The interface of an object store, as the SDK and the node cache use it."""

from __future__ import annotations

from typing import BinaryIO, Iterable, Iterator, NamedTuple


class ObjectInfo(NamedTuple):
    """An object's key, size and version.

    Attributes:
        key: relative to the store's URL, with "/" between its parts.
        size_bytes: its length.
        etag: changes whenever the object's bytes change.
        version: the store's version ID; "" without versions.
        modified: time of the last change, in seconds since the epoch.
    """

    key: str
    size_bytes: int
    etag: str
    version: str = ""
    modified: float = 0.0


class Store:
    """An object store below a URL. Thread-safe. Every call has a deadline and retries temporary failures within it."""

    url: str

    def head(self, key: str, deadline_s: float | None = None) -> ObjectInfo:
        """Return the object's size and version. Raises NotFound, Forbidden, Unavailable."""
        raise NotImplementedError

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with the prefix, sorted by key."""
        raise NotImplementedError

    def read(self, key: str, start: int = 0, length: int | None = None, etag: str = "") -> bytes:
        """Read a range of bytes. Raises ObjectChanged if an ETag is given and the object has another one."""
        raise NotImplementedError

    def read_into(self, key: str, file: BinaryIO, start: int = 0, length: int | None = None, etag: str = "") -> int:
        """Write a range of bytes to a file with bounded memory, and return its length. Errors as for `read`."""
        raise NotImplementedError

    def put(self, key: str, data: bytes | str, create_only: bool = False) -> ObjectInfo:
        """Write bytes, or the local file at a path. Raises AlreadyExists if `create_only` and the object exists."""
        raise NotImplementedError

    def delete(self, key: str) -> None:
        """Delete the object. A missing object is not an error."""
        raise NotImplementedError

    def close(self) -> None:
        """Release connections."""


class ChunkedStore(Store):
    """A store that reads in chunks."""

    def chunks(self, key: str, start: int, length: int | None, etag: str) -> Iterable[bytes]:
        """The bytes of a range in order. Errors as for `read`."""
        raise NotImplementedError

    def read(self, key: str, start: int = 0, length: int | None = None, etag: str = "") -> bytes:
        """Read a range of bytes; past the end of the object there are none.

        Raises ObjectChanged if an ETag is given and the object has another one, or if it changes in the meantime.
        """
        return b"".join(self.chunks(key, start, length, etag))

    def read_into(self, key: str, file: BinaryIO, start: int = 0, length: int | None = None, etag: str = "") -> int:
        """Write a range of bytes to a file with a few MiB of memory, and return its length. Errors as for `read`.

        If it raises, the file holds the first part of the range, and never bytes of two versions.
        """
        total = 0
        for chunk in self.chunks(key, start, length, etag):
            file.write(chunk)
            total += len(chunk)
        return total
