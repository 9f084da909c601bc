"""Gives a finished file its name without ever replacing another file."""

from __future__ import annotations

import ctypes
import errno
import os

from muster.sdk.data.errors import NoCreateOnly

_NOT_SUPPORTED = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EMLINK, errno.EXDEV)
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


def rename_exclusively(temporary: str, path: str) -> None:
    """Move a file, by link(2), or by renameat2(2) with RENAME_NOREPLACE where the file system has no links.

    Raises:
        FileExistsError: there is a file at `path`.
        NoCreateOnly: the file system supports neither call.
    """
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
    else:
        os.unlink(temporary)
        return
    problem = _rename_without_replacing(temporary, path)
    if problem in _NOT_SUPPORTED:
        raise NoCreateOnly(
            f"{os.path.dirname(path)}: this file system can create files only by replacing others. Use a disk, NFS, "
            "or an object store by its own URL"
        )
    if problem:
        raise OSError(problem, os.strerror(problem))


def _rename_without_replacing(temporary: str, path: str) -> int:
    """Returns the error number, 0 for success."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):  # a C library of before 2018
        return errno.ENOSYS
    result = function(_AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(path), _RENAME_NOREPLACE)
    return ctypes.get_errno() if result else 0
