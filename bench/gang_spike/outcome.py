"""What one spike came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.gang_spike.shape import Shape


@dataclass(frozen=True)
class Outcome:
    """One spike.

    Attributes:
        side: whose scheduler.
        shape: gangs and pods.
        repetition: those of one number were measured one after the other.
        created_s: from the first create to the answer of the last.
        first_bound_s: until the watcher saw a pod bound; None where it saw none.
        all_bound_s: until it had seen all; None where time was up before.
        bound: pods it saw bound.
        whole_gangs: gangs of which it saw every pod bound.
        cpu_s: CPU seconds by role (scheduler, apiserver, etcd, clients), a little beyond the last bind included.
        cpu_to_bound_s: of all roles together until the watcher had seen all; None where it had not in time.
        rss_peak_mb: the scheduler's; None where there is none.
    """

    side: str
    shape: Shape
    repetition: int
    created_s: float
    first_bound_s: float | None
    all_bound_s: float | None
    bound: int
    whole_gangs: int
    cpu_s: dict[str, float] = field(default_factory=dict)
    rss_peak_mb: float | None = None
    cpu_to_bound_s: float | None = None

    @property
    def pods_per_s(self) -> float | None:
        """Over the whole spike."""
        return None if self.all_bound_s is None else self.shape.pods / self.all_bound_s
