"""The node's clock: seconds since it booted, including sleep, and the ID of the boot (random(4), clock_gettime(2)).

The time of day can jump, and a cooldown measured with it could end early. Seconds since the boot cannot jump, and every
process of the node reads the same ones. After another boot, earlier readings have no meaning.
"""

from __future__ import annotations

import time
from pathlib import Path


class BootClock:
    """The clock of this node.

    Args:
        proc: root of the proc file system. Raises OSError if it has no boot ID.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.boot_id = (proc / "sys/kernel/random/boot_id").read_text().strip()

    def now_s(self) -> float:
        """Seconds since the boot."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
