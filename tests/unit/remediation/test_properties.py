"""What must never happen, in any order of faults, tests, deaths and kills of the controller."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from muster.api.names import remediation_name
from muster.fleet.remediation.config import Breaker, Limits, RemediationConfig, SharedFaults, WorkLimits, amount_of
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.ladder.rungs import WORKING
from muster.fleet.remediation.plan import Action, Evict, Move, Open, Quarantine, Release, RunStep
from muster.fleet.remediation.snapshot import PodView
from tests.unit.remediation.remediationworld import World

ACTIONS = ("condition", "quarantine", "drain", "reset-gpu", "reboot", "replace", "human")
CONFIG = RemediationConfig(
    mode="act",
    breaker=Breaker(share="20%", nodes=1, window_s=900),
    shared=SharedFaults(nodes=4, window_s=300),
    quarantined=Limits(all=6, pool=4, team=3),
    working=WorkLimits(all=3, pool=2, team=1),
)


class Watched(World):
    """A world in which each write is judged before it is done."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(16, CONFIG)
        self.rng = rng
        for number, name in enumerate(sorted(self.nodes)):
            pool, team = ("a", "b")[number % 2], ("red", "blue", "")[number % 3]
            self.nodes[name] = replace(self.nodes[name], pool=pool, team=team, joining=number >= 13)
        self.on_write = self.judge
        self.made: set[str] = set()

    def judge(self, action: Action) -> None:
        if isinstance(action, Open | Move):
            self._granted(action)
        if isinstance(action, Quarantine):
            self._put(action)
        if isinstance(action, Move) and action.status.state == "Released":
            self._released(action)
        if isinstance(action, Release):
            session = self.sessions[action.session]
            assert not record.is_quarantined(session.status)
            assert not record.is_put(session, self.nodes[action.node.name]), "a taint that its session still records"
        if isinstance(action, RunStep):
            assert self.nodes[action.node.name].quarantined
            assert not self.pods.get(action.node.name)
            assert not self.nodes[action.node.name].cordoned
            assert record.first_on(self.sessions[action.session].status, self.sessions[action.session].status.rung)
        if isinstance(action, Evict):
            for pod in action.pods:
                [name] = [name for name, pods in self.pods.items() if pod in pods]
                in_use = not self.nodes[name].quarantined
                assert (in_use, self.rung(name)) == (False, "Drain"), "nothing leaves a node in use"

    def _put(self, action: Quarantine) -> None:
        """A node that was in use goes out of it: counted are those that are out, whatever of it was written."""
        node = self.nodes.get(action.node.name)
        if node is None or node.uid != action.node.uid or node.joining:
            return
        there = self.sessions.get(action.session)
        if there is not None and record.is_quarantined(there.status):
            return  # it was put before, and a user took it away
        usable = [each for each in self.nodes.values() if not each.joining]
        by_uid = {each.spec.node_uid: each for each in self.sessions.values()}
        out = [
            each
            for each in usable
            if each.uid != node.uid
            and (each.record is not None or (each.uid in by_uid and record.is_quarantined(by_uid[each.uid].status)))
        ]
        assert len(out) + 1 <= amount_of(CONFIG.quarantined.all, len(usable)), "over the budget"
        since = self.now - CONFIG.breaker.window_s
        sessions = list(self.sessions.values())
        written = [time for each in sessions if record.pool_of(each) == node.pool for time in record.quarantines(each)]
        lately = sum(time > since for time in written)
        lately += sum(
            each.pool == node.pool and each.uid != node.uid
            and remediation_name(each.name, each.uid) not in self.sessions
            for each in usable
            if each.record is not None
        )  # fmt: skip
        in_pool = sum(each.pool == node.pool for each in usable)
        assert lately + 1 <= max(1, int(in_pool * 0.2)), "over the breaker"

    def _granted(self, action: Open | Move) -> None:
        status = action.status if isinstance(action, Move) else action.session.status
        if isinstance(action, Move):
            there = self.sessions.get(action.session.name)
            if there is None or there.metadata.resource_version != action.session.metadata.resource_version:
                return
        node = self.nodes.get(action.session.spec.node)
        if node is None or node.uid != action.session.spec.node_uid or status.state != "Open":
            return
        others = [each for name, each in self.sessions.items() if name != action.session.name]
        if status.rung in WORKING and action.session.status.rung not in WORKING:
            working = [each for each in others if each.status.state == "Open" and each.status.rung in WORKING]
            there_ = [each for each in working if self._is_there(each.spec.node_uid)]
            assert len(there_) + 1 <= CONFIG.working.all, "too many are worked on"
            same = [each for each in there_ if self.nodes[each.spec.node].team == node.team != ""]
            assert len(same) + 1 <= CONFIG.working.team or not node.team, "too many of a team"

    def _released(self, action: Move) -> None:
        node = self.nodes.get(action.session.spec.node)
        if node is None or node.uid != action.session.spec.node_uid:
            return
        if record.is_quarantined(action.session.status):
            tested, steps = self.tested[node.name], record.episode(action.session.status)
            assert tested.passed
            assert (tested.node_uid, tested.boot_id) == (node.uid, node.boot_id)
            assert tested.time_s > record.seconds(steps[0].time), "a pass from before"

    def _is_there(self, uid: str) -> bool:
        return any(node.uid == uid for node in self.nodes.values())

    def _uses(self, uid: str) -> bool:
        return any(node.uid == uid and not node.joining for node in self.nodes.values())

    def happen(self) -> None:
        """One thing, whatever it is."""
        rng = self.rng
        name = rng.choice(sorted(self.nodes))
        node = self.nodes[name]
        kind = rng.randrange(12)
        if kind < 3:
            self.fault(name, rng.choice(ACTIONS), rng.choice(("79", "48", "31", "950")))
        elif kind < 5:
            self.test(name, passed=rng.random() < 0.6)
        elif kind == 5:
            self.now += rng.choice((5, 60, 400, 2000, 8000))
        elif kind == 6:
            self.finish_steps(rng.choice(("Succeeded", "Failed")))
        elif kind == 7:
            self.evidence.pop(name, None)
        elif kind == 8 and not node.quarantined:
            self.pods.setdefault(name, []).append(
                PodView(namespace="ns", name=f"p{self.now}", uid=f"p{rng.random()}", gang=rng.choice(("", "ns/g")))
            )
        elif kind == 9:
            self.nodes[name] = replace(node, cordoned=not node.cordoned)
        elif kind == 10 and rng.random() < 0.3:
            joining = replace(node, uid=f"uid-{rng.random()}"[:12], boot_id="b0", quarantined=False, record=None)
            self.nodes[name] = replace(joining, joining=True, conditions={})
            self.evidence.pop(name, None)
            self.dead.pop(name, None)
        elif kind == 11:
            if name in self.dead:
                del self.dead[name]
            else:
                self.dead[name] = "silent"

    def killed_somewhere(self) -> None:
        """A controller that is killed after some of its actions."""
        dropped = self.rng.random()
        self.step(lambda action: self.rng.random() > dropped)


@pytest.mark.parametrize("seed", range(30))
def test_never_over_a_budget_or_a_breaker_and_nothing_leaves_quarantine_without_a_pass(seed: int) -> None:
    world = Watched(random.Random(seed))
    for _ in range(120):
        world.happen()
        if world.rng.random() < 0.3:
            world.killed_somewhere()
        else:
            world.step()
    for session in world.sessions.values():
        generations = [step.generation for step in session.status.history]
        assert generations == sorted(set(generations)), "each step is written once"


@pytest.mark.parametrize("seed", range(20))
def test_no_remediation_is_lost_where_the_controller_is_killed_at_each_step(seed: int) -> None:
    """At most one action of each plan is carried out; the node still comes back, through one reboot."""
    rng = random.Random(seed)
    world = World()
    world.fault("n0", "reboot")
    world.pods["n0"] = [PodView(namespace="ns", name="p", uid="p")]
    for _ in range(200):
        plan = world.step(lambda action: False)
        if not plan.actions:
            world.finish_steps()
            if world.nodes["n0"].boot_id == "b1" and world.rung("n0") == "Reboot":
                world.test("n0")
        else:
            world.carry_out(rng.choice(plan.actions))
        if world.sessions and world.rung("n0") == "Released" and not world.tainted():
            break
        world.now += 1
    assert world.rung("n0") == "Released"
    assert world.nodes["n0"].boot_id == "b1"
    assert len({each.name for each in world.done if isinstance(each, RunStep)}) == 1
