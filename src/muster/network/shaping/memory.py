"""The newest limits on disk, so that an agent that restarts continues their lease and their decay."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from muster.network.uplink.wire import Rates

log = logging.getLogger(__name__)

NOTHING: Final = (None, float("-inf"))


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and when their lease ends.

    Attributes:
        boot: the boot whose monotonic clock counts.
        end_s: the end of the lease, monotonic seconds.
        rates: the limits.
    """

    boot: str
    end_s: float
    rates: Rates


class Memory:
    """The file with the newest limits.

    Args:
        path: of the file.
        boot: name of the current boot, `/proc/sys/kernel/random/boot_id`.
    """

    def __init__(self, path: Path, boot: str) -> None:
        self._path, self._boot = path, boot
        self._saved: tuple[float, Rates] | None = None

    def load(self) -> tuple[Rates | None, float]:
        """Return the limits and the end of their lease, for the link to the hub; None without usable ones."""
        try:
            lease = msgspec.msgpack.decode(self._path.read_bytes(), type=Lease)
        except FileNotFoundError:
            return NOTHING
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("uplink: cannot read the last limits, so the static share applies: %s", error)
            return NOTHING
        return (lease.rates, lease.end_s) if lease.boot == self._boot else NOTHING

    def save(self, end_s: float, rates: Rates) -> None:
        """Write the limits, if they differ from the written ones. An error is logged: the limits hold without."""
        if self._saved is not None and self._saved[0] == end_s and self._saved[1] is rates:
            return
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.msgpack.encode(Lease(boot=self._boot, end_s=end_s, rates=rates)))
            os.replace(fresh, self._path)
            self._saved = end_s, rates
        except OSError as error:
            log.warning("uplink: cannot save the limits for a restart of the agent: %s", error)
