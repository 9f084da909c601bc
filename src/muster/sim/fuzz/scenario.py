"""A run drawn from a seed: the cluster, the jobs, and what goes wrong when."""

from __future__ import annotations

import random

import msgspec

from muster.sim.fuzz.weather import Weather, Window
from muster.sim.fuzz.workload import JobSpec
from muster.sim.virtual.loop import START_S

FAULTS_S = 120.0
"""Faults begin within this time after the start; some last a little longer."""
POOL_TAINT = "muster.dev/pool"


class NodeFault(msgspec.Struct, frozen=True):
    """What happens to a node: `lost`, `deleted` (and registered anew) or `cordoned`, from `start` to `end`."""

    kind: str
    node: int
    start: float
    end: float


class ReplicaFault(msgspec.Struct, frozen=True):
    """What happens to a replica at `at`: `kill`, `stop` or `halt`; it starts or goes on `back_s` later.

    With `steps` it happens that many steps after the replica's next step from `at` on.
    """

    kind: str
    replica: int
    at: float
    steps: int
    back_s: float


class Scenario(msgspec.Struct, frozen=True):
    """Everything about a run but the code it tests."""

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

    @property
    def disturbed_until(self) -> float:
        """When the weather no longer keeps controllers from acting."""
        weather = self.weather
        ends = [window.end for windows in weather.partitions.values() for window in windows]
        ends += [window.end for window in weather.slow]
        if weather.refused or weather.unsent or weather.broken or weather.silent or weather.lost or weather.late:
            ends.append(weather.calm_at)
        if weather.watch_lasts_s:
            ends.append(weather.calm_at + 95.0 * bool(weather.watch_silent))
        return max(ends, default=START_S)

    @property
    def stale_s(self) -> float:
        """How old a leader's knowledge may be through no fault of its own."""
        weather = self.weather
        stale_s = 10.0
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


def scenario(seed: int) -> Scenario:
    """Draw a run. Which faults there are at all is drawn first, so that runs differ in kind (swarm testing)."""
    rng = random.Random(f"scenario {seed}")
    nodes = rng.randint(4, 14)
    tainted = rng.choice((0, 0, rng.randint(1, nodes // 2)))
    replicas = rng.choice((1, 2, 2, 3))
    weather = _weather(rng, replicas)
    return Scenario(
        seed=seed,
        nodes=nodes,
        tainted=tainted,
        replicas=replicas,
        jobs=_jobs(rng, nodes, tainted),
        weather=weather,
        node_faults=_node_faults(rng, nodes),
        replica_faults=_replica_faults(rng, replicas),
        skew_s=tuple(rng.choice((0.0, 0.0, rng.uniform(-40, 40))) for _ in range(replicas)),
        start_s=rng.choice((0.05, 0.5, 3.0)),
        stop_s=rng.choice((0.05, 0.5, 3.0)),
    )


def _weather(rng: random.Random, replicas: int) -> Weather:
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
        late=share(0.1),
        watch_lasts_s=rng.choice((0.0, 0.0, rng.uniform(5, 60))),
        watch_silent=rng.choice((0.0, rng.random())),
        partitions={f"controller-{number}": windows(40.0) for number in range(replicas)},
    )


def _jobs(rng: random.Random, nodes: int, tainted: int) -> tuple[JobSpec, ...]:
    specs = []
    for number in range(rng.randint(2, 6)):
        single = rng.random() < 0.2
        runs_s = rng.uniform(5, 40)
        restarts = sorted(rng.uniform(0, runs_s) for _ in range(rng.choice((0, 0, 1, 2))))
        suspended_at = rng.uniform(5, 80)
        specs.append(
            JobSpec(
                name=f"job-{number}",
                size=1 if single else rng.randint(1, max(1, (nodes - tainted) // 2)),
                gpus=rng.choice((2, 4)) if single else rng.choice((8, 8, 8, 4)),
                arrives_s=rng.choice((0.0, rng.uniform(0, 60))),
                runs_s=runs_s,
                priority_class=rng.choice(("", "", "high")),
                tolerates=POOL_TAINT if tainted and rng.random() < 0.5 else "",
                grace_s=rng.choice((0, 2, 10)),
                restarts=() if single else tuple(restarts),
                suspended=(suspended_at, suspended_at + rng.uniform(1, 30)) if rng.random() < 0.15 else None,
                single=single,
            )
        )
    return tuple(specs)


def _node_faults(rng: random.Random, nodes: int) -> tuple[NodeFault, ...]:
    found = []
    for number in rng.sample(range(nodes), rng.choice((0, 0, 1, 2))):
        start = rng.uniform(1, FAULTS_S)
        kind = rng.choice(("lost", "deleted", "cordoned"))
        found.append(NodeFault(kind, number, start, start + rng.uniform(5, 90)))
    return tuple(found)


def _replica_faults(rng: random.Random, replicas: int) -> tuple[ReplicaFault, ...]:
    found = []
    for _ in range(rng.choice((0, 1, 2, 4))):
        kind = rng.choice(("kill", "kill", "stop", "halt"))
        steps = rng.choice((1, rng.randint(1, 50), rng.randint(1, 1000)))
        back_s = rng.choice((0.1, rng.uniform(0, 40)))
        found.append(ReplicaFault(kind, rng.randrange(replicas), rng.uniform(0, FAULTS_S), steps, back_s))
    return tuple(found)
