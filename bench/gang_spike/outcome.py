"""The result of one spike."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.gang_spike.shape import Shape


@dataclass(frozen=True)
class Outcome:
    """The result of one spike.

    Attributes:
        side: the scheduler.
        shape: gangs and pods.
        repetition: those of one number were measured one after the other.
        created_s: from the first create to the answer of the last.
        first_bound_s: until the watcher saw a pod bound; None if it saw none.
        all_bound_s: until it had seen all; None if the time was up before.
        bound: pods it saw bound.
        whole_gangs: gangs with every pod seen bound.
        cpu_s: CPU seconds by role (scheduler, apiserver, etcd, clients), until a little after the last bind.
        cpu_to_bound_s: of all roles together until the watcher had seen all; None if it had not in time.
        rss_peak_mb: the scheduler's; None without one.
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
