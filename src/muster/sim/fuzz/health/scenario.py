"""A run with node health, drawn from a seed: what breaks, what helps, how much may be done, and what runs meanwhile."""

from __future__ import annotations

import random

import msgspec

from muster.sim.fuzz.demand import NODE_FAULTS_MAX
from muster.sim.fuzz.roads import road_weather
from muster.sim.fuzz.scenario import Scenario, draw_node_faults, draw_replica_faults, draw_weather
from muster.sim.fuzz.workload import JobSpec
from muster.sim.virtual.loop import START_S

TEAMS = ("red", "")
LAST_WOUND_S = 150.0
QUARANTINES, RESETS, REBOOTS, DRIVERS = "48", "46", "79", "950"
"""Codes of the check `xid`, by what the policy of these runs makes of them; the last one is a driver's."""
POLICY = f"""
version: 1
revision: simulated
extends: default
codes:
  xid:
    {QUARANTINES}: {{action: quarantine, fault: hardware, test: 1}}
    {RESETS}: {{action: reset-gpu, fault: hardware, test: 1}}
    {REBOOTS}: {{action: reboot, fault: hardware, test: 1}}
    {DRIVERS}: {{what: a driver of ours, action: reboot, fault: software, test: 1}}
  preflight:
    failed: {{action: reset-gpu, fault: hardware, test: 1}}
"""
PREFLIGHT = """
backend: cpu
levels: {boot: 1, retest: 1, suspect: 1}
retests: {everyHours: 1000, atOnce: 0}
startSeconds: 60
"""


class Wound(msgspec.Struct, frozen=True):
    """What happens to a node `at` seconds after the start.

    Kinds: `fault` (its GPU is broken, and its agent says so), `silent` (broken, but only a test sees it), `alarm` (the
    agent says so, and nothing is wrong), `driver` (the same, on many nodes in a row), `reboot` (it restarts by itself).

    Attributes:
        code: what the agent sees.
        mended_by: `reset`, `reboot`, or nothing.
        told_s: until the agent has written it.
    """

    kind: str
    node: int
    at: float
    code: str = ""
    mended_by: str = ""
    told_s: float = 0.0


class Habits(msgspec.Struct, frozen=True):
    """How a machine does what it is told: `works`, `fails` (it says so) or `hangs` (nothing is heard of it again)."""

    reset: str = "works"
    reboot: str = "works"
    reboot_s: float = 10.0
    test_s: float = 5.0
    hangs_tests: int = 0


class HealthScenario(Scenario, frozen=True, kw_only=True):
    """Everything about such a run but the code it tests.

    Attributes:
        wounds: what happens to nodes beside their faults.
        habits: of the machines.
        tainted_at_birth: kubelets register with the taint of preflight.
        breaker: nodes of the pool that may go into quarantine within `window_s`.
        shared: from how many nodes on the same fault is nobody's own.
        quarantined, working: budgets: of all, of the one pool, of a team.
    """

    wounds: tuple[Wound, ...]
    habits: tuple[Habits, ...]
    tainted_at_birth: bool
    breaker: int
    window_s: float
    shared: int
    quarantined: tuple[int, int, int]
    working: tuple[int, int, int]

    @property
    def disturbed_until(self) -> float:
        """When nothing breaks any more, and the weather is good."""
        return max(super().disturbed_until, START_S + LAST_WOUND_S)

    @property
    def remediation(self) -> str:
        """Text of the configuration of remediation."""
        (all_, pool, team), (work, work_pool, work_team) = self.quarantined, self.working
        return (
            f"mode: act\nbreaker: {{share: 0%, nodes: {self.breaker}, windowSeconds: {self.window_s}}}\n"
            f"shared: {{nodes: {self.shared}, windowSeconds: 3600}}\n"
            f"quarantined: {{all: {all_}, pool: {pool}, team: {team}}}\n"
            f"working: {{all: {work}, pool: {work_pool}, team: {work_team}}}\n"
            "deadlines: {quarantineSeconds: 240, drainSeconds: 300, resetSeconds: 120, rebootSeconds: 240,"
            " testSeconds: 900}\nspareSeconds: 20\n"
        )


def team_of(number: int) -> str:
    """The team of a node by its number; "" for none."""
    return TEAMS[number % len(TEAMS)]


def health_scenario(seed: int) -> HealthScenario:
    """Draw a run."""
    rng = random.Random(f"health {seed}")
    nodes = rng.randint(6, 12)
    replicas = rng.choice((1, 2, 2, 3))
    weather = draw_weather(rng, nodes, replicas)
    wounds = tuple(sorted(_wounds(rng, nodes), key=lambda wound: wound.at))
    habits = tuple(_habits(rng) for _ in range(nodes))
    lost = {wound.node for wound in wounds if wound.kind not in ("driver", "reboot")}
    lost |= {node for node, each in enumerate(habits) if each.hangs_tests or each.reboot == "hangs"}
    return HealthScenario(
        seed=seed,
        nodes=nodes,
        tainted=0,
        replicas=replicas,
        jobs=tuple(_jobs(rng, max(1, nodes - len(lost) - NODE_FAULTS_MAX))),
        weather=weather,
        node_faults=draw_node_faults(rng, nodes),
        replica_faults=draw_replica_faults(rng, replicas),
        skew_s=tuple(rng.choice((0.0, 0.0, rng.uniform(-40, 40))) for _ in range(replicas)),
        start_s=rng.choice((0.05, 0.5, 3.0)),
        stop_s=rng.choice((0.05, 0.5, 3.0)),
        roads=road_weather(rng, nodes, weather.calm_at, START_S),
        wounds=wounds,
        habits=habits,
        tainted_at_birth=rng.random() < 0.5,
        breaker=rng.choice((1, 2, 3, nodes)),
        window_s=rng.choice((150.0, 3600.0)),
        shared=rng.choice((0, 3, 4)),
        quarantined=rng.choice(((nodes, nodes, nodes), (nodes, nodes, 1), (nodes, 2, nodes), (2, 2, 2))),
        working=rng.choice(((nodes, nodes, nodes), (nodes, nodes, 1), (nodes, 1, nodes), (1, 1, 1))),
    )


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
        told = rng.sample(range(nodes), rng.randint(2, nodes))
        found += [Wound("driver", each, at + rng.uniform(0, 30), DRIVERS, "", rng.uniform(0, 2)) for each in told]
    return found


def _habits(rng: random.Random) -> Habits:
    return Habits(
        reset=rng.choice(("works", "works", "fails", "hangs")),
        reboot=rng.choice(("works", "works", "works", "works", "works", "fails", "fails", "hangs")),
        reboot_s=rng.uniform(3, 90),
        test_s=rng.uniform(1, 20),
        hangs_tests=int(rng.random() < 0.1),
    )


def _jobs(rng: random.Random, most: int) -> list[JobSpec]:
    """No gang is larger than what is left when all that may break has broken for good."""
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
    alone = [f"pod-{number}" for number in range(rng.choice((0, 0, 2)))]
    return found + [JobSpec(name, 1, 4, rng.uniform(0, 60), rng.uniform(10, 60), single=True) for name in alone]
