"""When a node counts as broken: one that comes and goes counts once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, NodeCondition, NodeSpec, NodeStatus, Taint
from muster.teams.node_health import Wellness, well


def node(ready: bool, *, cordoned: bool = False, taint: str = "", name: str = "n") -> Node:
    taints = (Taint(key=taint, value="true", effect="NoSchedule"),) if taint else ()
    status = NodeStatus(conditions=(NodeCondition(type="Ready", status=str(ready)),))
    return Node(metadata=ObjectMeta(name=name), spec=NodeSpec(unschedulable=cordoned, taints=taints), status=status)


def test_cordoned_or_in_quarantine_is_not_well() -> None:
    assert well(node(True))
    assert not well(node(False))
    assert not well(node(True, cordoned=True))
    assert not well(node(True, taint="muster.dev/quarantine"))
    assert well(node(True, taint="muster.dev/pool"))
    assert not well(Node())


def test_a_short_absence_is_none() -> None:
    wellness = Wellness(10, 300)
    assert not wellness.look(node(True), 0)
    assert not wellness.look(node(False), 1)
    assert not wellness.look(node(True), 5)
    assert wellness.due(1000) == {}


def test_broken_after_a_while_and_healthy_after_a_longer_one() -> None:
    wellness = Wellness(10, 300)
    wellness.look(node(True), 0)
    wellness.look(node(False), 1)
    assert wellness.wake_at == 11
    assert wellness.due(10.9) == {}
    assert wellness.due(11) == {"n": True}
    assert wellness.look(node(True), 20)
    assert wellness.due(319) == {}
    assert wellness.due(320) == {"n": False}
    assert wellness.wake_at is None


def test_a_node_that_comes_and_goes_stays_broken() -> None:
    wellness = Wellness(10, 300)
    wellness.look(node(True), 0)
    changes = []
    for minute in range(60):
        now = 60.0 * minute
        wellness.look(node(False), now)
        changes += wellness.due(now + 30).items()
        wellness.look(node(True), now + 30)
        changes += wellness.due(now + 60).items()
    assert changes == [("n", True)]


def test_a_node_that_joins_is_healthy_once_it_is_ready() -> None:
    wellness = Wellness(10, 300)
    assert wellness.look(node(False), 0)
    assert not wellness.look(node(True), 20)


def test_a_node_that_is_gone_is_forgotten() -> None:
    wellness = Wellness(10, 300)
    wellness.look(node(True), 0)
    wellness.look(node(False), 1)
    wellness.forget("n")
    assert wellness.due(100) == {}
    assert wellness.look(node(False), 101)


@given(st.lists(st.tuples(st.floats(0.1, 400), st.booleans()), max_size=30))
def test_how_a_node_counts_never_changes_twice_within_the_shorter_wait(steps: list[tuple[float, bool]]) -> None:
    wellness = Wellness(10, 300)
    now, counted, changed_at = 0.0, wellness.look(node(True), 0), float("-inf")
    for seconds, ready in steps:
        for step in (0.5, 1.0):
            moment = now + seconds * step
            for broken in wellness.due(moment).values():
                assert broken != counted
                assert moment - changed_at >= 10 - 1e-9, "more than a rounding error too early"
                counted, changed_at = broken, moment
        now += seconds
        assert wellness.look(node(ready), now) == counted
