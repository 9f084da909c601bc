"""Which joining nodes are held back and which are opened, and how that is said."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.configtext import ConfigTextError
from muster.fleet.joins.account import account_of, lines
from muster.fleet.joins.config import JoinsConfig, parse_config
from muster.fleet.joins.decide import decide, to_hold
from muster.fleet.joins.record import (
    ANNOTATION_JOIN_PACE,
    ANNOTATION_JOIN_RECORD,
    JOINING,
    JoinRecord,
    PaceRecord,
    pace_of,
    record_of,
    view_of,
)
from muster.fleet.joins.snapshot import JoiningNode
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, NodeCondition, NodeSpec, NodeStatus, Taint
from muster.kube.objects.struct import encode

NODES = st.lists(
    st.builds(
        JoiningNode,
        name=st.integers(0, 99).map(lambda number: f"n{number:02}"),
        ready=st.booleans(),
        held=st.booleans(),
        recorded=st.booleans(),
        created_at=st.integers(0, 3).map(float),
    ),
    unique_by=lambda node: node.name,
    max_size=40,
)


@given(NODES, st.integers(0, 12))
def test_never_more_than_allowed_are_opened_and_none_that_is_not_ready(
    nodes: list[JoiningNode], allowance: int
) -> None:
    plan = decide(nodes, allowance)
    ready = {node.name for node in nodes if node.held and node.ready}
    assert len(plan.opens) == min(allowance, len(ready))
    assert set(plan.opens) <= ready
    assert plan.waiting == len(ready) - len(plan.opens)
    assert plan.coming == sum(node.held and not node.ready for node in nodes)


@given(NODES, st.integers(1, 12))
def test_no_node_is_overtaken_by_one_that_came_later(nodes: list[JoiningNode], allowance: int) -> None:
    plan = decide(nodes, allowance)
    came = {node.name: node.created_at for node in nodes}
    left = [node.created_at for node in nodes if node.held and node.ready and node.name not in plan.opens]
    assert all(came[name] <= each for name in plan.opens for each in left)


@pytest.mark.parametrize(
    ("changed", "held"),
    [
        ({}, True),
        ({"ready": True}, False),
        ({"held": True}, False),
        ({"recorded": True}, False),
        ({"created_at": 9.0}, False),
        ({"labels": {"pool": "cpu"}}, False),
    ],
)
def test_only_a_new_node_on_which_nothing_can_be_yet_is_held_back(changed: dict[str, object], held: bool) -> None:
    fields = {"ready": False, "held": False, "created_at": 10.0, "labels": {"pool": "h100"}, **changed}
    assert to_hold(JoiningNode(name="n", **fields), {"pool": "h100"}, 10.0) is held  # type: ignore[arg-type]


def node(*taints: Taint, name: str = "n", record: JoinRecord | None = None, ready: bool = True) -> Node:
    annotations = {ANNOTATION_JOIN_RECORD: encode(record).decode()} if record is not None else {}
    return Node(
        metadata=ObjectMeta(name=name, annotations=annotations, creation_timestamp=datetime(2026, 1, 2, tzinfo=UTC)),
        spec=NodeSpec(taints=taints),
        status=NodeStatus(conditions=(NodeCondition(type="Ready", status="True" if ready else "False"),)),
    )


PACE = PaceRecord(4, 5.0, "Overloaded", "the API server refused 9 of 100 requests", 70, 0)


def said(it: Node, nodes: Iterable[Node] = (), pace: PaceRecord | None = None) -> list[str]:
    account = account_of(it, nodes, pace)
    return list(lines(account)) if account is not None else []


def test_operators_see_why_a_node_waits_and_how_it_joined() -> None:
    assert said(node()) == []
    assert said(node(JOINING), pace=PACE) == [
        "joining: held back since 2026-01-02T00:00:00Z: it is next; open to pods in about 5 s",
        "pace: 4 nodes in 5 s, 70 wait; the API server refused 9 of 100 requests",
        "autoscalers may have 0 nodes on the way at once",
    ]
    waits = node(JOINING, record=JoinRecord("2026-01-02T00:00:07Z"), ready=False)
    assert said(waits) == [
        "joining: held back since 2026-01-02T00:00:07Z: "
        "it is not Ready yet, and only nodes that are Ready are opened to pods",
        "pace: unknown; are joins switched on (fleet.joins.enabled of the chart)?",
    ]
    opened = JoinRecord("2026-01-02T00:00:07Z", "2026-01-02T00:01:00Z", "5 nodes in 5 s: the API server has room")
    assert record_of(node(record=opened)) == opened
    assert said(node(record=opened)) == [
        "joined: waited since 2026-01-02T00:00:07Z, opened to pods 2026-01-02T00:01:00Z",
        "pace then: 5 nodes in 5 s: the API server has room",
    ]


@given(st.integers(1, 40), st.integers(1, 7), st.data())
def test_a_node_is_opened_when_its_account_says_where_the_pace_stays(
    count: int, pace: int, data: st.DataObject
) -> None:
    nodes = [node(JOINING, name=f"n{number:02}", ready=data.draw(st.booleans())) for number in range(count)]
    record = PaceRecord(pace, 5.0, "Room", "the API server has room", count)
    left, periods = nodes, 0
    promised = {each.name: account_of(each, nodes, record) for each in nodes}
    while any(each.ready for each in left):
        periods += 1
        opened = decide(map(view_of, left), pace).opens
        for name in opened:
            account = promised.pop(name)
            assert account is not None
            assert account.opens_in_seconds == periods * 5.0
        left = [each for each in left if each.name not in opened]
    assert all(each is not None and each.opens_in_seconds is None for each in promised.values())


def test_a_pace_that_cannot_be_read_is_none() -> None:
    assert pace_of(None) is None
    assert pace_of(ConfigMap()) is None
    meta = ObjectMeta(annotations={ANNOTATION_JOIN_PACE: encode(PACE).decode()})
    assert pace_of(ConfigMap(metadata=meta)) == PACE
    meta = ObjectMeta(annotations={ANNOTATION_JOIN_PACE: "{"})
    assert pace_of(ConfigMap(metadata=meta)) is None


def test_a_configuration_is_read() -> None:
    assert parse_config("") == JoinsConfig()
    text = "nodeSelector: {pool: h100}\nperiodSeconds: 2\nstartNodes: 3\nmaxNodes: 9\n"
    assert parse_config(text) == JoinsConfig({"pool": "h100"}, 2.0, 3, 9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("startNodes: 0", "line 1: startNodes: 0 is not possible; write 1 or more"),
        ("startNodes: 9\nmaxNodes: 3", "line 2: maxNodes: 3 is less than startNodes, 9"),
        ("\nperiodSeconds: 0", "line 2: periodSeconds: 0 is not possible; write 1 to 300"),
        ("pace: 3", "line 1: pace: unknown field; known here: maxNodes"),
        ("maxNodes: many", "line 1: maxNodes: Expected `int`, got `str`"),
        ("- 1", "line 1: Expected `object`, got `array`"),
        ("maxNodes: 9\nmaxNodes: 8", "line 2: maxNodes is there twice; keep one"),
    ],
)
def test_a_bad_configuration_is_refused_by_line(text: str, said: str) -> None:
    with pytest.raises(ConfigTextError) as refused:
        parse_config(text)
    assert said in str(refused.value)
