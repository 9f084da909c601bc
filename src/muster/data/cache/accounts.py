"""Accounts of jobs: bytes by source. The job that asked first pays for a download."""

from __future__ import annotations

import threading
from typing import Final

import msgspec

MAX_JOBS: Final = 256
"""Jobs with figures of their own. The oldest without readers makes room for the next one."""
OTHER: Final = "other"
SOURCES: Final = ("bucket", "peer", "disk")


class Account(msgspec.Struct):
    """Figures of one job: its name, bytes that its readers received, by source, and open connections."""

    name: str = OTHER
    bucket: int = 0
    peer: int = 0
    disk: int = 0
    readers: int = 0


class Accounts:
    """The accounts of a node. Figures of jobs that were dropped are added to the job `other`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, Account] = {OTHER: Account()}

    def enter(self, job: str, name: str) -> None:
        """Count a new reader of the job; `name` is for people."""
        with self._lock:
            if job not in self._jobs:
                self._make_room()
            account = self._jobs.pop(job, None) or (Account(name) if len(self._jobs) <= MAX_JOBS else None)
            if account is not None:
                self._jobs[job] = account
                account.readers += 1

    def leave(self, job: str) -> None:
        """Count a reader that ended."""
        with self._lock:
            account = self._jobs.get(job)
            if account is not None and account.readers > 0:
                account.readers -= 1

    def charge(self, job: str, source: str, count: int) -> None:
        """Add bytes from a source to the job's account."""
        with self._lock:
            account = self._jobs.get(job) or self._jobs[OTHER]
            setattr(account, source, getattr(account, source) + count)

    def all(self) -> dict[str, Account]:
        """Copies of the accounts, by job."""
        with self._lock:
            return {job: msgspec.structs.replace(account) for job, account in self._jobs.items()}

    def _make_room(self) -> None:
        if len(self._jobs) <= MAX_JOBS:
            return
        idle = next((job for job, account in self._jobs.items() if not account.readers and job != OTHER), None)
        if idle is not None:
            gone, other = self._jobs.pop(idle), self._jobs[OTHER]
            for source in SOURCES:
                setattr(other, source, getattr(other, source) + getattr(gone, source))
