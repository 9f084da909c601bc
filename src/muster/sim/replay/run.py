"""The state of one job: its work done and lost, and the nodes of its members. Times are virtual seconds."""

from __future__ import annotations

from muster.sim.replay.job import Job


class Run:
    """Changed by the replay only.

    Attributes:
        key: of its gang, in the scheduler.
        pods: slot -> UID of the pod that is to run there; `nodes`: UID -> node of those that are bound.
        attempt: one more for each member lost; pods carry the attempt at which they were made.
        started_s: when it first had all its nodes; None while it waits.
        since_s: when the present stretch of work began, or will: after an interruption, work starts with a delay.
            None while a member is missing.
        done_s: work that was done and safe when that stretch began.
        forecast: between when and when it would start, as the scheduler first said; None where it never did.
        interruptions: how often its work stopped.
        held_up: its GPUs, while they are held but not worked on.
        redone_s: work lost since the last checkpoint, over all interruptions.
    """

    __slots__ = (
        "attempt", "done_s", "ended", "forecast", "held_up", "interruptions", "job", "key", "nodes", "pods",
        "redone_s", "since_s", "started_s",
    )  # fmt: skip

    def __init__(self, job: Job) -> None:
        self.job = job
        self.key = ""
        self.pods: list[str] = []
        self.nodes: dict[str, str] = {}
        self.attempt = 0
        self.started_s: float | None = None
        self.since_s: float | None = None
        self.forecast: tuple[float, float] | None = None
        self.done_s = 0.0
        self.interruptions = 0
        self.redone_s = 0.0
        self.held_up = 0
        self.ended = False

    @property
    def whole(self) -> bool:
        """Returns whether all members are bound."""
        return len(self.nodes) == self.job.members

    def work_s(self, now: float) -> float:
        """Return the work done and not lost."""
        if self.ended:
            return self.job.run_s
        return self.done_s + (max(0.0, now - self.since_s) if self.since_s is not None else 0.0)

    def go(self, now: float, delay_s: float) -> float:
        """All members are bound; `delay_s` is what going on after an interruption takes. Returns when it will end."""
        if self.started_s is None:
            self.started_s = self.since_s = now
        else:
            self.since_s = now + delay_s
        return self.since_s + self.job.run_s - self.done_s

    def interrupt(self, now: float, checkpoint_s: float) -> None:
        """A member was lost: what was done since the last checkpoint is to be done again (0: nothing is)."""
        self.attempt += 1
        if self.since_s is None:
            return  # it had not gone on since the last one
        self.interruptions += 1
        done_s = self.work_s(now)
        safe_s = max(self.done_s, done_s - done_s % checkpoint_s) if checkpoint_s else done_s
        self.redone_s += done_s - safe_s
        self.done_s, self.since_s = safe_s, None
