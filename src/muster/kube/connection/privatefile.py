"""Files that only their owner may read.

They have a module of their own because most programs that write one need no certificates: importing `cryptography`
takes a tenth of the time of a short command.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, replacing one that is there."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
