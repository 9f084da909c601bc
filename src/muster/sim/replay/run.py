"""The state of one job: its work done and lost, and the nodes of its members. Times are virtual seconds."""

from __future__ import annotations

from muster.sim.replay.job import Job


class Run:
    """The state of one job in a replay.

    Attributes:
        key: the key of the job's gang in the scheduler.
        pods: the UID of the pod of each slot.
        nodes: the node of each bound pod, by UID.
        attempt: increases by one for each lost member. A pod has the attempt for which it was created.
        started_s: when the job first had all its nodes; None while it waits.
        since_s: when the present period of work began or will begin, because work starts with a delay after an
            interruption. None while a member is missing.
        ended_s: when the job had done its work; None before.
        done_s: the work that was done and saved when this period began.
        forecast: the first interval in which the scheduler expected the start; None if there was no forecast. Its end
            is None if the start may be later than can be known.
        queued: the job is in the queue: it has not started, or it was preempted.
        asked: how often the job was asked to leave nodes on which it was backfilled.
        lost_asked_s: the work that a job without checkpoints lost when it was asked to leave.
        unsaved_s: the work since the last regular checkpoint at the times of preemption, which the job then saved.
        interruptions: how often the job's work stopped.
        held_up: the number of GPUs that are allocated to the job while it does not work.
        redone_s: the work that was lost since the last checkpoint, summed over all interruptions.
    """

    __slots__ = (
        "asked", "attempt", "done_s", "ended_s", "forecast", "held_up", "interruptions", "job", "key", "lost_asked_s",
        "nodes", "pods", "queued", "redone_s", "since_s", "started_s", "unsaved_s",
    )  # fmt: skip

    def __init__(self, job: Job) -> None:
        self.job = job
        self.key = ""
        self.pods: list[str] = []
        self.nodes: dict[str, str] = {}
        self.attempt = 0
        self.started_s: float | None = None
        self.since_s: float | None = None
        self.forecast: tuple[float, float | None] | None = None
        self.done_s = 0.0
        self.asked = 0
        self.queued = False
        self.unsaved_s = 0.0
        self.lost_asked_s = 0.0
        self.interruptions = 0
        self.redone_s = 0.0
        self.held_up = 0
        self.ended_s: float | None = None

    @property
    def whole(self) -> bool:
        """Returns whether all members are bound."""
        return len(self.nodes) == self.job.members

    @property
    def ended(self) -> bool:
        """Returns whether the job has done its work."""
        return self.ended_s is not None

    def work_s(self, now: float) -> float:
        """Return the work done and not lost."""
        if self.ended:
            return self.job.run_s
        return self.done_s + (max(0.0, now - self.since_s) if self.since_s is not None else 0.0)

    def since_checkpoint_s(self, now: float, checkpoint_s: float) -> float:
        """Return the work that is newer than the last regular checkpoint and than the start of this period."""
        done_s = self.work_s(now)
        return min(done_s - self.done_s, done_s % checkpoint_s) if checkpoint_s else 0.0

    def go(self, now: float, delay_s: float) -> float:
        """Begin to work, because all members are bound.

        `delay_s`: delay after an interruption. Returns the end time.
        """
        if self.started_s is None:
            self.started_s = self.since_s = now
        else:
            self.since_s = now + delay_s
        return self.since_s + self.job.run_s - self.done_s

    def lose_all(self, now: float) -> None:
        """Lose all work, because the job was asked to leave and has no checkpoint."""
        lost_s = self.work_s(now)
        self.lost_asked_s += lost_s
        self.redone_s += lost_s
        self.done_s, self.since_s = 0.0, now if self.since_s is not None else None

    def interrupt(self, now: float, checkpoint_s: float) -> None:
        """Stop working because a member was lost. The work since the last checkpoint is lost (0: no work is lost)."""
        self.attempt += 1
        if self.since_s is None:
            return  # the job had not continued since the last interruption
        self.interruptions += 1
        lost_s = self.since_checkpoint_s(now, checkpoint_s)
        self.redone_s += lost_s
        self.done_s, self.since_s = self.work_s(now) - lost_s, None
