"""A run drawn from a seed: the cluster, the jobs and the faults."""

from __future__ import annotations

import random
from typing import TypeVar

import msgspec

from fuzz.accidents import Accident, draw_accidents, draw_ranks
from fuzz.backfill import Backfill, draw_backfill
from fuzz.demand import HANDOVER, MIXED, NODE_FAULTS_MAX, QUEUE, demand
from fuzz.roads import RoadWeather, road_weather
from fuzz.weather import Weather, Window
from fuzz.workload import JobSpec
from muster.sim.virtual.loop import START_S

SHAPED = 0.4
"""Share of the others in which jobs have limits, belong to others or have rules about pods."""
EARLY_S = 15.0
"""Most of those that come by then have a limit, so that a gang that waits for them knows when it starts; of those that
come later and could go in front of it, fewer."""
FAULTS_S = 120.0
"""Faults begin within this time after the start; some last a little longer."""
TRAINED = 0.4
"""Share of runs in which the controller of training jobs carries the gangs, and not a model that never fails."""


_DRAWS = 50
"""Draws; one of them has training jobs: none has them with a probability of 0.6 ** 50."""


class NodeFault(msgspec.Struct, frozen=True):
    """A fault of a node from `start` to `end`: `lost`, `deleted` (then registered again), `cordoned`, `unready`."""

    kind: str
    node: int
    start: float
    end: float


class ReplicaFault(msgspec.Struct, frozen=True):
    """A fault of a replica at `at`: `kill`, `stop` or `halt`; it starts or continues `back_s` later.

    With `steps` it happens that many steps after the replica's next step from `at` on.
    """

    kind: str
    replica: int
    at: float
    steps: int
    back_s: float


class Scenario(msgspec.Struct, frozen=True):
    """Everything about a run but the code it tests. Without `roads` a model that never fails owns the gangs.

    `shaped` runs have time limits, gangs of others and rules about pods (see shapes).
    """

    seed: int
    nodes: int
    tainted: int
    replicas: int
    jobs: tuple[JobSpec, ...]
    weather: Weather
    node_faults: tuple[NodeFault, ...]
    replica_faults: tuple[ReplicaFault, ...]
    skew_s: tuple[float, ...]
    start_s: float
    stop_s: float
    lease_s: float = 15.0
    roads: RoadWeather | None = None
    shaped: bool = False
    accidents: tuple[Accident, ...] = ()
    backfill: Backfill = Backfill()

    @property
    def disturbed_until(self) -> float:
        """Returns when injected faults no longer keep controllers from acting."""
        weather = self.weather
        ends = [window.end for windows in weather.partitions.values() for window in windows]
        ends += [window.end for window in weather.slow]
        ends += [window.end for windows in weather.mute.values() for window in windows]
        ends += [window.end for window, _ in weather.denied.values()]
        if weather.refused or weather.unsent or weather.broken or weather.silent or weather.lost or weather.late:
            ends.append(weather.calm_at)
        if weather.watch_lasts_s:
            ends.append(weather.calm_at + 95.0 * bool(weather.watch_silent))
        if self.roads is not None:
            ends += [window.end for window in self.roads.dark.values()]
            ends.append(self.roads.calm_at if self.roads.broken else START_S)
        return max(ends, default=START_S)

    @property
    def trained(self) -> bool:
        """Returns whether the controller of training jobs carries the gangs."""
        return self.roads is not None

    @property
    def stale_s(self) -> float:
        """Returns how old a leader's knowledge may be because of injected faults."""
        weather = self.weather
        stale_s = 3.0 + 45.0 * bool(weather.mute)
        if weather.slow:
            stale_s += 4 * weather.slow_s
        if weather.watch_lasts_s or weather.refused or weather.unsent or weather.lost or weather.slow:
            stale_s += 45.0  # lists fail, and informers back off for up to half a minute
        if weather.watch_lasts_s and weather.watch_silent:
            stale_s += 95.0
        stale_s += max((w.end - w.start + 45.0 for ws in weather.partitions.values() for w in ws), default=0.0)
        if any(fault.kind == "halt" for fault in self.replica_faults):
            stale_s += 10.0
        return stale_s


S = TypeVar("S", bound=Scenario)


def scenario(seed: int) -> Scenario:
    """Draw a run. Which faults there are at all is drawn first, so that runs differ in kind (swarm testing)."""
    rng = random.Random(f"scenario {seed}")
    nodes = rng.randint(5, 14)
    tainted = rng.choice((0, rng.randint(1, nodes // 3)))
    style = rng.choice((MIXED, MIXED, MIXED, QUEUE, HANDOVER))
    if style is HANDOVER:
        nodes, tainted = 4, 0
    replicas = 2 if style is HANDOVER else rng.choice((1, 2, 2, 3))
    weather = _handover(rng) if style is HANDOVER else draw_weather(rng, nodes, replicas)
    drawn = Scenario(
        seed=seed,
        nodes=nodes,
        tainted=tainted,
        replicas=replicas,
        jobs=demand(rng, style, nodes, tainted),
        weather=weather,
        node_faults=draw_node_faults(rng, nodes),
        replica_faults=draw_replica_faults(rng, replicas),
        skew_s=tuple(rng.choice((0.0, 0.0, rng.uniform(-40, 40))) for _ in range(replicas)),
        start_s=rng.choice((0.05, 0.5, 3.0)),
        stop_s=rng.choice((0.05, 0.5, 3.0)),
        lease_s=6.0 if style is HANDOVER else 15.0,
    )
    return with_backfill(_trained(drawn, random.Random(f"training {seed}")))


def with_backfill(drawn: S) -> S:
    """Return the run with backfill drawn from its seed."""
    jobs, backfill = draw_backfill(drawn.seed, drawn.jobs, drawn.nodes)
    drawn = msgspec.structs.replace(drawn, jobs=jobs, backfill=backfill)
    if not backfill.calm:
        return drawn
    roads = msgspec.structs.replace(drawn.roads, broken=0.0, dark={}) if drawn.roads is not None else None
    weather = Weather(calm_at=START_S, latency_s=drawn.weather.latency_s)
    return msgspec.structs.replace(drawn, weather=weather, roads=roads)


def _trained(drawn: Scenario, rng: random.Random) -> Scenario:
    """Have the controller of training jobs carry the gangs in a share of the runs."""
    if rng.random() >= TRAINED:
        return _shaped(drawn, random.Random(f"shapes {drawn.seed}"))
    # A job that runs on would report progress while all has to be at rest.
    draw = random.Random(f"whole nodes {drawn.seed}")
    share = draw.choice((0.0, 0.3, 1.0))
    jobs = tuple(job for job in drawn.jobs if job.runs_s != float("inf"))
    jobs = tuple(msgspec.structs.replace(job, whole=not job.single and draw.random() < share) for job in jobs)
    roads = road_weather(rng, drawn.nodes, drawn.weather.calm_at, START_S)
    return with_accidents(msgspec.structs.replace(drawn, jobs=jobs, roads=roads))


def _shaped(drawn: Scenario, rng: random.Random) -> Scenario:
    """Give jobs other shapes in a share of the runs."""
    if rng.random() >= SHAPED:
        return drawn
    grouped, limited = rng.choice((0.0, 0.3)), rng.choice((0.3, 0.9))
    jobs = []
    for job in drawn.jobs:
        if job.single:
            jobs.append(msgspec.structs.replace(job, apart=rng.random() < 0.7))
        elif rng.random() < grouped and not job.endless:
            jobs.append(msgspec.structs.replace(job, group=True, suspended=None))
        elif rng.random() < (limited if job.arrives_s <= EARLY_S else limited / 2) and not job.endless:
            jobs.append(msgspec.structs.replace(job, limit_s=round(job.runs_s * rng.uniform(1, 6)) + 1))
        else:
            jobs.append(job)
    for number in range(rng.choice((0, 2, 4))):
        arrives_s, runs_s = rng.uniform(0, 60), rng.uniform(5, 40)
        jobs.append(JobSpec(f"apart-{number}", 1, 2, arrives_s, runs_s, single=True, apart=True))
    return msgspec.structs.replace(drawn, jobs=tuple(jobs), shaped=True)


def with_accidents(drawn: S) -> S:
    """Draw how long ranks of each node take, and what people do by accident. Drawn apart: the rest stays as it was."""
    rng = random.Random(f"accidents {drawn.seed}")
    jobs = draw_ranks(rng, drawn.jobs)
    return msgspec.structs.replace(drawn, jobs=jobs, accidents=draw_accidents(rng, jobs))


def draw_weather(rng: random.Random, nodes: int, replicas: int) -> Weather:
    """Draw failures between controllers and the API server."""
    if rng.random() < 0.4:
        late = rng.choice((0.0, rng.uniform(0, 0.3)))
        return Weather(calm_at=START_S + FAULTS_S, latency_s=rng.choice((0.001, 0.01)), late=late)

    def share(most: float) -> float:
        return rng.choice((0.0, 0.0, rng.uniform(0, most)))

    def windows(longest_s: float) -> tuple[Window, ...]:
        found = []
        for _ in range(rng.choice((0, 0, 1, 2))):
            start = START_S + rng.uniform(0, FAULTS_S)
            found.append(Window(start, start + rng.uniform(1, longest_s)))
        return tuple(found)

    return Weather(
        calm_at=START_S + FAULTS_S,
        latency_s=rng.choice((0.001, 0.003, 0.05)),
        slow=windows(20.0),
        refused=share(0.2),
        unsent=share(0.1),
        broken=share(0.1),
        silent=share(0.03),
        lost=share(0.03),
        late=share(0.3),
        watch_lasts_s=rng.choice((0.0, 0.0, rng.uniform(5, 60))),
        watch_silent=rng.choice((0.0, rng.random())),
        denied=_denied(rng, nodes),
        partitions={f"controller-{number}": windows(40.0) for number in range(replicas)},
    )


def _handover(rng: random.Random) -> Weather:
    """Let leaders lose the lease while their bindings arrive late. Other requests are in time, so that leaders plan."""
    mute: dict[str, tuple[Window, ...]] = {}
    at = START_S
    for turn in range(4):
        at += rng.uniform(10, 20)
        mute[f"controller-{turn % 2}"] = (*mute.get(f"controller-{turn % 2}", ()), Window(at, at + 25.0))
        at += 25.0
    return Weather(calm_at=at, latency_s=0.003, late=rng.uniform(0.5, 0.9), late_path="/binding", mute=mute)


def _denied(rng: random.Random, nodes: int) -> dict[str, tuple[Window, int]]:
    found = {}
    for number in rng.sample(range(nodes), rng.choice((0, 0, 1, nodes // 2))):
        start = START_S + rng.uniform(0, FAULTS_S)
        found[f"node-{number:05d}"] = Window(start, start + rng.uniform(5, 60)), rng.choice((403, 500))
    return found


def draw_node_faults(rng: random.Random, nodes: int) -> tuple[NodeFault, ...]:
    """Draw faults of nodes."""
    found = []
    for number in rng.sample(range(nodes), rng.choice((0, 0, 1, NODE_FAULTS_MAX))):
        start = rng.uniform(1, FAULTS_S)
        kind = rng.choice(("lost", "deleted", "cordoned"))
        found.append(NodeFault(kind, number, start, start + rng.uniform(5, 90)))
    return tuple(found)


def draw_replica_faults(rng: random.Random, replicas: int) -> tuple[ReplicaFault, ...]:
    """Draw faults of replicas."""
    found = []
    for _ in range(rng.choice((0, 1, 2, 4))):
        kind = rng.choice(("kill", "kill", "stop", "halt"))
        steps = rng.choice((1, rng.randint(1, 50), rng.randint(1, 1000)))
        back_s = rng.choice((0.1, rng.uniform(0, 40)))
        found.append(ReplicaFault(kind, rng.randrange(replicas), rng.uniform(0, FAULTS_S), steps, back_s))
    return tuple(found)


def restoring_scenario(seed: int) -> Scenario:
    """Draw a run of training jobs that agree on the checkpoint that they restore, and some of these are damaged."""
    number = seed * _DRAWS
    drawn = next(each for each in map(scenario, range(number, number + _DRAWS)) if each.trained)
    jobs = tuple(_restoring(job) if job.grace_s and not job.single else job for job in drawn.jobs)
    return msgspec.structs.replace(drawn, seed=seed, jobs=jobs)


def _restoring(job: JobSpec) -> JobSpec:
    """The job with restores, and with ranks that fail after its first checkpoints."""
    more = tuple(share * job.runs_s + 8.0 for share in (0.3, 0.6))
    return msgspec.structs.replace(job, restores=True, restarts=job.restarts or more)
