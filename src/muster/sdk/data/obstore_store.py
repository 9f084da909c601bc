"""Objects in S3, Google Cloud Storage, Azure and memory, through obstore. Deadlines, retries and typed errors are ours.

obstore's own retries are off, except within the parts of a large upload, because they know neither our deadline nor
new credentials. A read that breaks continues at the byte where it stopped, if the object's ETag is still the same.
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any, BinaryIO, Callable, Iterator, TypeVar

from muster.sdk.data import failures
from muster.sdk.data.access import Access
from muster.sdk.data.attempts import Attempts
from muster.sdk.data.credentials import Folder
from muster.sdk.data.deadline import Deadline
from muster.sdk.data.errors import AlreadyExists, NotFound, ObjectChanged, StoreError, WrongStore
from muster.sdk.data.failures import Failure
from muster.sdk.data.location import Location, check_key
from muster.sdk.data.messages import DELETE, LIST, READ, WRITE
from muster.sdk.data.obstore_clients import Clients
from muster.sdk.data.reading import CHUNK_BYTES, LARGE_CHUNK_BYTES, Reading
from muster.sdk.data.store import ChunkedStore, ObjectInfo

REQUEST_TIMEOUT_S = 32.0
SLOWEST_UPLOAD_BYTES_PER_S = 256 << 10
PART_BYTES = 16 << 20
LARGEST_SINGLE_PUT_BYTES = 512 << 20
_MOST_PARTS = 9000  # S3 allows 10,000
_PARTS_AT_ONCE = 4
_RETRIES_OF_A_PART = 6
_PAGE = 1000

T = TypeVar("T")


class ObstoreStore(ChunkedStore):
    """A bucket, or a prefix in it. `put` of a path sends parts of 16 MiB or more, four at once.

    A create-only write is a single request with `If-None-Match: *`, since obstore has no create-only multipart upload.
    Such an object may therefore have at most 512 MiB, and is held in memory.

    Args:
        location: where the store begins.
        access: endpoint, region and folder of credentials.
        deadline_s: time for each call, in which it repeats temporary failures. Calls that move many bytes get a second
            more for each MiB.
        credentials: used instead of those that `access` names.
        proxy_url: all requests pass through this proxy.
    """

    def __init__(
        self,
        location: Location,
        access: Access,
        deadline_s: float,
        credentials: Folder | None = None,
        proxy_url: str = "",
    ) -> None:
        import obstore

        self._obstore: Any = obstore
        self._location, self._deadline_s = location, deadline_s
        self.url = location.url
        self._clients = Clients(location, access, credentials, proxy_url)
        self._attempts = Attempts(self._clients, self.url, access)
        self._bucket_seen = False

    def __repr__(self) -> str:
        return f"ObstoreStore({self.url!r})"

    def head(self, key: str, deadline_s: float | None = None) -> ObjectInfo:
        """Return the object's size and version. Raises NotFound, Forbidden, WrongStore, Unavailable."""
        path = self._path(key)
        deadline = Deadline(self._deadline_s if deadline_s is None else deadline_s)
        try:
            meta = self._attempts.call(
                key,
                deadline,
                lambda client: self._obstore.head(client, path),
                REQUEST_TIMEOUT_S,
                READ,
                explain=lambda client: self._obstore.get(client, path, options={"range": (0, 1)}),
            )
        except NotFound:
            self._check_bucket(deadline)
            raise
        self._bucket_seen = True
        return self._info(key, meta)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with the prefix, sorted by key, with one page in memory.

        Each page has the store's deadline. Raises WrongStore if the store does not list in the order of keys, as
        directory buckets of S3 do.
        """
        folder, _, _ = prefix.rpartition("/")
        within = "/".join(part for part in (self._location.prefix, folder) if part)
        last = ""
        pages = _Pages(self, within, self._offset(prefix))
        for info in pages:
            if info.key <= last:
                raise WrongStore(
                    f"{self.url}: the store does not list in the order of keys, as directory buckets do. Use a bucket "
                    "of another type",
                    self.url,
                    reason="UnorderedLists",
                )
            last = info.key
            if info.key.startswith(prefix):
                yield info
            elif info.key > prefix:
                return

    def read(self, key: str, start: int = 0, length: int | None = None, etag: str = "") -> bytes:
        """Read a range of bytes; past the end of the object there are none.

        Raises ObjectChanged if an ETag is given and the object has another one, or if it changes in the meantime.
        """
        if length is not None and length <= LARGE_CHUNK_BYTES:
            return b"".join(self._reading(key, start, length, etag, max(1, length)))  # most often one chunk
        file = io.BytesIO()  # gives its buffer away without a copy, unlike a joined list of chunks
        self.read_into(key, file, start, length, etag)
        return file.getvalue()

    def chunks(self, key: str, start: int, length: int | None, etag: str) -> Reading:
        """The bytes of a range in order, and never those of two versions."""
        return self._reading(key, start, length, etag)

    def put(self, key: str, data: bytes | str, create_only: bool = False) -> ObjectInfo:
        """Write bytes, or the local file at a path (str). Raises AlreadyExists if `create_only` and the object exists.

        If an answer was lost, a create-only write compares what is there. The same bytes count as its own.

        Raises ValueError if a create-only write has more than 512 MiB.
        """
        path = self._path(key)
        size = os.path.getsize(data) if isinstance(data, str) else len(data)
        if create_only and size > LARGEST_SINGLE_PUT_BYTES:
            limit = LARGEST_SINGLE_PUT_BYTES >> 20
            raise ValueError(
                f"{self.url}/{key}: a create-only object may have {limit} MiB; write it without create_only"
            )
        deadline = Deadline(self._deadline_s, size)
        if isinstance(data, str) and size > PART_BYTES and not create_only:
            result = self._upload(key, path, data, size, deadline)
        else:
            body = _content(data)
            result = self._put_at_once(key, path, body, create_only, deadline)
        etag = _unquoted(result.get("e_tag"))
        if not etag:
            return self.head(key)
        return ObjectInfo(key, size, etag, result.get("version") or "")

    def delete(self, key: str) -> None:
        """Delete the object. A missing object is not an error."""
        path = self._path(key)
        with contextlib.suppress(NotFound):
            self._call(key, Deadline(self._deadline_s), lambda client: self._obstore.delete(client, path), DELETE)

    def close(self) -> None:
        """Release connections."""
        self._clients.close()

    def _path(self, key: str) -> str:
        check_key(key, self.url)
        return f"{self._location.prefix}/{key}" if self._location.prefix else key

    def _offset(self, prefix: str) -> str | None:
        """A key just before the first one with this prefix, to skip what is sorted before it."""
        if not prefix or prefix.endswith("/"):
            return None
        start = f"{self._location.prefix}/{prefix}" if self._location.prefix else prefix
        return start[:-1] or None

    def _info(self, key: str, meta: Any) -> ObjectInfo:
        modified = meta["last_modified"].timestamp() if meta.get("last_modified") else 0.0
        return ObjectInfo(key, meta["size"], _unquoted(meta.get("e_tag")), meta.get("version") or "", modified)

    def _reading(self, key: str, start: int, length: int | None, etag: str, chunk_bytes: int = CHUNK_BYTES) -> Reading:
        if start < 0 or (length is not None and length < 0):
            raise ValueError(f"start ({start}) and length ({length}) must not be negative")
        deadline = Deadline(self._deadline_s, length or 0)
        return Reading(self._obstore, self._attempts, key, self._path(key), start, length, etag, deadline, chunk_bytes)

    def _call(self, key: str, deadline: Deadline, action: Callable[[Any], T], operation: str) -> T:
        return self._attempts.call(key, deadline, action, REQUEST_TIMEOUT_S, operation)

    def _put_at_once(self, key: str, path: str, body: bytes, create_only: bool, deadline: Deadline) -> Any:
        mode = "create" if create_only else "overwrite"
        timeout_s = REQUEST_TIMEOUT_S + len(body) / SLOWEST_UPLOAD_BYTES_PER_S
        uncertain = False

        def put(client: Any) -> Any:
            return self._obstore.put(client, path, body, mode=mode, use_multipart=False)

        def note(failure: Failure) -> None:
            nonlocal uncertain
            uncertain = uncertain or failure.kind in (failures.TEMPORARY, failures.THROTTLED)

        try:
            return self._attempts.call(key, deadline, put, timeout_s, WRITE, note=note)
        except AlreadyExists:
            if not uncertain or not self._holds(key, body):
                raise
        info = self.head(key)
        return {"e_tag": info.etag, "version": info.version}

    def _holds(self, key: str, body: bytes) -> bool:
        """Returns whether the object has these bytes, because an earlier attempt of this call wrote it."""
        try:
            return self.head(key).size_bytes == len(body) and self.read(key) == body
        except (NotFound, ObjectChanged):
            return False

    def _upload(self, key: str, path: str, file_path: str, size: int, deadline: Deadline) -> Any:
        part = max(PART_BYTES, -(-size // _MOST_PARTS))

        def upload(client: Any) -> Any:
            return self._obstore.put(
                client,
                path,
                self._parts(key, file, part, size, deadline),
                use_multipart=True,
                chunk_size=part,
                max_concurrency=_PARTS_AT_ONCE,
            )

        timeout_s = REQUEST_TIMEOUT_S + part / SLOWEST_UPLOAD_BYTES_PER_S
        with open(file_path, "rb") as file:
            return self._attempts.call(key, deadline, upload, timeout_s, WRITE, retries=_RETRIES_OF_A_PART)

    def _parts(self, key: str, file: BinaryIO, part: int, size: int, deadline: Deadline) -> Iterator[bytes]:
        """The file's bytes. obstore stops the upload and passes on what this raises.

        Raises TimeoutError when the deadline has passed, and StoreError if the file cannot be read or became shorter.
        """
        sent = 0
        while sent < size:
            if deadline.passed():
                raise TimeoutError("the deadline of the upload has passed")
            problem = "became shorter during the upload. Upload it when nothing writes to it"
            try:
                file.seek(sent)
                chunk = file.read(min(part, size - sent))
            except OSError as error:
                chunk, problem = b"", f"cannot be read: {error.strerror or error}"
            if not chunk:
                raise StoreError(f"{self.url}/{key}: the file {file.name} {problem}", self.url, key, "LocalFile")
            sent += len(chunk)
            yield chunk

    def _check_bucket(self, deadline: Deadline) -> None:
        """Raise WrongStore if the bucket does not exist: the answer to HEAD has no error code."""
        if not self._bucket_seen and self._location.scheme != "memory":
            try:
                self._call(
                    "", deadline, lambda client: next(iter(self._obstore.list(client, chunk_size=1)), None), LIST
                )
            except WrongStore:
                raise
            except StoreError:  # the credentials may not permit lists
                pass
            self._bucket_seen = True


class _Pages:
    """The objects of a listing, page by page. A page that fails is asked for again from the last key."""

    def __init__(self, store: ObstoreStore, within: str, offset: str | None) -> None:
        self._store, self._within, self._offset = store, within, offset

    def __iter__(self) -> Iterator[ObjectInfo]:
        store = self._store
        cut = len(store._location.prefix) + 1 if store._location.prefix else 0
        pages: Any = None

        def page(client: Any) -> Any:
            nonlocal pages
            if pages is None:
                listing = store._obstore.list(client, self._within or None, offset=self._offset, chunk_size=_PAGE)
                pages = iter(listing)
            try:
                return next(pages, ())
            except Exception:
                pages = None
                raise

        while True:
            found = store._call("", Deadline(store._deadline_s), page, LIST)
            if not found:
                return
            for meta in found:
                yield store._info(meta["path"][cut:], meta)
            self._offset = found[-1]["path"]


def _content(data: bytes | str) -> bytes:
    if isinstance(data, str):
        with open(data, "rb") as file:
            return file.read()
    return bytes(data)


def _unquoted(etag: str | None) -> str:
    """The ETag without quotes: stores differ in whether they give them, even between HEAD and lists."""
    return (etag or "").strip('"')
