"""Marks of sockets (SO_MARK): one per job, so that traffic control can tell their packets apart."""

from __future__ import annotations

import socket
from collections import OrderedDict

from muster.api.socket_marks import BASE, MAX_MARKS


class Marks:
    """Marks of jobs. A mark stays with its job until another one needs it.

    Args:
        enabled: set marks at all.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._marks: OrderedDict[str, int] = OrderedDict()
        self._users: dict[str, int] = {}

    def check(self) -> None:
        """Set a mark on a socket, to see whether it is permitted. Raises PermissionError."""
        if self.enabled:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, BASE)

    def known(self, job: str) -> int:
        """Return the mark that the job has; 0 for none."""
        return self._marks.get(job, 0)

    def of(self, job: str) -> int:
        """Return the job's mark, a new one if it has none; 0 if marks are not enabled."""
        if not self.enabled:
            return 0
        mark = self._marks.get(job)
        if mark is None:
            if len(self._marks) < MAX_MARKS:
                mark = BASE + 1 + len(self._marks)
            else:
                idle = next((other for other in self._marks if not self._users.get(other)), None)
                if idle is None:
                    return BASE
                mark = self._marks.pop(idle)
            self._marks[job] = mark
        self._marks.move_to_end(job)
        return mark

    def enter(self, job: str) -> None:
        """Count a reader of the job: its mark is not given to another."""
        self._users[job] = self._users.get(job, 0) + 1

    def leave(self, job: str) -> None:
        """Count a reader that ended."""
        self._users[job] = self._users.get(job, 1) - 1
        if self._users[job] <= 0:
            del self._users[job]

    def set(self, connection: socket.socket, job: str) -> None:
        """Mark a socket before it carries the job's bytes. Raises OSError."""
        mark = self.of(job)
        if mark:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
