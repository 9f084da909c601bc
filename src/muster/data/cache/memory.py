"""Blocks in memory, for readers of a node whose disk is not used. Their bytes are bounded."""

from __future__ import annotations

import fcntl
import os
from typing import Final

_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class MemoryFull(Exception):
    """The files in memory take all the memory that they may take."""


class MemoryBudget:
    """Memory for blocks.

    Args:
        limit_bytes: of all files that are in use.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def create(self, count: int) -> MemoryFile:
        """Create an empty file for `count` bytes. Raises MemoryFull, OSError."""
        if self.used_bytes + count > self.limit_bytes:
            raise MemoryFull(f"blocks in memory already take {self.used_bytes} bytes")
        return MemoryFile(self, count)


class MemoryFile:
    """A file in memory. It counts against the budget until each user has called `release`."""

    def __init__(self, budget: MemoryBudget, count: int) -> None:
        self.descriptor = os.memfd_create("muster-block", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._budget = budget
        self._count = count
        self._users = 1
        budget.used_bytes += count

    def seal(self) -> None:
        """Seal the file: no process can change it. Raises OSError."""
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)

    def share(self) -> int:
        """Open the file again for one more user, read-only and with an offset of its own. Raises OSError."""
        descriptor = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        self._users += 1
        return descriptor

    def release(self) -> None:
        """End one use."""
        self._users -= 1
        if not self._users:
            os.close(self.descriptor)
            self._budget.used_bytes -= self._count
