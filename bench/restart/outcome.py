"""The result of one fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bench.restart.cluster import Fault

RANKS_RUNNING = "ranks running"
"""The stage at which every rank of the gang runs again, seen from the ranks."""


@dataclass(frozen=True)
class Outcome:
    """The result of one fault of one gang.

    Attributes:
        side: muster or jobset.
        ranks: size of the gang.
        fault: what was broken.
        stages: seconds from the fault to the end of each stage.
        writes: writes to the API server by writer and object, until it was quiet again.
    """

    side: str
    ranks: int
    fault: Fault
    stages: dict[str, float]
    writes: Counter[str] = field(default_factory=Counter)
