"""A run with teams and machines of a cloud, drawn from a seed: pools, owners, jobs and faults."""

from __future__ import annotations

import random

import msgspec

from fuzz.demand import NODE_FAULTS_MAX
from fuzz.fleet.clouds import CloudWeather, Trouble
from fuzz.fleet.configs import CLOUD_POOL, ScaledPool, balloons_text, scaling_text, teams_text
from fuzz.fleet.machines import Source, smallest
from fuzz.fleet.people import FOREIGN, QUARANTINE, Deed
from fuzz.fleet.shares import Shares, draw_shares
from fuzz.roads import road_weather
from fuzz.scenario import (
    FAULTS_S,
    NodeFault,
    Scenario,
    draw_node_faults,
    draw_replica_faults,
    draw_weather,
    with_accidents,
    with_backfill,
)
from fuzz.workload import JobSpec
from muster.sim.replay.job import Job, NodeShape
from muster.sim.virtual.loop import START_S

TEAMS = ("red", "green", "blue")
NODES_MAX = 9
"""Of each pool, without those of the cloud."""
LAST_DEED_S = 150.0
FLAPPING_MAX = 2


class Pool(msgspec.Struct, frozen=True):
    """Nodes of one kind: their label `pool`, the first one's number, and what each is."""

    name: str
    first: int
    nodes: tuple[NodeShape, ...]

    @property
    def least(self) -> NodeShape:
        """Returns the resources that each of them has at least."""
        return smallest(list(self.nodes))


class FleetScenario(Scenario, frozen=True, kw_only=True):
    """The input of such a run.

    Attributes:
        pools: the nodes that are there from the start.
        shares: by pool, the number of nodes that each team must own in the end.
        deeds: actions of users and operators.
        scaled: pools of the cloud, all with the same machines.
        machine: the resources of these machines.
        cloud: failures of requests to the cloud.
        troubles: failures of the cloud itself.
        balloons: text of their ConfigMap.
    """

    pools: tuple[Pool, ...]
    shares: dict[str, Shares]
    deeds: tuple[Deed, ...]
    scaled: tuple[ScaledPool, ...]
    machine: NodeShape
    cloud: CloudWeather
    troubles: tuple[Trouble, ...]
    balloons: str

    @property
    def scaling(self) -> str:
        """Text of the ConfigMap of scaling."""
        return scaling_text(self.scaled, self.machine)

    @property
    def disturbed_until(self) -> float:
        """Returns when injected faults, users and operators no longer keep controllers from acting."""
        ends = [START_S + deed.at for deed in self.deeds] + [each.end for each in self.troubles]
        return max(super().disturbed_until, self.cloud.calm_at, *ends)


def fleet_scenario(seed: int, source: Source) -> FleetScenario:
    """Draw a run."""
    rng = random.Random(f"fleet {seed}")
    pools = _pools(rng, source)
    nodes = sum(len(pool.nodes) for pool in pools)
    replicas = rng.choice((1, 2, 2, 3))
    teams = TEAMS[: rng.choice((2, 3, 3))]
    shares = {pool.name: draw_shares(rng, teams, len(pool.nodes)) for pool in pools}
    owner = rng.choice(("", teams[0]))
    if owner:
        shares[CLOUD_POOL] = Shares(percent={owner: 100})
    scaled = _scaled(rng)
    weather = draw_weather(rng, nodes, replicas)
    drawn = FleetScenario(
        seed=seed,
        nodes=nodes,
        tainted=0,
        replicas=replicas,
        jobs=tuple(_jobs(rng, source, pools, teams, shares, scaled, owner)),
        weather=weather,
        node_faults=(*(faults := draw_node_faults(rng, nodes)), *_flaps(random.Random(f"flaps {seed}"), nodes, faults)),
        replica_faults=draw_replica_faults(rng, replicas),
        skew_s=tuple(rng.choice((0.0, 0.0, rng.uniform(-40, 40))) for _ in range(replicas)),
        start_s=rng.choice((0.05, 0.5, 3.0)),
        stop_s=rng.choice((0.05, 0.5, 3.0)),
        roads=road_weather(rng, nodes, weather.calm_at, START_S),
        pools=pools,
        shares=shares,
        deeds=tuple(_deeds(rng, pools, teams, shares)),
        scaled=scaled,
        machine=pools[0].least,
        cloud=_cloud(rng),
        troubles=tuple(_troubles(rng, scaled)),
        balloons=balloons_text(rng, {pool.name: pool.least for pool in pools} | {CLOUD_POOL: pools[0].least}),
    )
    return with_backfill(with_accidents(drawn))


def _pools(rng: random.Random, source: Source) -> tuple[Pool, ...]:
    kinds = source.kinds
    found, first = [], 0
    for name, model in zip("ab", rng.sample(sorted(kinds), min(len(kinds), rng.choice((1, 2, 2)))), strict=False):
        count = rng.randint(4, NODES_MAX)
        nodes = tuple(rng.sample(kinds[model], min(count, len(kinds[model]))))
        found.append(Pool(name, first, nodes))
        first += len(nodes)
    return tuple(found)


def _scaled(rng: random.Random) -> tuple[ScaledPool, ...]:
    found = []
    for number in range(rng.choice((1, 2))):
        least = rng.choice((0, 0, 1))
        found.append(ScaledPool(f"cloud-{number}", least, least + rng.randint(2, 4), float(number), rng.random() < 0.7))
    return tuple(found)


def _cloud(rng: random.Random) -> CloudWeather:
    def share(most: float) -> float:
        return rng.choice((0.0, 0.0, rng.uniform(0, most)))

    return CloudWeather(
        calm_at=START_S + LAST_DEED_S,
        throttled=share(0.3),
        unanswered=share(0.2),
        late=share(0.5),
        boot_s=rng.uniform(5, 30),
        stop_s=rng.uniform(1, 20),
    )


def _troubles(rng: random.Random, scaled: tuple[ScaledPool, ...]) -> list[Trouble]:
    found = []
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        start = START_S + rng.uniform(0, FAULTS_S)
        kind = rng.choice(("full", "silent", "deaf", "strangers", "reclaimed"))
        end = start + rng.uniform(5, 60)
        found.append(Trouble(kind, rng.choice(scaled).name, start, end, rng.choice((1, 1, 2))))
    return found


def _flaps(rng: random.Random, nodes: int, faults: tuple[NodeFault, ...]) -> list[NodeFault]:
    """A node that nothing else happens to is away for moments, in some runs, once the last configuration is known."""
    spared = sorted(set(range(nodes)) - {fault.node for fault in faults})
    found = []
    for node in rng.sample(spared, rng.choice((0, 1, 2)) if len(spared) > FLAPPING_MAX else 0):
        at, kind = LAST_DEED_S + rng.uniform(15, 90), rng.choice(("unready", "cordoned"))
        for _ in range(rng.randint(2, 5)):
            away_s = rng.uniform(3, 9)
            found.append(NodeFault(kind, node, at, at + away_s))
            at += away_s + rng.uniform(4, 30)
    return found


def _deeds(
    rng: random.Random, pools: tuple[Pool, ...], teams: tuple[str, ...], shares: dict[str, Shares]
) -> list[Deed]:
    """Configurations come and go, until the last one, which is fulfilled; hand-set labels stay, foreign taints go."""
    found = []
    if rng.random() < 0.8:
        found.append(Deed("config", 0.0, value=_some_text(rng, pools, teams, shares)))
    for _ in range(rng.choice((0, 2, 4, 8))):
        at, draw = rng.uniform(1, LAST_DEED_S - 10), rng.random()
        if draw < 0.15:
            found.append(Deed("unconfig", at))
        elif draw < 0.3:
            found.append(Deed("config", at, value=rng.choice(("", "allocations: []", "allocations: [{team: red}]"))))
        else:
            found.append(Deed("config", at, value=_some_text(rng, pools, teams, shares)))
    found.append(Deed("config", LAST_DEED_S, value=teams_text(shares)))
    for pool in pools:
        left = shares[pool.name].owned(len(pool.nodes))  # a team is not given more nodes by hand than it asks for
        for number in rng.sample(range(len(pool.nodes)), 2):
            node, at = pool.first + number, rng.uniform(0, FAULTS_S)
            later = rng.uniform(at, LAST_DEED_S)
            kind = rng.choice(("hand", "hand", "strip", "taint", "taint", "none", "none"))
            if kind == "hand":
                named = [team for team, n in sorted(left.items()) if n]
                if not named:
                    continue
                team = rng.choice(named)
                left[team] -= 1
                found.append(Deed("hand", at, node, team))
                found += [Deed("unhand", later, node)] * rng.choice((0, 1))
            elif kind == "strip":
                found.append(Deed("strip", at, node))
            elif kind == "taint":
                key = rng.choice((FOREIGN, QUARANTINE))
                found += [Deed("taint", at, node, key), Deed("untaint", later, node, key)]
    return found


def _some_text(rng: random.Random, pools: tuple[Pool, ...], teams: tuple[str, ...], shares: dict[str, Shares]) -> str:
    """A configuration in force for a while: more may be asked for than there is."""
    drawn = {pool.name: draw_shares(rng, teams, len(pool.nodes) + rng.choice((0, 0, 5))) for pool in pools}
    if CLOUD_POOL in shares:
        drawn[CLOUD_POOL] = shares[CLOUD_POOL]
    return teams_text(drawn, moving=rng.random() < 0.3)


def _jobs(
    rng: random.Random,
    source: Source,
    pools: tuple[Pool, ...],
    teams: tuple[str, ...],
    shares: dict[str, Shares],
    scaled: tuple[ScaledPool, ...],
    owner: str,
) -> list[JobSpec]:
    """No job asks for more than its team owns in the end; borrowers for no more than there is."""
    found: list[JobSpec] = []
    start = rng.randrange(len(source.tasks))
    tasks = (source.tasks[(start + number) % len(source.tasks)] for number in range(len(source.tasks)))
    for pool in pools:
        owned = shares[pool.name].owned(len(pool.nodes))
        for team in teams:
            most = owned.get(team, 0)
            for _ in range(rng.choice((0, 1, 1, 2)) if most else 0):
                found.append(_gang(rng, next(tasks), pool, f"g{len(found)}", team, rng.randint(1, most)))
            for _ in range(rng.choice((0, 0, 1)) if most else 0):
                found.append(_single(rng, next(tasks), pool, f"p{len(found)}", team))
            for _ in range(rng.choice((0, 1, 1))):
                size = rng.randint(1, max(1, len(pool.nodes) - NODE_FAULTS_MAX))
                gang = _gang(rng, next(tasks), pool, f"b{len(found)}", team, size)
                at, runs_s = rng.uniform(0, 60), rng.choice((gang.runs_s, 150.0, 300.0))
                found.append(msgspec.structs.replace(gang, borrow=True, priority_class="", arrives_s=at, runs_s=runs_s))
        rest = len(pool.nodes) - sum(owned.values())
        for _ in range(rng.choice((0, 1)) if rest else 0):
            size = min(rng.randint(1, rest), shares[pool.name].rest(len(pool.nodes)))
            found.append(_gang(rng, next(tasks), pool, f"g{len(found)}", "", size))
    cloud = Pool(CLOUD_POOL, 0, pools[0].nodes)
    for _ in range(rng.choice((0, 1, 2, 2))):
        size = rng.randint(1, min(each.max for each in scaled))
        gang = _gang(rng, next(tasks), cloud, f"c{len(found)}", owner, size)
        found.append(msgspec.structs.replace(gang, approved=True))
    return found


def _gang(rng: random.Random, task: Job, pool: Pool, name: str, team: str, size: int) -> JobSpec:
    """A gang each of whose pods takes most of a node, or what the task takes."""
    least, whole = pool.least, rng.random() < 0.7
    gpus = least.gpus if whole else min(task.shape.gpus, least.gpus)
    runs_s = (5 + min(35.0, task.run_s / 20)) * rng.choice((1, 1, 4))
    return JobSpec(
        name=f"{name}-{pool.name}",
        size=size,
        gpus=gpus,
        arrives_s=rng.choice((0.0, rng.uniform(0, 90))),
        runs_s=runs_s,
        priority_class=rng.choice(("", "", "high")),
        pool=pool.name,
        grace_s=rng.choice((0, 2, 10)),
        restarts=tuple(rng.uniform(0, runs_s) for _ in range(rng.choice((0, 0, 0, 1)))),
        namespace=f"team-{team}" if team else "default",
        cpu_milli=1000 if whole else min(task.shape.cpu_milli, least.cpu_milli // 2) or 1000,
        memory_mib=1024 if whole else min(task.shape.memory_mib, least.memory_mib // 2),
        models=(least.model,) if rng.random() < 0.3 and least.model else (),
    )


def _single(rng: random.Random, task: Job, pool: Pool, name: str, team: str) -> JobSpec:
    gang = _gang(rng, task, pool, name, team, 1)
    borrow = rng.random() < 0.3
    return msgspec.structs.replace(
        gang, single=True, restarts=(), borrow=borrow, priority_class="" if borrow else "high"
    )
