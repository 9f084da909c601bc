"""Decides which peers are skipped: one that failed is skipped for a while, then tried by one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FIRST_SKIP_S: Final = 5.0
LONGEST_SKIP_S: Final = 300.0
WRONG_BYTES_SKIP_S: Final = 300.0
"""A peer whose bytes do not match its own checksum is skipped this long at once: its disk or memory is broken."""


class _Record:
    __slots__ = ("skip_s", "until_s")

    def __init__(self) -> None:
        self.skip_s = 0.0
        self.until_s = 0.0


class Standing:
    """Which peers answered lately. A record ends with the first success.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: dict[str, _Record] = {}

    def usable(self, address: str) -> bool:
        """Return whether the peer may be asked. Changes nothing."""
        record = self._records.get(address)
        return record is None or self._clock() >= record.until_s

    def begin(self, address: str) -> bool:
        """Return whether a request may begin now. After a pause, only one request at a time tries the peer."""
        record = self._records.get(address)
        if record is None:
            return True
        if self._clock() < record.until_s:
            return False
        record.until_s = self._clock() + record.skip_s
        return True

    def succeeded(self, address: str) -> None:
        """Record an answer in time."""
        self._records.pop(address, None)

    def failed(self, address: str) -> None:
        """Record a failure or a slow answer. Each one doubles the pause."""
        record = self._records.setdefault(address, _Record())
        record.skip_s = min(LONGEST_SKIP_S, record.skip_s * 2 or FIRST_SKIP_S)
        record.until_s = self._clock() + record.skip_s

    def lied(self, address: str) -> None:
        """Record that the peer sent bytes other than those it announced."""
        record = self._records.setdefault(address, _Record())
        record.skip_s = max(record.skip_s, WRONG_BYTES_SKIP_S)
        record.until_s = self._clock() + record.skip_s

    def skipped(self) -> list[str]:
        """Addresses that are skipped now."""
        return [address for address in self._records if not self.usable(address)]

    def retain(self, addresses: set[str]) -> None:
        """Forget peers that no gang names any more."""
        for address in list(self._records.keys() - addresses):
            del self._records[address]
