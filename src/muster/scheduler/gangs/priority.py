"""What decides which gangs leave for others, and when one ends: read from pods, and from the job that owns them."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import msgspec

from muster.api.fixed_spec import effective
from muster.api.names import (
    ANNOTATION_PRIORITY,
    ANNOTATION_SCALE_UP,
    APPROVED,
    LABEL_BALLOON,
    LABEL_BORROWED,
    LABEL_TEAM,
)
from muster.api.training_job import TrainingJob
from muster.kube.pod import Pod

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the API server's picture of a static pod: deleting it ends nothing (Kubernetes: static pods)."""
DEFAULT_GRACE_S = 30.0
"""terminationGracePeriodSeconds where a pod says nothing (API server defaulting)."""
ENDED_PHASES = frozenset({"Succeeded", "Failed", "Suspended"})


class Rank(IntEnum):
    """Who leaves first, among gangs of lower priority than the one that needs room."""

    BALLOON = 0
    BORROWED = 1
    OTHER = 2


class Traits(msgspec.Struct, frozen=True):
    """What a gang's pods say.

    Attributes:
        rank: when it leaves for a gang of higher priority.
        preempts: others may have to leave for it; false with preemptionPolicy Never.
        limit_s: activeDeadlineSeconds; None where a member has none.
        grace_s: terminationGracePeriodSeconds, the longest of all members.
        queue_priority: place in the queue among gangs of the same priority (spec.priority of a TrainingJob); nobody
            leaves for it.
        pinned: a member belongs to its node, as pods of DaemonSets and static pods do: it never leaves for others.
        team: whose it is; "" where its pods say nothing, or not the same.
    """

    rank: Rank = Rank.OTHER
    preempts: bool = True
    limit_s: float | None = None
    grace_s: float = DEFAULT_GRACE_S
    queue_priority: int = 0
    pinned: bool = False
    team: str = ""

    def with_member(self, other: Traits) -> Traits:
        """Return what holds for a gang of these and one more member: the more protected, the more patient."""
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
        )


@lru_cache(maxsize=1024)
def _traits(
    rank: Rank, preempts: bool, limit_s: float | None, grace_s: float, queue_priority: int, pinned: bool, team: str
) -> Traits:
    """One object for all pods that are alike."""
    return Traits(rank, preempts, limit_s, grace_s, queue_priority, pinned, team)


def traits_of(pod: Pod, team_key: str = LABEL_TEAM) -> Traits:
    """Read a pod; its label `team_key` names its team."""
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
    )


def _integer(text: str) -> int:
    """What is no number is none: only our own controller writes it."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 10 else 0


class JobFacts(msgspec.Struct, frozen=True):
    """What a TrainingJob says that its pods do not; times in seconds since the epoch, 0 where there is none.

    Attributes:
        ended: the phase in which it needs no nodes, "" where it may need them.
        limit_s: timeLimitSeconds, counted from `started_at`; None where it has none.
        grace_s: stopGraceSeconds.
        started_at: when its ranks first ran.
        saved_at: when its last checkpoint was complete.
        requeue: without a spare node it gives up its slots (noSpare: Requeue).
        fewest: without a spare node it goes on while so many slots are left (noSpare: Shrink); 0 where it does not.
        attempt: the number of an attempt that goes on without slots; else 0.
        left_out: slots that the attempt which runs goes on without.
        since: when it began to wait for nodes, from which it has its place in the queue.
        scale_up: autoscalers may add nodes for it.
        said: the reason why it has no nodes, as its condition Admitted has it; "" where that says nothing.
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
    said: str = ""


def job_facts(job: TrainingJob) -> JobFacts:
    """Read a job."""
    spec, status = effective(job).job.spec, job.status
    saved = status.last_checkpoint.time if status.last_checkpoint is not None else None
    resumed = next(
        (each.last_transition_time for each in status.conditions if each.type == "Suspended" and each.status != "True"),
        None,
    )
    since = resumed or job.metadata.creation_timestamp
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
        said=next((each.reason for each in status.conditions if each.type == "Admitted" and each.status != "True"), ""),
    )
