"""Objects as files below a folder. Own code, because obstore's local store has no conditional writes."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import uuid
from typing import BinaryIO, Iterator, NoReturn

from muster.sdk.data.errors import AlreadyExists, Forbidden, NotFound, ObjectChanged, StoreError
from muster.sdk.data.exclusive import rename_exclusively
from muster.sdk.data.location import check_key
from muster.sdk.data.store import ChunkedStore, ObjectInfo

TEMPORARY_PREFIX = ".muster-writing-"
_CHUNK_BYTES = 1 << 20
_ATTEMPTS = 100


class FileStore(ChunkedStore):
    """A folder. Keys are relative paths; an ETag is made from the inode, the time of change and the size.

    A write goes to a temporary file, which is flushed to disk and then gets the key's name. So readers see all of an
    object or nothing, also after a power loss. Temporary files of a process that was killed stay, and are not listed.

    Args:
        folder: absolute path. It is created by the first write.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.url = f"file://{folder}"

    def __repr__(self) -> str:
        return f"FileStore({self._folder!r})"

    def head(self, key: str, deadline_s: float | None = None) -> ObjectInfo:
        """Return the object's size and version. Raises NotFound, Forbidden."""
        with self._open(key) as file:
            return _info(key, os.fstat(file.fileno()))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with the prefix, sorted by key, with the names of one folder in memory."""
        folder, _, _ = prefix.rpartition("/")
        if folder:
            check_key(folder, self.url)
        yield from self._walk(folder, prefix, ())

    def put(self, key: str, data: bytes | str, create_only: bool = False) -> ObjectInfo:
        """Write bytes, or a copy of the local file at a path (str).

        Raises:
            AlreadyExists: `create_only`, and the object exists.
            NoCreateOnly: `create_only`, and the file system can neither link nor rename without replacing.
            Forbidden: the folder or the file system is read-only for this user.
            StoreError: no space is left, or the disk failed.
        """
        path = self._path(key)
        with open(data, "rb", buffering=0) if isinstance(data, str) else io.BytesIO(data) as source:
            try:
                return self._put(key, path, source, create_only)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.EISDIR):
                    raise self._not_a_folder(key) from None
                self._fail(key, error)

    def delete(self, key: str) -> None:
        """Delete the object, and folders that it leaves empty. A missing object is not an error."""
        path = self._path(key)
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._fail(key, error)
        folder = os.path.dirname(path)
        with contextlib.suppress(OSError):
            _flush_folder(folder)
            while folder.startswith(self._folder + os.sep):
                os.rmdir(folder)
                folder = os.path.dirname(folder)

    def close(self) -> None:
        """Nothing to release."""

    def _path(self, key: str) -> str:
        if any(part.startswith(TEMPORARY_PREFIX) for part in check_key(key, self.url).split("/")):
            raise StoreError(f"{self.url}/{key}: names that begin with {TEMPORARY_PREFIX} are reserved", self.url, key)
        return os.path.join(self._folder, *key.split("/"))

    def _open(self, key: str) -> BinaryIO:
        path = self._path(key)
        try:
            return open(path, "rb", buffering=0)
        except OSError as error:
            self._fail(key, error)

    def chunks(self, key: str, start: int, length: int | None, etag: str) -> Iterator[bytes]:
        """Yield the bytes of a range in order. Errors as for `read`."""
        if start < 0 or (length is not None and length < 0):
            raise ValueError(f"start ({start}) and length ({length}) must not be negative")
        with self._open(key) as file:
            found = _info(key, os.fstat(file.fileno()))
            if etag and found.etag != etag.strip('"'):
                raise self._changed(key)
            end = found.size_bytes if length is None else min(start + length, found.size_bytes)
            position = start
            while position < end:
                try:
                    chunk = os.pread(file.fileno(), min(_CHUNK_BYTES, end - position), position)
                except OSError as error:
                    self._fail(key, error)
                if not chunk or _info(key, os.fstat(file.fileno())).etag != found.etag:
                    raise self._changed(key)
                position += len(chunk)
                yield chunk

    def _put(self, key: str, path: str, source: BinaryIO, create_only: bool) -> ObjectInfo:
        if create_only and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "exists")
        folder = os.path.dirname(path)
        for attempt in range(_ATTEMPTS):
            temporary = os.path.join(folder, f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
            try:
                _make_folders(folder)
                if attempt:
                    source.seek(0)
                with open(temporary, "xb", buffering=0) as file:
                    return self._fill(key, file, temporary, path, source, create_only)
            except FileNotFoundError:
                if attempt + 1 == _ATTEMPTS:
                    raise  # otherwise a concurrent `delete` has removed the empty folder
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
        raise AssertionError("not reached")

    def _fill(
        self, key: str, file: BinaryIO, temporary: str, path: str, source: BinaryIO, create_only: bool
    ) -> ObjectInfo:
        """Write the temporary file, flush it to disk, and give it its name."""
        shutil.copyfileobj(source, file, _CHUNK_BYTES)
        os.fsync(file.fileno())
        if create_only:
            rename_exclusively(temporary, path)
        else:
            os.replace(temporary, path)
        with contextlib.suppress(FileNotFoundError):  # a concurrent `delete` has removed all of it
            _flush_folder(os.path.dirname(path))
        return _info(key, os.fstat(file.fileno()))

    def _walk(self, folder: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[ObjectInfo]:
        """Yield below a folder in the order of keys: a folder sorts as its name with "/"."""
        path = os.path.join(self._folder, folder) if folder else self._folder
        try:
            status = os.stat(path)
            with os.scandir(path) as entries:
                names = sorted(entry.name + "/" if entry.is_dir() else entry.name for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._fail(folder, error)
        if (status.st_dev, status.st_ino) in above:
            return  # a link to a folder above
        for name in names:
            key = f"{folder}/{name}" if folder else name
            if name.startswith(TEMPORARY_PREFIX):
                continue
            if name.endswith("/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._walk(key[:-1], prefix, (*above, (status.st_dev, status.st_ino)))
            elif key.startswith(prefix):
                with contextlib.suppress(NotFound):  # deleted in the meantime
                    yield self._stat(key)

    def _stat(self, key: str) -> ObjectInfo:
        try:
            return _info(key, os.stat(self._path(key)))
        except OSError as error:
            self._fail(key, error)

    def _changed(self, key: str) -> ObjectChanged:
        return ObjectChanged(
            f"{self.url}/{key}: the object is not the one that was read before. Read it again from the start",
            self.url,
            key,
        )

    def _not_a_folder(self, key: str) -> StoreError:
        name = f"{self.url}/{key}"
        return StoreError(
            f"{name}: a file is where a folder is needed, or a folder is there. Use another key", self.url, key
        )

    def _fail(self, key: str, error: OSError) -> NoReturn:
        """Raise the typed error for an operating system error."""
        name, reason = f"{self.url}/{key}" if key else self.url, error.strerror or type(error).__name__
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
            raise NotFound(f"{name}: the object does not exist", self.url, key) from None
        if error.errno == errno.EEXIST:
            raise AlreadyExists(f"{name}: the object exists already, and the write was create-only", self.url, key)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise Forbidden(
                f"{name}: access is denied ({reason}). Permit it for user {os.geteuid()}, or mount the folder writable",
                self.url,
                key,
            )
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(f"{name}: {reason}. Free space in {self._folder}, or use another folder", self.url, key)
        raise StoreError(f"{name}: {reason}. Check the disk or the mount of {self._folder}", self.url, key)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return ObjectInfo(key, status.st_size, etag, "", status.st_mtime)


def _make_folders(folder: str) -> None:
    """Create a folder and those above, and flush each new name to disk."""
    if not os.path.isdir(folder):
        above = os.path.dirname(folder)
        _make_folders(above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        _flush_folder(above)


def _flush_folder(folder: str) -> None:
    """Flush the names in a folder to disk, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
