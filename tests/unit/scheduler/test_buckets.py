"""Nodes with the same room are given in the order of their names, whatever came and went in between, and not twice."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from muster.scheduler.nodes import sorted_names
from muster.scheduler.nodes.bucket import RESORT_SHARE, Bucket
from muster.scheduler.nodes.node_class import BucketKey, NodeClass
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.plan import WritePlacement
from muster.scheduler.pods.pod_class import PodClass
from tests.unit.scheduler.world import World

CLASS = NodeClass(0, {}, (), False, "", {"pods": 1})
KEY: BucketKey = (0, (("pods", 1),), frozenset())
POD = PodClass(0, {"pods": 1}, (), {}, None, (), (), (), frozenset(), True, ())
NAMES = [f"node-{number:02}" for number in range(40)]


def bucket() -> Bucket:
    return Bucket(KEY, CLASS, {"pods": 1}, frozenset())


MANY = [f"node-{number:03}" for number in range(12 * RESORT_SHARE)]


@given(st.lists(st.lists(st.sampled_from(MANY), max_size=12), max_size=8), st.booleans(), st.sampled_from([2, 5, 1000]))
def test_names_are_never_out_of_order_nor_missing(rounds: list[list[str]], full: bool, block: int) -> None:
    with patch.object(sorted_names, "BLOCK", block):
        names_stay_in_order(rounds, full)


def names_stay_in_order(rounds: list[list[str]], full: bool) -> None:
    nodes = bucket()
    for name in reversed(MANY if full else []):
        nodes.add(name)
    nodes.sort()
    assert list(chain(*nodes.in_order())) == sorted(nodes.names)
    for toggled in rounds:
        for name in toggled:
            (nodes.remove if name in nodes.names else nodes.add)(name)
        assert list(chain(*nodes.in_order())) == sorted(nodes.names), "not kept in order yet"
        nodes.sort()
        assert list(chain(*nodes.in_order())) == sorted(nodes.names)


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=12), st.sampled_from([1, 3, 1000]))
def test_the_first_names_are_never_others_than_those_of_all(wants: list[tuple[int, bool]], block: int) -> None:
    nodes = bucket()
    for name in reversed(NAMES):
        nodes.add(name)
    with patch.object(sorted_names, "BLOCK", block):
        nodes.sort()
    ledger = Ledger({KEY: nodes})
    for count, from_behind in wants:
        assert list(ledger.first(nodes, count)) == ledger.names(nodes)[:count]
        taken = ledger.names(nodes)[-count:] if from_behind else list(ledger.first(nodes, count))
        if taken:
            ledger.take(nodes, taken, POD, 1)
        ledger.adopt(ledger.fork())
    assert list(ledger.first(nodes, 99)) == ledger.names(nodes)


@given(st.lists(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=3), max_size=6))
def test_one_plan_never_gives_more_than_a_node_has(gangs: list[list[int]]) -> None:
    """Members of a gang may differ: GPUs of each, on nodes of 8."""
    world = World()
    world.add_nodes("a", "b", "c")
    for number, members in enumerate(gangs):
        for slot, gpus in enumerate(members):
            world.add_member(f"gang{number}", slot, len(members), gpus=gpus)
        world.now += 1.0
    used: Counter[str] = Counter()
    for action in world.decide().actions:
        assert isinstance(action, WritePlacement)
        members = gangs[int(action.placement.spec.gang.removeprefix("gang"))]
        for slot in action.placement.spec.slots:
            used[slot.node] += members[slot.slot]
    assert all(gpus <= 8 for gpus in used.values()), used
