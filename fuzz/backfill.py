"""Backfill in a run, drawn from the seed: the policy, who can be restarted, and what users change while jobs wait."""

from __future__ import annotations

import random

import msgspec

from fuzz.workload import JobSpec
from muster.api.scheduling import BackfillPolicy
from muster.scheduler.plan import Settings

DELETED, RESIZED, CONSTRAINED = "deleted", "resized", "constrained"
WAITED_S = 100.0
"""A change of a waiting job happens within this time after its arrival, or not at all."""
QUEUED = {"large", "crowd-0"}
"""Jobs of runs in which a large gang waits in front of others."""
CROWDED = 0.4
"""Share of runs with many small gangs, so that a large one has to wait."""
CROWD_MAX = 20
"""Runs with more jobs get no others."""
POLICIES: tuple[BackfillPolicy, ...] = ("preemptible", "preemptible", "preemptible", "easy", "strict")


class Change(msgspec.Struct, frozen=True):
    """A change by its user of a job that waits for nodes, `after_s` seconds after its arrival or later.

    Attributes:
        kind: DELETED, RESIZED (it needs fewer nodes then) or CONSTRAINED (it excludes a node then).
        job: its name.
        after_s: when, after its arrival.
        pick: which size, or which node.
    """

    kind: str
    job: str
    after_s: float
    pick: int


class AskFault(msgspec.Struct, frozen=True):
    """The leader is killed `steps` steps after the `nth` request to leave backfilled nodes, for `back_s` seconds."""

    nth: int
    steps: int
    back_s: float


class Backfill(msgspec.Struct, frozen=True):
    """The scheduler's settings about backfill, and what happens around it.

    Attributes:
        configured: whether a ConfigMap has these settings; else the program has them.
        policy: of all pools.
        delay_s: the permitted delay of gangs whose nodes are backfilled.
        min_run_s: a backfilled gang runs for so long before it is asked to leave.
        asks_max: see `muster.scheduler.plan.Settings`.
        changes: of users, in jobs that wait.
        faults: of the leader, after requests to leave.
        calm: all requests arrive, so that the checkers allow no time for what a controller cannot know.
    """

    configured: bool = False
    policy: BackfillPolicy = "preemptible"
    delay_s: float = 20.0
    min_run_s: float = 5.0
    asks_max: int = 3
    changes: tuple[Change, ...] = ()
    faults: tuple[AskFault, ...] = ()
    calm: bool = False

    @property
    def text(self) -> str:
        """Returns the settings as the text of a ConfigMap."""
        return (
            f"policy: {self.policy}\nbackfillDelaySeconds: {self.delay_s:g}\n"
            f"backfillMinRunSeconds: {self.min_run_s:g}\nbackfillAsksMax: {self.asks_max}\n"
        )

    def applied_to(self, settings: Settings) -> Settings:
        """Returns the settings of the program."""
        if self.configured:
            return settings
        return msgspec.structs.replace(
            settings,
            policy=self.policy,
            backfill_delay_s=self.delay_s,
            backfill_min_run_s=self.min_run_s,
            backfill_asks_max=self.asks_max,
        )


def draw_backfill(seed: int, jobs: tuple[JobSpec, ...], nodes: int) -> tuple[tuple[JobSpec, ...], Backfill]:
    """Return the jobs of a run with what matters for backfill, and the rest.

    Other draws of the seed stay as they were.

    Args:
        seed: the seed of the run.
        jobs: its jobs.
        nodes: the number of its nodes.
    """
    rng = random.Random(f"backfill {seed}")
    jobs = _with_crowd(rng, jobs, nodes)
    share, answering = rng.choice((0.0, 0.5, 0.5, 1.0)), rng.choice((0.0, 0.7, 0.7, 1.0))
    jobs = tuple(_with_restarts(rng, job, share, answering) for job in jobs)
    backfill = Backfill(
        configured=rng.random() < 0.7,
        policy=rng.choice(POLICIES),
        delay_s=rng.choice((0.0, 10.0, 30.0)),
        min_run_s=rng.choice((0.0, 3.0, 10.0, 60.0)),
        asks_max=rng.choice((1, 3)),
        changes=tuple(_changes(rng, jobs)),
        faults=tuple(_faults(rng)),
        calm=rng.random() < (0.7 if QUEUED & {job.name for job in jobs} else 0.1),
    )
    return jobs, backfill


def _with_crowd(rng: random.Random, jobs: tuple[JobSpec, ...], nodes: int) -> tuple[JobSpec, ...]:
    """Add small gangs like the largest one, which comes when they use all nodes: it waits, with others behind it."""
    alike = [job for job in jobs if not (job.single or job.group or job.endless or job.borrow)]
    if rng.random() >= CROWDED or not alike or len(jobs) > CROWD_MAX:
        return jobs
    largest = max(alike, key=lambda job: job.size)
    crowd: list[JobSpec] = []
    later = rng.randint(3, 6)
    while sum(job.size for job in crowd) < nodes or later:
        early = sum(job.size for job in crowd) < nodes
        later -= not early
        few = msgspec.structs.replace(
            largest,
            name=f"crowd-{len(crowd)}",
            size=rng.randint(1, max(1, largest.size // 2)),
            arrives_s=rng.uniform(0, 5) if early else rng.uniform(10, 50),
            runs_s=rng.uniform(15, 50),
            priority_class="",
            grace_s=rng.choice((2, 10, 10)),
            restarts=(),
            suspended=None,
            limit_s=0,
        )
        crowd.append(few)
    late = msgspec.structs.replace(largest, arrives_s=rng.uniform(7, 15))
    return (*(late if job is largest else job for job in jobs), *crowd)


def _with_restarts(rng: random.Random, job: JobSpec, share: float, answering: float) -> JobSpec:
    declared = rng.random() < share
    silent = rng.choice((None, None, False))
    restartable = True if declared else None if job.single or job.group else silent
    return msgspec.structs.replace(job, restartable=restartable, answers=rng.random() < answering)


def _changes(rng: random.Random, jobs: tuple[JobSpec, ...]) -> list[Change]:
    gangs = [job for job in jobs if not (job.single or job.group or job.endless or job.borrow)]
    if rng.random() < 0.6 or not gangs:
        return []
    found = []
    for _ in range(rng.choice((1, 2))):
        largest = max(gangs, key=lambda job: job.size)
        job = rng.choice((largest, largest, rng.choice(gangs)))
        # The nodes of a pool may be as many as its jobs need: none of them can be excluded.
        kind = rng.choice((DELETED, RESIZED, DELETED if job.pool else CONSTRAINED))
        found.append(Change(kind, job.name, rng.uniform(0, WAITED_S / 2), rng.randrange(64)))
    return found


def _faults(rng: random.Random) -> list[AskFault]:
    if rng.random() < 0.6:
        return []
    steps = rng.choice((1, rng.randint(1, 30), rng.randint(1, 300)))
    return [AskFault(rng.choice((1, 1, 2, 4)), steps, rng.choice((0.1, rng.uniform(0, 30))))]
