"""Files of the cache's folder: a block's bytes, then a footer with its name and checksum. Blocking calls only.

A file is written under a temporary name and renamed when it is complete. It is not flushed to the disk: after a power
loss the checksum detects what is missing. All files are verified before their first use in a process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

_MAGIC: Final = b"MUSTERC1"
_TAIL: Final = struct.Struct(">32sI8s")
"""The end of a file: SHA-256 of the footer, its length, and the magic."""
_CHUNK_BYTES: Final = 1 << 20
_MAX_FOOTER_BYTES: Final = 64 << 10


class Corrupt(Exception):
    """A file's bytes do not match its checksum or its name."""


class FolderInUse(Exception):
    """Another daemon uses this folder."""


class Footer(msgspec.Struct, frozen=True):
    """Description of a file's bytes.

    Attributes:
        name: the file's name.
        length: number of bytes before the footer.
        sha256: their checksum, in hex.
        owner: the job that brought them here.
        about: JSON with the rest, such as the store and key. Only people and `muster data ls` use it.
    """

    name: str
    length: int
    sha256: str
    owner: str
    about: dict[str, str | int]


class Stamp(NamedTuple):
    """Attributes of a file that change with every write to it."""

    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


class Opened(NamedTuple):
    """A verified file: its read-only descriptor, which the holder closes, its footer, and its stamp."""

    descriptor: int
    footer: Footer
    stamp: Stamp


class Folder:
    """The folder of a cache.

    Args:
        root: created if missing, with mode 0700.
        read_root: the same folder through a read-only mount. Readers then cannot reopen their descriptors for
            writing, not even as root. None: readers with root's capabilities could; their writes are detected.
    """

    def __init__(self, root: Path, read_root: Path | None = None) -> None:
        self.root = root
        self._read_root = read_root or root
        self._lock: int | None = None

    def claim(self) -> None:
        """Take the folder for this process and remove partial files. Raises FolderInUse, OSError."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Read-only, so that the kernel can make the file system read-only when its disk fails.
        lock = os.open(self.root / "lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise FolderInUse(f"another daemon uses the folder {self.root}; stop it, or use another folder") from None
        self._lock = lock
        for area in (*AREAS, _PARTIAL):
            (self.root / area).mkdir(mode=0o700, exist_ok=True)
        for left in os.scandir(self.root / _PARTIAL):
            os.unlink(left.path)

    def restore(self) -> bool:
        """Make and claim again what was removed. Return whether files may be gone. Raises FolderInUse, OSError."""
        if self._is_claimed():
            missing = [self.root / area for area in (*AREAS, _PARTIAL) if not (self.root / area).is_dir()]
            for folder in missing:
                folder.mkdir(mode=0o700, exist_ok=True)
            return bool(missing)
        self.release()
        self.claim()
        return True

    def _is_claimed(self) -> bool:
        """Return whether the lock of this process is that of the folder."""
        if self._lock is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._lock), os.stat(self.root / "lock"))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let another process claim the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def names(self, area: str) -> Iterator[tuple[str, int, int]]:
        """Yield name, size in bytes and modification time in ns of the area's files."""
        for shelf in os.scandir(self.root / area):
            if shelf.is_dir(follow_symlinks=False):
                for file in os.scandir(shelf.path):
                    found = file.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield file.name, found.st_size, found.st_mtime_ns

    def path(self, area: str, name: str) -> Path:
        """Path of a file, through the read-only mount if there is one."""
        return self._read_root / area / name[:2] / name

    def open(self, area: str, name: str, known: tuple[Footer, Stamp] | None) -> Opened:
        """Open a file read-only. Reads and checks all of it, unless it is the file that was checked before.

        Raises Corrupt, FileNotFoundError and other OSErrors.
        """
        descriptor = os.open(self.path(area, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            stamp = _stamp(descriptor)
            if known is not None and known[1] == stamp:
                return Opened(descriptor, known[0], stamp)
            return Opened(descriptor, _verify(descriptor, name, stamp), stamp)
        except BaseException:
            os.close(descriptor)
            raise

    def footers(self, area: str, names: Sequence[str]) -> dict[str, Footer]:
        """Read the footers of files without checking their bytes. Broken and missing files are left out."""
        found = {}
        for name in names:
            with contextlib.suppress(Corrupt, FileNotFoundError):
                descriptor = os.open(self.path(area, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    found[name] = _footer(descriptor, os.fstat(descriptor).st_size)
                finally:
                    os.close(descriptor)
        return found

    def begin(self, name: str) -> Partial:
        """Create a temporary file. Raises OSError."""
        path = self.root / _PARTIAL / f"{name}.{os.urandom(6).hex()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o400)
        return Partial(descriptor, path)

    def commit(self, partial: Partial, area: str, footer: Footer) -> Stamp:
        """Append the footer and give the file its name. Raises OSError; the caller then discards the file."""
        text = msgspec.json.encode(footer)
        tail = text + _TAIL.pack(hashlib.sha256(text).digest(), len(text), _MAGIC)
        return partial.commit(tail, self.root / area / footer.name[:2] / footer.name)

    def remove(self, area: str, name: str) -> None:
        """Remove a file; a missing one is not an error. Raises OSError."""
        (self.root / area / name[:2] / name).unlink(missing_ok=True)

    def try_out(self, count: int) -> None:
        """Write, flush and read a temporary file of `count` bytes. Raises OSError."""
        partial = self.begin("trial")
        try:
            write_all(partial.descriptor, os.urandom(count))
            os.fsync(partial.descriptor)
            os.posix_fadvise(partial.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(partial.descriptor, count, 0)
        finally:
            partial.discard()

    def free_bytes(self) -> tuple[int, int]:
        """Free bytes of the file system for users that are not root, as the kubelet counts, and its size."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def free_inodes(self) -> tuple[int, int]:
        """Free inodes of the file system, and all; (0, 0) if it does not count them."""
        found = os.statvfs(self.root)
        return found.f_favail, found.f_files


class Partial:
    """A file that is being written. Its owner commits or discards it; both may block on the disk.

    Args:
        descriptor: open for reading and writing; the object closes it.
        path: the temporary name.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self._path = path
        self._lock = threading.Lock()
        self._ended = False

    def commit(self, tail: bytes, target: Path) -> Stamp:
        """Append the tail and rename the file. Raises OSError."""
        with self._lock:
            if self._ended:
                raise OSError(errno.ECANCELED, "the file was discarded")
            write_all(self.descriptor, tail)
            target.parent.mkdir(mode=0o700, exist_ok=True)
            os.rename(self._path, target)
            stamp = _stamp(self.descriptor)
            os.close(self.descriptor)
            self._ended = True
            return stamp

    def discard(self) -> None:
        """Close and remove the file, unless it was committed. Raises OSError."""
        with self._lock:
            if not self._ended:
                self._ended = True
                os.close(self.descriptor)
                self._path.unlink(missing_ok=True)


AREAS: Final = ("blocks", "shards")
_PARTIAL: Final = "partial"


def footer_bytes(footer: Footer) -> int:
    """Number of bytes that the footer adds to a file."""
    return len(msgspec.json.encode(footer)) + _TAIL.size


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all bytes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _stamp(descriptor: int) -> Stamp:
    found = os.fstat(descriptor)
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _verify(descriptor: int, name: str, stamp: Stamp) -> Footer:
    footer = _footer(descriptor, stamp.size_bytes)
    if footer.name != name:
        raise Corrupt(f"the file {name} has the footer of {footer.name}")
    digest = hashlib.sha256()
    offset = 0
    while offset < footer.length:
        data = os.pread(descriptor, min(_CHUNK_BYTES, footer.length - offset), offset)
        if not data:
            raise Corrupt(f"the file {name} is shorter than its footer says")
        digest.update(data)
        offset += len(data)
    if digest.hexdigest() != footer.sha256:
        raise Corrupt(f"the bytes of {name} do not match their checksum")
    return footer


def _footer(descriptor: int, size_bytes: int) -> Footer:
    tail = os.pread(descriptor, _TAIL.size, max(0, size_bytes - _TAIL.size))
    if len(tail) < _TAIL.size:
        raise Corrupt("the file is too short")
    digest, length, magic = _TAIL.unpack(tail)
    start = size_bytes - _TAIL.size - length
    if magic != _MAGIC or length > _MAX_FOOTER_BYTES or start < 0:
        raise Corrupt("the file has no footer")
    text = os.pread(descriptor, length, start)
    if hashlib.sha256(text).digest() != digest:
        raise Corrupt("the footer does not match its checksum")
    try:
        footer = msgspec.json.decode(text, type=Footer)
    except msgspec.DecodeError:
        raise Corrupt("the footer is not one of this version") from None
    if footer.length != start:
        raise Corrupt("the file is longer or shorter than its footer says")
    return footer
