"""What must never happen to pods that have rules about other pods, against a reference that reads the rules plainly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict
from muster.scheduler.memo import matcher_for
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.place import Shortage, choose
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.state import ClusterState
from tests.unit.scheduler.rulebook import Book, Node, Spec
from tests.unit.scheduler.world import GPU, START, node

KEYS = ["rack", "zone", "host"]
APPS = ["a", "b"]
SPACES = {"default": {"team": "x"}, "other": {"team": "y"}}


@st.composite
def selectors(draw: st.DrawFn) -> dict[str, Any]:
    """About one app, several, or everybody."""
    return draw(
        st.sampled_from(
            [
                {"matchLabels": {"app": "a"}},
                {"matchLabels": {"app": "b"}},
                {},
                {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
                {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]},
                {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]},
            ]
        )
    )


@st.composite
def terms(draw: st.DrawFn) -> dict[str, Any]:
    term: dict[str, Any] = {"topologyKey": draw(st.sampled_from(KEYS)), "labelSelector": draw(selectors())}
    kind = draw(st.integers(0, 9))
    if kind == 0:
        term["namespaces"] = ["other"]
    elif kind == 1:
        term["namespaceSelector"] = draw(st.sampled_from([{}, {"matchLabels": {"team": "y"}}]))
    elif kind == 2:
        term["matchLabelKeys"] = ["app"]
    elif kind == 3:
        term["mismatchLabelKeys"] = ["app"]
    return term


@st.composite
def spreads(draw: st.DrawFn) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "maxSkew": draw(st.integers(1, 2)),
        "topologyKey": draw(st.sampled_from(KEYS)),
        "whenUnsatisfiable": draw(st.sampled_from(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"])),
        "labelSelector": draw(selectors()),
    }
    kind = draw(st.integers(0, 5))
    if kind == 0 and rule["whenUnsatisfiable"] == "DoNotSchedule":
        rule["minDomains"] = draw(st.integers(2, 3))
    elif kind == 1:
        rule["nodeAffinityPolicy"] = draw(st.sampled_from(["Honor", "Ignore"]))
    elif kind == 2:
        rule["nodeTaintsPolicy"] = draw(st.sampled_from(["Honor", "Ignore"]))
    elif kind == 3:
        rule["matchLabelKeys"] = ["app"]
    return rule


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    affinity: dict[str, Any] = {}
    for kind in ("podAffinity", "podAntiAffinity"):
        required = draw(st.lists(terms(), max_size=2)) if draw(st.integers(0, 2)) == 0 else []
        wished = draw(st.lists(terms(), max_size=1)) if draw(st.integers(0, 4)) == 0 else []
        if required or wished:
            affinity[kind] = {
                "requiredDuringSchedulingIgnoredDuringExecution": required,
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 10, "podAffinityTerm": term} for term in wished
                ],
            }
    if affinity:
        spec["affinity"] = affinity
    if draw(st.integers(0, 2)) == 0:
        spec["topologySpreadConstraints"] = draw(st.lists(spreads(), min_size=1, max_size=2))
    return spec


def pod(name: str, labels: dict[str, str], spec: dict[str, Any], *, gpus: int, namespace: str = "default") -> Spec:
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {GPU: str(gpus)}}}], **spec},
        "status": {"phase": "Pending"},
    }


@st.composite
def nodes(draw: st.DrawFn, most: int) -> list[Node]:
    found = []
    for number in range(draw(st.integers(1, most))):
        labels = {"host": f"n{number}"}
        for key in ("rack", "zone"):
            value = draw(st.sampled_from(["1", "2", "3", ""]))
            if value:
                labels[key] = value
        taints = draw(st.sampled_from([[], [], [], ["t"]]))
        found.append({"name": f"n{number}", "labels": labels, "gpus": draw(st.integers(1, 3)), "taints": taints})
    return found


@st.composite
def clusters(draw: st.DrawFn, size: int, most: int) -> tuple[list[Node], list[tuple[Spec, str]], list[Spec]]:
    """Nodes, pods on them (of other schedulers), and the pods of one gang."""
    there = draw(nodes(most))
    pods: list[tuple[Spec, str]] = []
    for number in range(draw(st.integers(0, 3))):
        spec = draw(rules()) if draw(st.booleans()) else {}
        labels = draw(st.sampled_from([{"app": "a"}, {"app": "b"}, {}]))
        space = draw(st.sampled_from(["default", "default", "other"]))
        made = pod(f"there-{number}", labels, spec, gpus=0, namespace=space)
        if draw(st.integers(0, 2)) == 0:
            made["metadata"]["deletionTimestamp"] = "2023-11-14T22:13:20Z"
        pods.append((made, draw(st.sampled_from(there))["name"]))
    together = draw(st.booleans())
    kinds = [(draw(st.sampled_from(APPS)), draw(rules())) for _ in range(draw(st.integers(1, 2)))]
    extra: dict[str, Any] = {}
    if draw(st.integers(0, 3)) == 0:
        extra["nodeSelector"] = {"zone": "1"}
    if draw(st.integers(0, 3)) == 0:
        extra["tolerations"] = [{"key": "t", "operator": "Exists"}]
    gang = []
    for slot in range(draw(st.integers(1, size))):
        app, spec = draw(st.sampled_from(kinds))
        labels = {"app": app} | ({} if together else {"muster.dev/gang": "g", "muster.dev/slot": str(slot)})
        gang.append(pod(f"g-{slot}", labels, {**spec, **extra, "schedulerName": "muster"}, gpus=1))
    return there, pods, gang


def place(
    there: list[Node], pods: list[tuple[Spec, str]], gang: list[Spec], *, late: bool = False
) -> dict[int, str] | Shortage:
    """What `choose` says of the gang. `late`: the others come after the gang's pods, so rules are learnt late."""
    state = ClusterState()
    for name, labels in SPACES.items():
        state.set_namespace(name, labels, START)
    for item in there:
        taints = [{"key": key, "effect": "NoSchedule"} for key in item["taints"]]
        state.set_node(node(item["name"], gpus=item["gpus"], labels=item["labels"], taints=taints))
    others = [{**made, "spec": {**made["spec"], "nodeName": where}} for made, where in pods]
    for made in [*gang, *others] if late else [*others, *gang]:
        state.set_pod(from_dict(made, Pod), START)
    groups: dict[PodClass, list[int]] = {}
    for slot, made in enumerate(gang):
        cls = state.pods[made["metadata"]["uid"]].cls
        assert cls is not None
        assert not cls.refusals
        groups.setdefault(cls, []).append(slot)
    snapshot = state.snapshot()
    return choose(Ledger(snapshot.buckets), matcher_for(snapshot), groups)


PROFILE = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=300)


@pytest.mark.slow
@PROFILE
@given(clusters(size=6, most=8), st.booleans())
def test_never_a_pod_where_a_rule_forbids_it(
    cluster: tuple[list[Node], list[tuple[Spec, str]], list[Spec]], late: bool
) -> None:
    """The chosen nodes can be reached pod by pod, every rule holding at each step, and hold evenly at the end."""
    there, pods, gang = cluster
    chosen = place(there, pods, gang, late=late)
    if isinstance(chosen, Shortage):
        return
    assert sorted(chosen) == list(range(len(gang)))
    book = Book(there, pods, SPACES)
    steps = [(made, chosen[slot]) for slot, made in enumerate(gang)]
    assert book.is_reached(steps), ("no order of binding reaches it", chosen)
    assert all(book.is_even(made, name, [*pods, *steps], counted=True) for made, name in steps), chosen


@pytest.mark.slow
@PROFILE
@given(clusters(size=3, most=4), st.booleans())
def test_never_refused_while_there_is_a_way(
    cluster: tuple[list[Node], list[tuple[Spec, str]], list[Spec]], late: bool
) -> None:
    """So small a cluster is searched to the end: a gang waits only if no placement meets all rules."""
    there, pods, gang = cluster
    chosen = place(there, pods, gang, late=late)
    way = next(Book(there, pods, SPACES).ways(gang), None)
    assert isinstance(chosen, Shortage) == (way is None), (chosen, way)
    assert not (isinstance(chosen, Shortage) and chosen.gave_up)


def labelled(*racks: str) -> list[Node]:
    return [
        {"name": f"n{number}", "labels": {"host": f"n{number}", "rack": rack}, "gpus": 3, "taints": []}
        for number, rack in enumerate(racks)
    ]


def test_never_two_pods_on_a_node_that_keep_apart_by_host() -> None:
    term = {"topologyKey": "host", "labelSelector": {"matchLabels": {"app": "a"}}}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    gang = [pod(f"g-{slot}", {"app": "a"}, {**spec, "schedulerName": "muster"}, gpus=1) for slot in range(4)]
    chosen = place(labelled("1", "1", "2"), [], gang[:3])
    assert not isinstance(chosen, Shortage)
    assert sorted(chosen.values()) == ["n0", "n1", "n2"]
    assert isinstance(place(labelled("1", "1", "2"), [], gang), Shortage)


def test_never_a_gang_that_ends_uneven_because_of_members_without_the_rule() -> None:
    rule = {
        "maxSkew": 1,
        "topologyKey": "rack",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}},
        "minDomains": 2,
    }
    labels = {"app": "a"}
    even = pod("g-0", labels, {"topologySpreadConstraints": [rule], "schedulerName": "muster"}, gpus=1)
    other = pod("g-1", labels, {"schedulerName": "muster"}, gpus=1)
    assert isinstance(place(labelled("1", "1"), [], [even, other]), Shortage)
    assert not isinstance(place(labelled("1", "2"), [], [even, other]), Shortage)
