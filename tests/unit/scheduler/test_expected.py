"""Which nodes a waiting gang reserves, and which gangs may use them, if run times of earlier gangs are known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import msgspec
import pytest

from muster.scheduler.forecast.likeness import Likeness
from muster.scheduler.forecast.run_times import EndedRun, RunTimes
from muster.scheduler.gangs.gang import REQUEUED_NODES_MAX
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.queue.reservations import STRICT_AFTER_S
from tests.unit.scheduler.world import GPU, World, node, reason_of

HOUR_S = 3600.0
JOB = JobFacts(requeueable=True, grace_s=10.0)


def remember(world: World, run_times_s: dict[str, float]) -> None:
    """Twenty gangs with each of these names ran that long."""
    ended = [
        EndedRun(Likeness(namespace="default", pattern=name, nodes=nodes, gpus=gpus), run_s, True, world.now - number)
        for name, run_s in run_times_s.items()
        for nodes in range(1, 6)
        for gpus in (2, 3, 4, 6, 7, 8)
        for number in range(20)
    ]
    world.state.set_run_times(RunTimes(ended))


def part(gpus: int) -> dict[str, object]:
    return {"containers": [{"name": "worker", "resources": {"limits": {GPU: str(gpus)}}}]}


def waiting_head(**settings: object) -> World:
    """Three nodes; a gang that runs for ten hours has two, and a gang waits for all three."""
    world = World()
    world.settings = msgspec.structs.replace(world.settings, **settings)
    world.add_nodes("a", "b", "c")
    remember(world, {"running": 10 * HOUR_S, "head": HOUR_S, "short": 0.2 * HOUR_S, "long": 30 * HOUR_S})
    world.add_gang("running", 2)
    world.run()
    world.add_gang("head", 3)
    return world


def add_job(world: World, name: str, size: int = 1, facts: JobFacts = JOB) -> None:
    world.set_job(name, facts)
    world.add_gang(name, size)


def end(world: World, name: str) -> None:
    world.set_job(name, JobFacts(ended="Succeeded"))
    world.remove_gang(name)


def leaving(world: World, name: str) -> str:
    return world.placements[f"default/{name}"].status.reason or ""


def test_a_job_that_is_expected_to_end_in_time_is_backfilled() -> None:
    world = waiting_head()
    add_job(world, "short")
    world.run()
    assert set(world.nodes_of("short").values()) == {"c"}
    backfill = world.placements["default/short"].spec.backfill
    assert backfill is not None
    assert backfill.gang == "default/head"


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("long", JOB),
        ("unknown", JobFacts()),
        ("short", msgspec.structs.replace(JOB, requeueable=False)),
        ("short", msgspec.structs.replace(JOB, asked=1)),
    ],
    ids=["too long", "not a job that may be queued again", "restartable: false", "predicted badly before"],
)
def test_other_jobs_without_checkpoints_wait_for_their_turn(name: str, facts: JobFacts) -> None:
    world = waiting_head()
    add_job(world, name, facts=facts)
    plan = world.run()
    assert world.nodes_of(name) == {}
    assert reason_of(plan, world, name) == "BehindInQueue"


def test_a_large_job_without_checkpoints_is_not_backfilled() -> None:
    world = World()
    world.add_nodes(*(f"n{number}" for number in range(8)))
    remember(world, {"running": 10 * HOUR_S, "head": HOUR_S, "short": 0.2 * HOUR_S})
    world.add_gang("running", 2)
    world.run()
    world.add_gang("head", 8)
    add_job(world, "short", REQUEUED_NODES_MAX + 1)
    world.run()
    assert world.nodes_of("short") == {}


def test_without_a_history_no_job_is_expected_to_end() -> None:
    world = waiting_head()
    world.state.set_run_times(RunTimes())
    add_job(world, "short")
    world.run()
    assert world.nodes_of("short") == {}


@pytest.mark.parametrize("policy", ["strict", "easy"])
def test_other_policies_do_not_use_expected_ends(policy: str) -> None:
    world = waiting_head(policy=policy)
    add_job(world, "short")
    world.run()
    assert world.nodes_of("short") == {}


def test_a_job_longer_than_the_wait_of_the_head_is_not_backfilled() -> None:
    world = waiting_head()
    world.now += 9.95 * HOUR_S
    add_job(world, "short")
    world.run()
    assert world.nodes_of("short") == {}, "the running gang is expected to end sooner"


def test_a_job_that_runs_longer_than_expected_is_asked_only_after_the_permitted_delay() -> None:
    world = waiting_head()
    add_job(world, "short")
    world.run()
    began = world.now
    end(world, "running")
    world.run()
    assert leaving(world, "short") == "", "it loses its work, so it gets the whole delay"
    world.now = began + world.settings.backfill_delay_s + 1
    world.run()
    assert leaving(world, "short") == "Backfilled"
    assert world.placements["default/head"].spec.preempting


def test_restartable_gangs_leave_before_gangs_that_would_lose_their_work() -> None:
    world = World()
    world.add_nodes("a", "b", "c", "d")
    remember(world, {"running": 10 * HOUR_S, "head": HOUR_S, "short": 0.2 * HOUR_S})
    world.add_gang("running", 2)
    world.run()
    world.add_gang("head", 3)
    add_job(world, "short")
    add_job(world, "saved", facts=JobFacts(restartable=True, asked=2, grace_s=10.0))
    world.run()
    assert world.nodes_of("short")
    assert world.nodes_of("saved")
    end(world, "running")
    world.now += 300.0
    world.run()
    assert (leaving(world, "saved"), leaving(world, "short")) == ("Backfilled", "")


def partly_used() -> World:
    """Two nodes, each with a part in use: the part on `a` ends soon, that on `b` much later. A gang waits for one."""
    world = World()
    world.add_nodes("a", "b")
    remember(world, {"soon": HOUR_S, "late": 50 * HOUR_S, "head": HOUR_S})
    world.add_gang("late", 1, **part(6))
    world.run()
    world.add_gang("soon", 1, **part(6))
    world.run()
    assert set(world.nodes_of("late").values()) == {"a"}
    assert set(world.nodes_of("soon").values()) == {"b"}
    world.add_gang("head", 1)
    world.run()
    return world


def test_a_pod_uses_the_rest_of_a_node_that_the_head_is_not_expected_to_get_first() -> None:
    world = partly_used()
    world.add_gang("small", 1, **part(2))
    world.run()
    assert set(world.nodes_of("small").values()) == {"a"}
    assert world.placements["default/small"].spec.backfill is None, "it need not give the node back"
    world.add_gang("other", 1, **part(2))
    world.run()
    assert world.nodes_of("other") == {}, "the head is expected to get the other node first"


def test_the_head_gets_another_node_if_that_is_free_first() -> None:
    world = partly_used()
    end(world, "late")
    world.run()
    assert set(world.nodes_of("head").values()) == {"a"}


def test_a_gang_that_has_waited_for_a_day_reserves_the_rest_of_every_node() -> None:
    world = partly_used()
    world.now += STRICT_AFTER_S + 60.0
    world.add_gang("small", 1, **part(2))
    world.run()
    assert world.nodes_of("small") == {}


def test_without_a_history_the_rest_of_every_node_is_reserved() -> None:
    world = partly_used()
    world.state.set_run_times(RunTimes())
    world.add_gang("small", 1, **part(2))
    world.run()
    assert world.nodes_of("small") == {}


def test_nodes_that_are_free_now_are_all_reserved() -> None:
    world = waiting_head()
    world.add_gang("small", 1, **part(2))
    world.run()
    assert world.nodes_of("small") == {}, "the head can use c now"


def test_two_large_gangs_reserve_different_nodes() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    names = {"one": HOUR_S, "two": 2 * HOUR_S, "three": 3 * HOUR_S, "first": HOUR_S, "second": HOUR_S}
    remember(world, names)
    for name in ("one", "two", "three"):
        world.add_gang(name, 1, **part(6))
        world.run()
    world.add_gang("first", 1)
    world.add_gang("second", 1, **part(7))
    world.add_gang("small", 1, **part(2))
    world.add_gang("other", 1, **part(2))
    world.run()
    assert set(world.nodes_of("small").values()) == {"c"}, "the others are expected to get a and b"
    assert world.nodes_of("other") == {}


def test_a_gang_of_two_kinds_of_pods_does_not_count_a_free_node_for_both() -> None:
    """One node is free, and either pod fits there. So one more node must become free."""
    world = World()
    world.add_nodes("a", "b", "c")
    remember(world, {"soon": HOUR_S, "late": 50 * HOUR_S, "head": HOUR_S, "small": 90 * HOUR_S})
    for name in ("late", "soon"):
        world.add_gang(name, 1, **part(6))
        world.run()
    world.add_member("head", 0, 2)
    world.add_member("head", 1, 2, hostNetwork=True)
    world.now += 1.0
    for name in ("small-1", "small-2"):
        world.add_gang(name, 1, **part(2))
    world.run()
    end(world, "soon")
    world.run()
    assert len(world.nodes_of("head")) == 2


def test_a_gang_reserves_no_node_that_is_excluded_for_it() -> None:
    world = partly_used()
    world.state.avoid(world.gang("head"), 0, "b")
    world.add_gang("small", 1, **part(2))
    world.run()
    assert set(world.nodes_of("small").values()) == {"b"}
    end(world, "late")
    world.run()
    assert set(world.nodes_of("head").values()) == {"a"}


def _steps(rng: random.Random) -> Iterable[str]:
    kinds = ["submit", "end", "wait", "history", "fail", "back"]
    return rng.choices(kinds, [6, 4, 6, 1, 1, 1], k=60)


@pytest.mark.parametrize("seed", range(20))
def test_estimates_kept_from_an_earlier_plan_are_those_of_a_fresh_start(seed: int) -> None:
    """`decide` with and without its memo gives the same plan, whatever ends, comes, breaks or is learnt between."""
    rng, world, numbers = random.Random(seed), World(), itertools.count()
    world.add_nodes(*(f"n{number}" for number in range(8)))
    remember(world, {"job": HOUR_S, "part": 0.5 * HOUR_S})
    running: list[str] = []
    for step in _steps(rng):
        if step == "submit":
            small = rng.random() < 0.5
            name = f"{'part' if small else 'job'}-{next(numbers)}"
            facts = JobFacts(restartable=rng.random() < 0.3, requeueable=True, grace_s=10.0)
            world.set_job(name, facts)
            world.add_gang(name, 1 if small else rng.randint(1, 6), **(part(rng.randint(1, 7)) if small else {}))
            running.append(name)
        elif step == "end" and running:
            end(world, running.pop(rng.randrange(len(running))))
        elif step == "wait":
            world.now += rng.choice([1.0, 70.0, 2000.0])
        elif step == "back":
            world.now -= rng.choice([1.0, 500.0])
        elif step == "history":
            remember(world, {"job": rng.uniform(10.0, 9000.0), "part": rng.uniform(10.0, 9000.0)})
        elif step == "fail":
            world.set_node(node("n7", ready=rng.random() < 0.5))
        world.never_another_plan_without_memo()
        world.run()
        for placement in list(world.placements.values()):
            if placement.status.phase == "Preempting":
                world.remove_gang(placement.spec.gang)


RACK = "example.com/rack"


def in_one_rack(gang: str) -> dict[str, object]:
    term = {"topologyKey": RACK, "labelSelector": {"matchLabels": {"muster.dev/gang": gang}}}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def racks(size: int = 2, **spec: object) -> World:
    """Two racks of two nodes, one of each in use: in `left` for long, in `right` not. A gang waits."""
    world = World()
    for name in ("left-1", "left-2", "right-1", "right-2"):
        world.add_nodes(name, labels={RACK: name.split("-")[0]})
    remember(world, {"late": 50 * HOUR_S, "soon": HOUR_S, "head": HOUR_S, "other": 50 * HOUR_S})
    world.add_gang("late", 1)
    world.run()
    world.add_gang("soon", 1, nodeSelector={RACK: "right"})
    world.run()
    assert set(world.nodes_of("late").values()) == {"left-1"}
    world.add_gang("head", size, **(spec or in_one_rack("head")))
    world.run()
    assert world.nodes_of("head") == {}
    return world


def test_a_gang_for_one_rack_reserves_only_the_rack_that_it_is_expected_to_get_first() -> None:
    world = racks()
    world.add_gang("other", 1)
    world.run()
    assert set(world.nodes_of("other").values()) == {"left-2"}
    assert world.placements["default/other"].spec.backfill is None
    world.add_gang("more", 1)
    world.run()
    assert world.nodes_of("more") == {}
    end(world, "soon")
    world.run()
    assert set(world.nodes_of("head").values()) == {"right-1", "right-2"}


def test_a_later_gang_does_not_count_the_free_nodes_of_the_rack_that_is_reserved() -> None:
    world = racks()
    world.add_gang("late-2", 1, nodeSelector={RACK: "left"})
    world.add_nodes("x", labels={RACK: "none"})
    world.add_gang("soon-2", 1, nodeSelector={RACK: "none"}, **part(6))
    world.run()
    assert set(world.nodes_of("soon-2").values()) == {"x"}
    world.add_gang("second", 1, **part(7))
    world.add_gang("small", 1, **part(2))
    world.run()
    assert world.nodes_of("second") == {}, "right-2 is free, but reserved for the head"
    assert world.nodes_of("small") == {}, "it would keep x from the second gang"
    end(world, "soon-2")
    world.run()
    assert set(world.nodes_of("second").values()) == {"x"}


def test_a_gang_for_one_rack_reserves_no_rack_whose_node_is_excluded_for_it() -> None:
    world = racks()
    for slot in (0, 1):
        world.state.avoid(world.gang("head"), slot, "right-1")
    world.add_gang("other", 1)
    world.run()
    assert set(world.nodes_of("other").values()) == {"right-2"}
    end(world, "late")
    world.run()
    assert set(world.nodes_of("head").values()) == {"left-1", "left-2"}


def test_a_gang_with_other_rules_reserves_every_node_that_it_could_use() -> None:
    spread = {"maxSkew": 1, "topologyKey": RACK, "whenUnsatisfiable": "DoNotSchedule"}
    who = {"labelSelector": {"matchLabels": {"muster.dev/gang": "head"}}}
    world = racks(3, topologySpreadConstraints=[{**spread, **who}])
    world.add_gang("other", 1)
    world.run()
    assert world.nodes_of("other") == {}
