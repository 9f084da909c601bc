"""Checks whether this node can write to the job's checkpoint folder."""

from __future__ import annotations

import errno
import os
import tempfile
from typing import Any

REFUSED = frozenset(
    {
        errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ELOOP,
        errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT,
    }
)  # fmt: skip
"""Errors that a later write would meet too. Others, such as EIO and ESTALE, may pass, so they count as no answer."""


def refusal(folder: str) -> dict[str, Any] | None:
    """Creates the folder and writes a byte into it. Returns why that failed; None if it worked or without an answer.

    The file has no name where the file system supports that (open(2), O_TMPFILE); elsewhere it is removed at once.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, prefix=".muster-", buffering=0) as file:
            file.write(b"\0")
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None)
        return {"path": folder, "errno": number, "uid": os.geteuid()} if number in REFUSED else None
    return None
