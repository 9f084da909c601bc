from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.kube.objects.affinity import (
    Affinity,
    LabelSelector,
    LabelSelectorRequirement,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Toleration,
)
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, Taint
from muster.kube.objects.pod import PodSpec
from muster.kube.objects.selectors import (
    Requirement,
    Selector,
    SelectorError,
    from_label_selector,
    node_term_matches,
    parse_field_selector,
    parse_selector,
    pod_fits_node_selection,
)
from muster.kube.objects.taints import find_untolerated_taint, tolerates

LABELS = {"app": "train", "tier": "gpu", "rank": "12", "example.com/zone": "a"}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True),
        ("app=train", True),
        ("app==train, tier = gpu", True),
        ("app!=train", False),
        ("other!=x", True),
        ("app in (a, train)", True),
        ("app in (a,b)", False),
        ("app notin (a,b)", True),
        ("absent notin (a)", True),
        ("app", True),
        ("!app", False),
        ("!absent", True),
        ("rank>11", True),
        ("rank>12", False),
        ("rank<13", True),
        ("app>1", False),
        ("example.com/zone=a,app in (train),!gone", True),
        ("absent=", False),
    ],
)
def test_label_selectors(text: str, selected: bool) -> None:
    selector = parse_selector(text)
    assert selector.matches(LABELS) is selected
    assert parse_selector(str(selector)) == selector


@pytest.mark.parametrize("text", ["a=b,", ",", "a in b", "a in (b", "=b", "a=b=c", "-a", "a>b", "a b", "a in (-)"])
def test_bad_label_selectors_say_what_is_wrong(text: str) -> None:
    with pytest.raises(SelectorError, match="label selector"):
        parse_selector(text)


names = st.from_regex(r"[a-z]([a-z0-9.]{0,5}[a-z0-9])?", fullmatch=True)
requirements = st.one_of(
    st.builds(
        Requirement,
        names,
        st.sampled_from(["In", "NotIn"]),
        st.sets(names, min_size=1, max_size=3).map(lambda s: tuple(sorted(s))),
    ),
    st.builds(Requirement, names, st.sampled_from(["Exists", "DoesNotExist"])),
)


@given(st.lists(requirements, max_size=4).map(tuple), st.dictionaries(names, names, max_size=4))
def test_written_selectors_read_back_the_same(rules: tuple[Requirement, ...], labels: dict[str, str]) -> None:
    selector = Selector(rules)
    again = parse_selector(str(selector))
    assert again == selector
    assert again.matches(labels) is all(rule.matches(labels) for rule in rules)


@given(st.dictionaries(names, names, max_size=4), st.dictionaries(names, names, max_size=4))
def test_equality_selects_exactly_supersets(wanted: dict[str, str], labels: dict[str, str]) -> None:
    assert from_label_selector(LabelSelector(match_labels=wanted)).matches(labels) is (wanted.items() <= labels.items())


def test_no_label_selector_selects_nothing_and_an_empty_one_everything() -> None:
    assert not from_label_selector(None).matches({})
    assert from_label_selector(LabelSelector()).matches({})
    rule = LabelSelectorRequirement(key="app", operator="NotIn", values=("x",))
    assert from_label_selector(LabelSelector(match_expressions=(rule,))).matches({})


def test_field_selectors() -> None:
    pod = {"spec.nodeName": "n1", "status.phase": "Running"}
    selector = parse_field_selector("spec.nodeName=n1,,status.phase!=Failed,metadata.name==")
    assert selector.matches(lambda path: pod.get(path, ""))
    assert not parse_field_selector("spec.nodeName!=n1").matches(lambda path: pod.get(path, ""))


def test_field_selector_has_escapes_and_the_order_of_the_api_server() -> None:
    assert parse_field_selector(r"b!=x\\y,a=p\,q\=r, c==").terms == (
        (" c", True, ""),
        ("a", True, "p,q=r"),
        ("b", False, r"x\y"),
    )
    assert parse_field_selector("").terms == parse_field_selector(",").terms == ()
    assert parse_field_selector("=").terms == (("", True, ""),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec.nodeName", "invalid selector: 'spec.nodeName'; can't understand 'spec.nodeName'"),
        ("a=1,b", "invalid selector: 'a=1,b'; can't understand 'b'"),
        ("a=1=2", "invalid field selector: unescaped character in value: 61"),
        (r"a=\y", r"invalid field selector: invalid escape sequence: \y"),
        ("a=1\\", "invalid field selector: invalid escape sequence: \\"),
    ],
)
def test_field_selector_is_refused_as_the_api_server_does(text: str, message: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_field_selector(text)
    assert str(caught.value) == message


def _term(key: str, operator: str, *values: str) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_expressions=(NodeSelectorRequirement(key=key, operator=operator, values=values),))


@pytest.mark.parametrize(
    ("term", "matches"),
    [
        (NodeSelectorTerm(), False),
        (_term("rank", "Gt", "5"), True),
        (_term("rank", "Lt", "5"), False),
        (_term("app", "Gt", "5"), False),
        (_term("absent", "NotIn", "a"), True),
        (_term("absent", "DoesNotExist"), True),
        (_term("app", "In", "x", "train"), True),
    ],
)
def test_node_selector_terms(term: NodeSelectorTerm, matches: bool) -> None:
    assert node_term_matches(term, LABELS, "n1") is matches


def test_a_lost_node_is_excluded_by_name() -> None:
    not_n1 = NodeSelectorRequirement(key="metadata.name", operator="NotIn", values=("n1",))
    required = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(not_n1,)),))
    affinity = Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required))
    spec = PodSpec(affinity=affinity, node_selector={"pool": "a"})
    nodes = [Node(metadata=ObjectMeta(name=name, labels={"pool": "a"})) for name in ("n1", "n2")]
    assert [pod_fits_node_selection(spec, node) for node in nodes] == [False, True]
    assert not pod_fits_node_selection(spec, Node(metadata=ObjectMeta(name="n3")))


@pytest.mark.parametrize(
    ("toleration", "borne"),
    [
        (Toleration(key="gpu", value="true"), True),
        (Toleration(key="gpu", operator="Equal", value="true", effect="NoSchedule"), True),
        (Toleration(key="gpu", operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(key="gpu", value="false"), False),
        (Toleration(key="gpu", operator="Exists", effect="NoExecute"), False),
        (Toleration(key="other", operator="Exists"), False),
        (Toleration(key="gpu", operator="Wrong", value="true"), False),
    ],
)
def test_tolerations(toleration: Toleration, borne: bool) -> None:
    assert tolerates(toleration, Taint(key="gpu", value="true", effect="NoSchedule")) is borne


effects = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])
taints = st.builds(Taint, key=names, value=names, effect=effects)
tolerations = st.builds(
    Toleration, key=names, value=names, operator=st.sampled_from(["", "Equal", "Exists"]), effect=effects
)


@given(st.lists(taints, max_size=4), st.lists(tolerations, max_size=4))
def test_a_node_is_open_exactly_when_every_hard_taint_is_borne(found: list[Taint], borne: list[Toleration]) -> None:
    hard = [taint for taint in found if taint.effect != "PreferNoSchedule"]
    first = next((taint for taint in hard if not any(tolerates(toleration, taint) for toleration in borne)), None)
    assert find_untolerated_taint(found, borne) == first
    assert find_untolerated_taint(found, [Toleration(operator="Exists")]) is None
