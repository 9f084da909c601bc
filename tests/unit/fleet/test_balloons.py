"""Balloons: how many there are, and that none waits or is where it must not be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.api.configtext import ConfigTextError
from muster.fleet.balloons.config import BalloonPool, parse_config
from muster.fleet.balloons.decide import TRY_AGAIN_S, WAITS_S, decide, use_of
from muster.fleet.balloons.deployment import deployment_name, known, manifest
from muster.fleet.balloons.plan import Drop, Mark, Plan, Put, Remove, Scale
from muster.fleet.balloons.snapshot import Balloon, BalloonNode, Known, NodeUse, View
from muster.kube.objects.affinity import Toleration
from muster.kube.objects.apps import Deployment
from muster.kube.objects.node import Taint
from muster.kube.objects.struct import decode, encode

GPU = "nvidia.com/gpu"
POOL = BalloonPool(
    name="h100",
    node_selector={"pool": "h100"},
    replicas=4,
    resources={GPU: "8"},
    tolerations=(Toleration(key="muster.dev/pool", operator="Exists"),),
)
JOINING = Taint(key="muster.dev/joining", value="pending", effect="NoSchedule")
OWN = Taint(key="muster.dev/pool", value="h100", effect="NoSchedule")


def node(number: int, **fields: object) -> BalloonNode:
    given = {"labels": {"pool": "h100"}, "allocatable": {GPU: 8}, "taints": (OWN,), **fields}
    return BalloonNode(name=f"n{number}", **given)  # type: ignore[arg-type]


def deployment(replicas: int, pool: BalloonPool | None = POOL, *, stale: bool = False) -> Known:
    return Known(deployment_name("h100"), "uid", replicas, pool, stale)


def balloon(number: int, on: str = "", since: float = 0.0) -> Balloon:
    return Balloon("muster-system", f"b{number}", f"uid-{number}", "h100", on, since)


def view(nodes: list[BalloonNode], asked: int | None, *balloons: Balloon, **fields: object) -> View:
    deployments = {} if asked is None else {"h100": deployment(asked)}
    return View((POOL,), tuple(nodes), balloons, deployments, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "use"),
    [
        ({}, NodeUse.USABLE),
        ({"ready": False}, NodeUse.NOT_READY),
        ({"cordoned": True}, NodeUse.CORDONED),
        ({"taints": (OWN, JOINING)}, NodeUse.TAINTED),
        ({"taints": (OWN, Taint(key="muster.dev/quarantine", value="true", effect="NoSchedule"))}, NodeUse.TAINTED),
        ({"taints": (Taint(key="example.com/broken", effect="NoExecute"),)}, NodeUse.TAINTED),
        ({"taints": (Taint(key="example.com/rather-not", effect="PreferNoSchedule"),)}, NodeUse.USABLE),
        ({"promised": True}, NodeUse.PROMISED),
        ({"taken": {GPU: 1}}, NodeUse.FULL),
        ({"taken": {"cpu": 5000}}, NodeUse.USABLE),
        ({"allocatable": {}}, NodeUse.FULL),
        ({"labels": {"pool": "cpu"}}, None),
    ],
)
def test_state_of_a_node_decides_about_balloons(changed: dict[str, object], use: NodeUse | None) -> None:
    assert use_of(POOL, POOL.request, node(0, **changed)) == use


def test_a_deployment_is_made_with_as_many_as_there_are_nodes() -> None:
    plan = decide(view([node(0), node(1), node(2, cordoned=True)], None), 0.0)
    assert plan.actions == (Put(POOL, 2, None),)


def test_never_more_than_configured() -> None:
    assert decide(view([node(n) for n in range(9)], None), 0.0).actions == (Put(POOL, 4, None),)


def test_a_pool_that_shrinks_has_fewer_balloons() -> None:
    plan = decide(view([node(0), node(1, ready=False)], 2), 0.0)
    assert plan.actions == (Scale(deployment(2), 1),)


def test_the_balloon_that_goes_is_the_one_on_the_node_that_is_lost() -> None:
    on = [balloon(0, "n0"), balloon(1, "n1")]
    for lost in ({"taints": (OWN, JOINING)}, {"cordoned": True}, {"promised": True}, {"taken": {GPU: 8}}):
        plan = decide(view([node(0), node(1, **lost)], 2, *on), 0.0)
        assert plan.actions == (Mark(on[1]), Scale(deployment(2), 1))


def test_one_that_waits_goes_before_one_that_is_placed() -> None:
    on = [balloon(0, "n0"), balloon(1, "n1"), balloon(2)]
    plan = decide(view([node(0), node(1, promised=True)], 2, *on), 0.0)
    assert plan.actions == (Scale(deployment(2), 1),)


def test_a_balloon_leaves_a_node_that_is_left_alone_where_there_is_room_elsewhere() -> None:
    on = [balloon(number, f"n{number}") for number in range(4)]
    plan = decide(view([*(node(number) for number in range(1, 6)), node(0, cordoned=True)], 4, *on), 0.0)
    assert plan.actions == (Remove(on[0], NodeUse.CORDONED),)


def test_a_balloon_in_a_gangs_way_is_left_to_the_scheduler() -> None:
    on = [balloon(number, f"n{number}") for number in range(4)]
    plan = decide(view([*(node(number) for number in range(1, 6)), node(0, promised=True)], 4, *on), 0.0)
    assert plan.actions == ()


def test_unconfigured_deployments_are_deleted() -> None:
    assert decide(View((), (), (), {"h100": deployment(2)}), 0.0).actions == (Drop(deployment(2)),)


def test_an_unreadable_configuration_deletes_nothing_and_still_follows_the_nodes() -> None:
    plan = decide(View(None, (node(0),), (), {"h100": deployment(3), "old": deployment(1, None)}), 0.0)
    assert plan.actions == (Scale(deployment(3), 1),)


def test_another_configuration_or_version_is_written_again() -> None:
    other = replace(POOL, resources={GPU: "4"})
    for before in (deployment(1, other), deployment(1, stale=True)):
        plan = decide(View((POOL,), (node(0),), (), {"h100": before}), 0.0)
        assert plan.actions == (Put(POOL, 1, before),)


def test_balloons_that_wait_for_long_are_taken_back_and_tried_again_later() -> None:
    nodes = [node(0), node(1)]
    waiting = [balloon(0, "n0"), balloon(1, since=100.0)]
    patient = decide(view(nodes, 2, *waiting), 100.0 + WAITS_S - 1)
    assert patient.actions == ()
    assert patient.wake_at == 100.0 + WAITS_S
    now = 100.0 + WAITS_S
    first = decide(view(nodes, 2, *waiting), now)
    assert first.actions == (Scale(deployment(2), 1),)
    after = decide(view(nodes, 1, waiting[0], caps=first.caps), now + 1)
    assert after.actions == ()
    assert after.wake_at == now + TRY_AGAIN_S
    assert decide(view(nodes, 1, waiting[0], caps=after.caps), now + TRY_AGAIN_S).actions == (Scale(deployment(1), 2),)
    more = decide(view([*nodes, node(2)], 1, waiting[0], caps=after.caps), now + 1)
    assert more.actions == (Scale(deployment(1), 3),), "another node is unclaimed room"


NODES = st.lists(
    st.builds(
        lambda number, ready, cordoned, joining, promised, taken, other: node(
            number,
            ready=ready,
            cordoned=cordoned,
            taints=(OWN, JOINING) if joining else (OWN,),
            promised=promised,
            taken={GPU: taken},
            labels={"pool": "cpu" if other else "h100"},
        ),
        number=st.integers(0, 30),
        ready=st.booleans(),
        cordoned=st.booleans(),
        joining=st.booleans(),
        promised=st.booleans(),
        taken=st.integers(0, 8),
        other=st.booleans(),
    ),
    unique_by=lambda each: each.name,
    max_size=12,
)


def asked(plan: Plan, before: int | None) -> int:
    for action in plan.actions:
        if isinstance(action, Put | Scale):
            return action.replicas
    assert before is not None
    return before


@given(NODES, st.none() | st.integers(0, 15))
def test_no_balloon_has_to_wait_for_a_node(nodes: list[BalloonNode], before: int | None) -> None:
    wanted = asked(decide(view(nodes, before), 0.0), before)
    free = [
        each
        for each in nodes
        if each.labels["pool"] == "h100" and each.ready and not each.cordoned and JOINING not in each.taints
        if not each.promised and each.taken[GPU] == 0
    ]
    assert wanted == min(POOL.replicas, len(free))


@given(NODES, st.lists(st.integers(0, 30), max_size=8))
def test_nothing_is_written_once_all_is_as_planned(nodes: list[BalloonNode], on: list[int]) -> None:
    balloons = [balloon(number, f"n{at}") for number, at in enumerate(on)]
    plan = decide(view(nodes, None, *balloons), 0.0)
    removed = {action.balloon for action in plan.actions if isinstance(action, Remove)}
    stay = [each for each in balloons if each not in removed]
    assert decide(view(nodes, asked(plan, None), *stay), 1.0).actions == ()


@given(NODES, st.lists(st.integers(0, 30), max_size=8))
def test_no_balloon_stays_on_a_node_that_is_left_alone(nodes: list[BalloonNode], on: list[int]) -> None:
    balloons = [balloon(number, f"n{at}") for number, at in enumerate(on)]
    plan = decide(view(nodes, asked(decide(view(nodes, None), 0.0), None), *balloons), 0.0)
    removed = {action.balloon.node for action in plan.actions if isinstance(action, Remove)}
    for each in nodes:
        touched = each.labels["pool"] == "h100" and (not each.ready or each.cordoned or JOINING in each.taints)
        assert (each.name in removed) == (touched and each.name in {b.node for b in balloons})


def test_state_of_a_deployment_is_read_back() -> None:
    made = decode(encode({**manifest(POOL, 3, "muster-system", "muster:1"), "status": {}}), Deployment)
    assert known(made, "muster:1") == Known("muster-balloon-h100", "", 3, POOL, False)
    assert known(made, "muster:2").stale
    made.metadata.annotations.clear()
    assert known(made, "muster:1") == Known("muster-balloon-h100", "", 3, None, True)


GOOD = """\
image: example/pause
pools:
- name: h100
  nodeSelector: {pool: h100}
  replicas: 40
  resources: {nvidia.com/gpu: 8}
  tolerations:
  - {key: muster.dev/pool, operator: Exists}
- name: cpu
  nodeSelector:
    pool: cpu
  replicas: 0
  resources: {cpu: 500m}
"""


def test_a_configuration_is_read() -> None:
    cpu, gpu = parse_config(GOOD)
    assert (cpu.name, cpu.replicas, cpu.request) == ("cpu", 0, {"cpu": 500})
    assert (gpu.replicas, gpu.request, gpu.image) == (40, {GPU: 8}, "example/pause")
    assert gpu.tolerations == POOL.tolerations


def test_an_empty_configuration_has_no_pools() -> None:
    assert parse_config("") == parse_config("# nothing yet\n") == ()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: cpu", "name: h100", "line 9: pools[1].name: another pool is called h100"),
        ("name: cpu", "name: CPU", "line 9: pools[1].name: 'CPU' is not a DNS label"),
        ("replicas: 0", "replicas: -1", "line 12: pools[1].replicas: -1 is negative; write 0 or more"),
        ("replicas: 0", "replicas: many", "line 12: pools[1].replicas: Expected `int`, got `str`"),
        ("replicas: 0", "replica: 0", "line 12: pools[1].replica: unknown field; did you mean replicas?"),
        ("cpu: 500m", "cpu: 0", "line 13: pools[1].resources.cpu: 0 is not possible"),
        ("cpu: 500m", "cpu: lots", "line 13: pools[1].resources.cpu: 'lots' is not a quantity"),
        ("    pool: cpu", "    zone: a", "line 10: pools[1].nodeSelector: may select a node of pool h100 too"),
        ("key: muster.dev/pool, ", "", "line 8: pools[0].tolerations[0]: has no key and so tolerates every taint"),
        ("muster.dev/pool, ", "muster.dev/quarantine, ", "pools[0].tolerations[0]: muster.dev/quarantine marks"),
        ("muster.dev/pool, ", "muster.dev/joining, ", "line 8: pools[0].tolerations[0]: muster.dev/joining marks"),
        ("operator: Exists", "operator: Is", "line 8: pools[0].tolerations[0]: operator 'Is' is not valid"),
        ("  replicas: 0", "  replicas: 0\n  replicas: 1", "line 13: replicas is there twice; keep one"),
        ("nodeSelector: {pool: h100}", "nodeSelector: {}", "line 4: pools[0].nodeSelector: names no label"),
        ("pools:", "pools: [", "line 3: not YAML"),
    ],
)
def test_a_bad_configuration_is_refused_by_line(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigTextError) as refused:
        parse_config(GOOD.replace(old, new, 1))
    assert said in str(refused.value)
