"""A run with node health, drawn from a seed: faults, repairs, limits and jobs."""

from __future__ import annotations

import random

from fuzz.demand import NODE_FAULTS_MAX
from fuzz.fleet.clouds import CloudWeather
from fuzz.health.mishaps import DRIVERS, LAST_WOUND_S, QUARANTINES, REBOOTS, RESETS, Cut, Habits, Plea, Wound
from fuzz.health.more import More, cut_off
from fuzz.roads import road_weather
from fuzz.scenario import Scenario, draw_node_faults, draw_replica_faults, draw_weather, with_accidents, with_backfill
from fuzz.workload import JobSpec
from muster.sim.virtual.loop import START_S

VENDOR = "vendor"
"""Label of nodes whose machines a provider replaces."""
SCALING = f"""
pools:
- {{name: {VENDOR}, provider: {VENDOR}, max: 99, template: {{labels: {{{VENDOR}: own}}, capacity: {{cpu: 8}}}}}}
"""
PREFLIGHT = """
backend: cpu
levels: {boot: 1, retest: 1, suspect: 1}
startSeconds: 60
retests: """
RETESTS = "{everyHours: 1, atOnce: 1}\n"
NO_RETESTS = "{everyHours: 1000, atOnce: 0}\n"
DEADLINES = (
    "deadlines: {quarantineSeconds: 240, drainSeconds: 300, resetSeconds: 120, rebootSeconds: 240,"
    " replaceSeconds: 300, testSeconds: 900}\nspareSeconds: 20\n"
)


class HealthScenario(Scenario, frozen=True, kw_only=True):
    """The input of such a run.

    Attributes:
        wounds, cuts, pleas: dead machines, partitions and requests of operators.
        habits: how machines execute resets and reboots.
        tainted_at_birth: kubelets register with the taint of preflight.
        breaker: nodes of a pool that may go into quarantine within `window_s`.
        shared: from this many nodes on, the same fault counts as shared.
        quarantined, working: budgets: of all, of a pool, of a team.
        dead: the most suspects that may count as dead at once.
        pools, teams: of the nodes, in turn; "" for none.
        racks: nodes have labels of racks.
        vendor: numbers of nodes whose machines a provider replaces.
        asking: the failures of requests to them.
        retests: idle nodes are tested again, those in doubt after ten minutes.
    """

    wounds: tuple[Wound, ...]
    habits: tuple[Habits, ...]
    tainted_at_birth: bool
    breaker: int
    window_s: float
    shared: int
    quarantined: tuple[int, int, int]
    working: tuple[int, int, int]
    cuts: tuple[Cut, ...] = ()
    pleas: tuple[Plea, ...] = ()
    dead: int = 3
    pools: tuple[str, ...] = ("",)
    teams: tuple[str, ...] = ("red", "")
    racks: bool = False
    vendor: frozenset[int] = frozenset()
    asking: CloudWeather = CloudWeather(calm_at=START_S)
    retests: bool = False

    @property
    def disturbed_until(self) -> float:
        """Returns when the last fault is over and the weather is good."""
        ends = [START_S + LAST_WOUND_S, *(START_S + each.end for each in self.cuts)]
        return max(super().disturbed_until, *ends, *(START_S + each.at for each in self.pleas))

    @property
    def remediation(self) -> str:
        """Text of the configuration of remediation."""
        (all_, pool, team), (work, work_pool, work_team) = self.quarantined, self.working
        return (
            f"mode: act\nbreaker: {{share: 0%, nodes: {self.breaker}, windowSeconds: {self.window_s}}}\n"
            f"shared: {{nodes: {self.shared}, windowSeconds: 3600}}\n"
            f"quarantined: {{all: {all_}, pool: {pool}, team: {team}}}\n"
            f"working: {{all: {work}, pool: {work_pool}, team: {work_team}}}\n"
            f"dead: {{nodes: {self.dead}}}\n{DEADLINES}"
        )

    @property
    def preflight(self) -> str:
        """Text of the configuration of preflight."""
        return PREFLIGHT + (RETESTS if self.retests else NO_RETESTS)

    def team_of(self, number: int) -> str:
        """The team of a node by its number; "" for none."""
        return self.teams[number % len(self.teams)]

    def pool_of(self, number: int) -> str:
        """The pool of a node by its number; "" for none. Each team has nodes in each."""
        return self.pools[number // len(self.teams) % len(self.pools)]


def health_scenario(seed: int) -> HealthScenario:
    """Draw a run."""
    rng = random.Random(f"health {seed}")
    nodes = rng.randint(6, 12)
    replicas = rng.choice((1, 2, 2, 3))
    weather = draw_weather(rng, nodes, replicas)
    wounds = tuple(sorted(_wounds(rng, nodes), key=lambda wound: wound.at))
    habits = tuple(_habits(rng) for _ in range(nodes))
    more = More(random.Random(f"more health {seed}"), nodes)
    wounds, habits = tuple(sorted((*wounds, *more.wounds), key=lambda wound: wound.at)), more.known(habits)
    lost = {wound.node for wound in wounds if wound.kind not in ("driver", "reboot")}
    lost |= {node for node, each in enumerate(habits) if each.hangs_tests or each.reboot == "hangs"}
    lost |= more.lost
    drawn = HealthScenario(
        seed=seed,
        nodes=nodes,
        tainted=0,
        replicas=replicas,
        jobs=tuple(_jobs(rng, max(1, nodes - len(lost) - NODE_FAULTS_MAX), alone=len(more.pools) == 1)),
        weather=weather,
        node_faults=draw_node_faults(rng, nodes),
        replica_faults=draw_replica_faults(rng, replicas),
        skew_s=tuple(rng.choice((0.0, 0.0, rng.uniform(-40, 40))) for _ in range(replicas)),
        start_s=rng.choice((0.05, 0.5, 3.0)),
        stop_s=rng.choice((0.05, 0.5, 3.0)),
        roads=cut_off(road_weather(rng, nodes, weather.calm_at, START_S), more.cuts),
        wounds=wounds,
        habits=habits,
        tainted_at_birth=rng.random() < 0.5,
        breaker=rng.choice((1, 2, 3, nodes)),
        window_s=rng.choice((150.0, 3600.0)),
        shared=rng.choice((0, 3, 4)),
        quarantined=rng.choice(((nodes, nodes, nodes), (nodes, nodes, 1), (nodes, 2, nodes), (2, 2, 2))),
        working=rng.choice(((nodes, nodes, nodes), (nodes, nodes, 1), (nodes, 1, nodes), (1, 1, 1))),
        cuts=more.cuts,
        pleas=more.pleas,
        dead=more.dead,
        pools=more.pools,
        teams=more.teams,
        racks=more.racks,
        vendor=more.vendor,
        asking=more.asking,
        retests=more.retests,
    )
    return with_backfill(with_accidents(drawn))


def _wounds(rng: random.Random, nodes: int) -> list[Wound]:
    found = []
    for node in rng.sample(range(nodes), rng.choice((0, 1, 2, nodes // 2))):
        at = rng.uniform(1, LAST_WOUND_S)
        kind = rng.choice(("fault", "fault", "alarm", "silent", "reboot"))
        code = rng.choice((QUARANTINES, RESETS, REBOOTS, REBOOTS))
        mended_by = rng.choice(("reset", "reboot", "reboot", ""))
        at = rng.choice((0.0, at)) if kind == "silent" else at
        found.append(Wound(kind, node, at, code, mended_by, rng.choice((0.1, rng.uniform(0, 20)))))
        for _ in range(rng.choice((0, 0, 1))):
            again = rng.uniform(at, LAST_WOUND_S)
            found.append(Wound(rng.choice(("alarm", "reboot")), node, again, code, "", rng.uniform(0, 5)))
    if rng.random() < 0.4:
        at = rng.uniform(1, LAST_WOUND_S - 30)
        affected = rng.sample(range(nodes), rng.randint(2, nodes))
        found += [Wound("driver", each, at + rng.uniform(0, 30), DRIVERS, "", rng.uniform(0, 2)) for each in affected]
    return found


def _habits(rng: random.Random) -> Habits:
    return Habits(
        reset=rng.choice(("works", "works", "fails", "hangs")),
        reboot=rng.choice(("works", "works", "works", "works", "works", "fails", "fails", "hangs")),
        reboot_s=rng.uniform(3, 90),
        test_s=rng.uniform(1, 20),
        hangs_tests=int(rng.random() < 0.1),
    )


def _jobs(rng: random.Random, most: int, *, alone: bool) -> list[JobSpec]:
    """No gang is larger than what is left when all that may break has broken for good; single pods know no pools."""
    found = []
    for number in range(rng.randint(1, 5)):
        runs_s = rng.choice((rng.uniform(10, 40), rng.uniform(60, 240)))
        found.append(
            JobSpec(
                name=f"job-{number}",
                size=rng.randint(1, most),
                gpus=rng.choice((8, 8, 4)),
                arrives_s=rng.choice((0.0, rng.uniform(0, 90))),
                runs_s=runs_s,
                priority_class=rng.choice(("", "", "high")),
                grace_s=rng.choice((0, 2, 10)),
                restarts=tuple(rng.uniform(0, runs_s) for _ in range(rng.choice((0, 0, 1)))),
            )
        )
    names = [f"pod-{number}" for number in range(rng.choice((0, 0, 2)))]
    single = [JobSpec(name, 1, 4, rng.uniform(0, 60), rng.uniform(10, 60), single=True) for name in names]
    return found + single * alone
