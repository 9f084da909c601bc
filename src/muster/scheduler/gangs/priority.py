"""Traits of gangs: preemption order and end, read from their pods and the owning job."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import msgspec

from muster.api.fixed_spec import effective
from muster.api.names import (
    ANNOTATION_PRIORITY,
    ANNOTATION_RESTARTABLE,
    ANNOTATION_SCALE_UP,
    ANNOTATION_SUBMITTER,
    APPROVED,
    LABEL_BALLOON,
    LABEL_BORROWED,
    LABEL_TEAM,
    LABEL_USER,
    MIRROR,
)
from muster.api.training_job import TrainingJob
from muster.kube.objects.pod import Pod

DEFAULT_GRACE_S = 30.0
"""Default of terminationGracePeriodSeconds (API server defaulting)."""
ENDED_PHASES = frozenset({"Succeeded", "Failed", "Suspended"})


class Rank(IntEnum):
    """Order of preemption among gangs of lower priority than the preempting one."""

    BALLOON = 0
    BORROWED = 1
    OTHER = 2


class Traits(msgspec.Struct, frozen=True):
    """Scheduling traits of a gang, from its pods.

    Attributes:
        rank: preemption order.
        preempts: it may preempt others; false with preemptionPolicy Never.
        limit_s: activeDeadlineSeconds; None if a member has none.
        grace_s: terminationGracePeriodSeconds, the longest of all members.
        queue_priority: order in the queue among gangs of the same priority (spec.priority of a TrainingJob); it
            preempts nothing.
        pinned: a member belongs to its node, as DaemonSet pods and static pods do, so the gang is never preempted.
        team: the team; "" if its pods name none, or different ones.
        restartable: its pods declare that the gang loses little when it is evicted.
    """

    rank: Rank = Rank.OTHER
    preempts: bool = True
    limit_s: float | None = None
    grace_s: float = DEFAULT_GRACE_S
    queue_priority: int = 0
    pinned: bool = False
    team: str = ""
    restartable: bool = False

    def with_member(self, other: Traits) -> Traits:
        """Return the traits of the gang with one more member.

        The rank that is preempted later and the longer grace win.
        """
        if other is self or other == self:
            return self
        limits = (self.limit_s, other.limit_s)
        return _traits(
            max(self.rank, other.rank),
            self.preempts and other.preempts,
            None if None in limits else max(limit for limit in limits if limit is not None),
            max(self.grace_s, other.grace_s),
            max(self.queue_priority, other.queue_priority),
            self.pinned or other.pinned,
            self.team if self.team == other.team else "",
            self.restartable and other.restartable,
        )


@lru_cache(maxsize=1024)
def _traits(
    rank: Rank,
    preempts: bool,
    limit_s: float | None,
    grace_s: float,
    queue_priority: int,
    pinned: bool,
    team: str,
    restartable: bool,
) -> Traits:
    """Return one shared object for equal traits."""
    return Traits(rank, preempts, limit_s, grace_s, queue_priority, pinned, team, restartable)


def traits_of(pod: Pod, team_key: str = LABEL_TEAM) -> Traits:
    """Return the traits of a pod; its label `team_key` names its team."""
    labels, spec = pod.metadata.labels, pod.spec
    rank = Rank.OTHER
    if labels.get(LABEL_BALLOON) == "true":
        rank = Rank.BALLOON
    elif labels.get(LABEL_BORROWED) == "true":
        rank = Rank.BORROWED
    limit_s, grace_s = spec.active_deadline_seconds, spec.termination_grace_period_seconds
    return _traits(
        rank,
        spec.preemption_policy != "Never",
        float(limit_s) if limit_s is not None else None,
        float(grace_s) if grace_s is not None else DEFAULT_GRACE_S,
        _integer(pod.metadata.annotations.get(ANNOTATION_PRIORITY, "")),
        MIRROR in pod.metadata.annotations
        or any(owner.controller and owner.kind == "DaemonSet" for owner in pod.metadata.owner_references),
        labels.get(team_key, ""),
        pod.metadata.annotations.get(ANNOTATION_RESTARTABLE) == "true",
    )


def _integer(text: str) -> int:
    """Parse an integer; invalid text counts as 0, because only our controller writes it."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 10 else 0


class JobFacts(msgspec.Struct, frozen=True):
    """Facts that only a TrainingJob has, not its pods. Times are in seconds since the epoch, 0 for none.

    Attributes:
        ended: the phase in which it needs no nodes, "" while it may need them.
        limit_s: timeLimitSeconds, counted from `started_at`; None without a limit.
        grace_s: stopGraceSeconds.
        started_at: when its ranks first ran.
        saved_at: when its last checkpoint was complete.
        requeue: without a spare node it gives up its slots (noSpare: Requeue).
        fewest: without a spare node it continues while this many slots remain (noSpare: Shrink); otherwise 0.
        attempt: the number of an attempt that continues without slots; else 0.
        left_out: slots that the running attempt continues without.
        since: when it began to wait for nodes, which determines its place in the queue.
        scale_up: autoscalers may add nodes for it.
        restartable: it may be stopped and started again at little cost: it declares that, or has saved a checkpoint.
        requeueable: its spec does not forbid to stop it and start it again.
        asked: how often it was asked to leave nodes on which it was backfilled.
        ran_s: for how many seconds it ran in attempts before the present one.
        user: the user who runs it, from its label; "" without one.
        image: the image of its ranks.
        said: the reason in its condition Admitted why it has no nodes; "" without one.
        submitter: the user who created it (annotation muster.dev/submitter); "" if unknown.
    """

    ended: str = ""
    limit_s: float | None = None
    grace_s: float = DEFAULT_GRACE_S
    started_at: float = 0.0
    saved_at: float = 0.0
    requeue: bool = False
    fewest: int = 0
    attempt: int = 0
    left_out: tuple[int, ...] = ()
    since: float = 0.0
    scale_up: bool = False
    restartable: bool = False
    requeueable: bool = False
    asked: int = 0
    ran_s: float = 0.0
    user: str = ""
    image: str = ""
    said: str = ""
    submitter: str = ""


def job_facts(job: TrainingJob) -> JobFacts:
    """Return the facts of a TrainingJob."""
    spec, status = effective(job).job.spec, job.status
    saved = status.last_checkpoint.time if status.last_checkpoint is not None else None
    resumed = next(
        (each.last_transition_time for each in status.conditions if each.type == "Suspended" and each.status != "True"),
        None,
    )
    created = job.metadata.creation_timestamp
    # the controller's clock may lag behind the API server's; a resumed job must not get an earlier place for that
    since = max(created, resumed) if created is not None and resumed is not None else created or resumed
    return JobFacts(
        ended=status.phase if status.phase in ENDED_PHASES else "",
        limit_s=float(spec.time_limit_seconds) if spec.time_limit_seconds is not None else None,
        grace_s=float(spec.stop_grace_seconds),
        started_at=status.start_time.timestamp() if status.start_time is not None else 0.0,
        saved_at=saved.timestamp() if saved is not None else 0.0,
        requeue=spec.no_spare == "Requeue",
        fewest=(spec.min_replicas or 0) if spec.no_spare == "Shrink" else 0,
        attempt=status.attempt if status.left_out else 0,
        left_out=status.left_out,
        since=since.timestamp() if since is not None else 0.0,
        scale_up=job.metadata.annotations.get(ANNOTATION_SCALE_UP) == APPROVED,
        restartable=spec.restartable if spec.restartable is not None else saved is not None,
        requeueable=spec.restartable is not False,
        asked=status.backfill.asked if status.backfill is not None else 0,
        ran_s=status.run_seconds,
        user=job.metadata.labels.get(LABEL_USER, ""),
        image=spec.image,
        said=next((each.reason for each in status.conditions if each.type == "Admitted" and each.status != "True"), ""),
        submitter=job.metadata.annotations.get(ANNOTATION_SUBMITTER, ""),
    )
