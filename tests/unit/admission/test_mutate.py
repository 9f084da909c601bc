"""What the webhook fills in: exact pods, and what it must never do."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.admission.mutate import Home, Rules, mutate
from muster.admission.review import NewPod
from muster.embedded.apiserver.verbs.patches import json_patch

KEY = "muster.dev/team"
RULES = Rules(KEY)
RED = Home(team="red")
EQUAL = {"key": KEY, "operator": "Equal", "value": "red", "effect": "NoSchedule"}
ANY = {"key": KEY, "operator": "Exists", "effect": "NoSchedule"}
IN_RED = {"key": KEY, "operator": "In", "values": ["red"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
GPU = {"key": "gpu", "operator": "Exists"}
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u1", "controller": True}

Json = dict[str, Any]


def pod(labels: Json | None = None, **spec: Any) -> Json:
    metadata: Json = {"name": "p", **({"labels": labels} if labels else {})}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c"}], **spec}}


def affinity(*terms: Json) -> Json:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def filled(body: Json, home: Home = RED, *, without_nodes: bool = False) -> Json:
    """The pod as the API server has it afterwards."""
    operations = mutate(msgspec.convert(body, NewPod), home, RULES, without_nodes)
    changed: Json = json_patch(copy.deepcopy(body), msgspec.to_builtins(operations))
    return changed


def test_a_pod_of_a_team_gets_label_toleration_and_affinity() -> None:
    assert filled(pod()) == pod({KEY: "red"}, tolerations=[EQUAL], affinity=affinity({"matchExpressions": [IN_RED]}))


def test_a_pod_of_no_team_stays_as_it_is() -> None:
    assert filled(pod(), Home()) == pod()


def test_the_team_it_names_goes_before_the_namespaces() -> None:
    made = filled(pod({KEY: "blue"}))
    assert made["metadata"]["labels"] == {KEY: "blue"}
    assert made["spec"]["tolerations"] == [{**EQUAL, "value": "blue"}]


def test_a_team_without_nodes_uses_the_rest() -> None:
    rest = {"key": KEY, "operator": "DoesNotExist"}
    assert filled(pod(), without_nodes=True) == pod({KEY: "red"}, affinity=affinity({"matchExpressions": [rest]}))


def test_every_term_keeps_to_the_team() -> None:
    fields = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}
    made = filled(pod(affinity=affinity({"matchExpressions": [GPU]}, fields)))
    assert made["spec"]["affinity"] == affinity(
        {"matchExpressions": [GPU, IN_RED]}, {**fields, "matchExpressions": [IN_RED]}
    )


def test_empty_selector_term_still_matches_nothing() -> None:
    made = filled(pod(affinity=affinity({}, {"matchExpressions": [GPU]})))
    assert made["spec"]["affinity"] == affinity({}, {"matchExpressions": [GPU, IN_RED]})


@pytest.mark.parametrize(
    "affinity",
    [{"podAntiAffinity": {}}, {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}],
    ids=["about pods", "preferred"],
)
def test_other_affinity_stays(affinity: Json) -> None:
    made = filled(pod(affinity=affinity))["spec"]["affinity"]
    assert made["nodeAffinity"][REQUIRED] == {"nodeSelectorTerms": [{"matchExpressions": [IN_RED]}]}
    for kind, said in affinity.items():
        assert made[kind].items() >= said.items()


@pytest.mark.parametrize("operator", ["DoesNotExist", "NotIn"])
def test_team_expression_of_a_term_is_kept(operator: str) -> None:
    said = affinity({"matchExpressions": [{"key": KEY, "operator": operator}]})
    assert filled(pod(affinity=said))["spec"]["affinity"] == said


def test_a_node_selector_for_the_team_is_enough() -> None:
    assert "affinity" not in filled(pod(nodeSelector={KEY: "red"}))["spec"]


@pytest.mark.parametrize("there", [EQUAL, ANY, {"operator": "Exists"}, {"key": KEY, "value": "red"}])
def test_a_toleration_that_is_there_is_not_repeated(there: Json) -> None:
    assert filled(pod(tolerations=[there]))["spec"]["tolerations"] == [there]


@pytest.mark.parametrize("there", [{**EQUAL, "value": "blue"}, {**ANY, "effect": "PreferNoSchedule"}, {"key": "x"}])
def test_a_toleration_of_something_else_is_not_enough(there: Json) -> None:
    assert filled(pod(tolerations=[there]))["spec"]["tolerations"] == [there, EQUAL]


def test_a_borrower_tolerates_every_team_at_low_priority_and_is_kept_to_none() -> None:
    label = {"muster.dev/borrowed": "true"}
    made = filled(pod(label, priority=0, preemptionPolicy="PreemptLowerPriority"))
    assert made == pod({**label, KEY: "red"}, tolerations=[ANY], priorityClassName="muster-borrower")


def test_the_class_a_borrower_names_stands() -> None:
    made = filled(pod({"muster.dev/borrowed": "true"}, priorityClassName="low", priority=-1))
    assert (made["spec"]["priorityClassName"], made["spec"]["priority"]) == ("low", -1)


def test_a_borrower_with_a_softer_toleration_gets_the_one_it_needs() -> None:
    soft = {**ANY, "effect": "PreferNoSchedule"}
    assert filled(pod({"muster.dev/borrowed": "true"}, tolerations=[soft]))["spec"]["tolerations"] == [soft, ANY]


def test_a_daemonsets_pod_is_only_labelled() -> None:
    body = pod()
    body["metadata"]["ownerReferences"] = [{**OWNER, "apiVersion": "apps/v1", "kind": "DaemonSet"}]
    made = filled(body)
    assert made["metadata"]["labels"] == {KEY: "red"}
    assert made["spec"] == body["spec"]


def test_a_static_pods_mirror_is_left_alone() -> None:
    body = pod()
    body["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    assert filled(body) == body


@pytest.mark.parametrize(
    ("labels", "home", "before", "after"),
    [
        ({}, Home(ours=True), "default-scheduler", "muster"),
        ({}, Home(ours=True), "", "muster"),
        ({}, Home(ours=True), "theirs", "theirs"),
        ({"muster.dev/gang": "g"}, Home(), "default-scheduler", "muster"),
        ({}, Home(), "default-scheduler", "default-scheduler"),
    ],
)
def test_scheduler(labels: Json, home: Home, before: str, after: str) -> None:
    body = pod(labels, **({"schedulerName": before} if before else {}))
    assert filled(body, home)["spec"]["schedulerName"] == after


def test_a_gang_of_one_template_gets_slots_and_its_owners_uid() -> None:
    body = pod({"muster.dev/gang": "g", "batch.kubernetes.io/job-completion-index": "3"})
    body["metadata"]["ownerReferences"] = [OWNER]
    made = filled(body, Home())["metadata"]
    assert made["labels"]["muster.dev/slot"] == "3"
    assert made["annotations"] == {"muster.dev/gang-uid": "u1"}


def test_the_slot_that_is_there_stands() -> None:
    labels = {"muster.dev/gang": "g", "muster.dev/slot": "1", "apps.kubernetes.io/pod-index": "3"}
    assert filled(pod(labels), Home())["metadata"]["labels"] == labels


KEYS = st.sampled_from([KEY, "gpu", "a/b~c"])
VALUES = st.sampled_from(["red", "blue", "x"])
EXPRESSIONS = st.fixed_dictionaries(
    {"key": KEYS, "operator": st.sampled_from(["In", "Exists", "DoesNotExist"])}, optional={"values": st.lists(VALUES)}
)
TERMS = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.lists(EXPRESSIONS, max_size=2),
        "matchFields": st.lists(st.just({"key": "metadata.name", "operator": "In", "values": ["n"]}), max_size=1),
    },
)
TOLERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": KEYS,
        "operator": st.sampled_from(["Exists", "Equal"]),
        "value": VALUES,
        "effect": st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
    },
)
NODE_AFFINITY = st.fixed_dictionaries(
    {},
    optional={
        REQUIRED: st.fixed_dictionaries({"nodeSelectorTerms": st.lists(TERMS, min_size=1, max_size=3)}),
        "preferredDuringSchedulingIgnoredDuringExecution": st.just([{"weight": 1, "preference": {}}]),
    },
)
LABELS = st.dictionaries(
    st.sampled_from([KEY, "muster.dev/borrowed", "muster.dev/gang", "apps.kubernetes.io/pod-index", "x/y"]),
    st.sampled_from(["true", "red", "3"]),
)
PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": LABELS,
                "annotations": st.dictionaries(st.sampled_from(["a", "muster.dev/gang-uid"]), VALUES),
                "ownerReferences": st.lists(
                    st.builds(
                        lambda kind, controller: {**OWNER, "kind": kind, "controller": controller},
                        st.sampled_from(["Job", "DaemonSet"]),
                        st.booleans(),
                    ),
                    max_size=2,
                ),
            },
        ),
        "spec": st.fixed_dictionaries(
            {"schedulerName": st.sampled_from(["default-scheduler", "theirs"])},
            optional={
                "affinity": st.fixed_dictionaries({}, optional={"nodeAffinity": NODE_AFFINITY}),
                "tolerations": st.lists(TOLERATIONS, max_size=3),
                "nodeSelector": st.dictionaries(KEYS, VALUES),
                "priorityClassName": VALUES,
            },
        ),
    }
)
HOMES = st.builds(Home, team=st.sampled_from(["", "red"]), ours=st.booleans())


def kept(before: Any, after: Any, where: str = "") -> None:
    """Whatever was said is still said, at its place."""
    if where == "/spec/schedulerName" and before == "default-scheduler":
        return  # the API server's word, not the user's
    if isinstance(before, dict):
        for key, value in before.items():
            assert key in after, f"{where}/{key} is gone"
            kept(value, after[key], f"{where}/{key}")
    elif isinstance(before, list):
        assert len(after) >= len(before), f"{where} is shorter"
        for position, value in enumerate(before):
            kept(value, after[position], f"{where}/{position}")
    else:
        assert after == before, where


@given(PODS, HOMES, st.booleans())
def test_nothing_that_was_written_is_ever_removed_or_changed(body: Json, home: Home, without_nodes: bool) -> None:
    kept(body, filled(body, home, without_nodes=without_nodes))


@given(PODS, HOMES, st.booleans())
def test_asked_again_it_never_adds_anything(body: Json, home: Home, without_nodes: bool) -> None:
    once = filled(body, home, without_nodes=without_nodes)
    assert mutate(msgspec.convert(once, NewPod), home, RULES, without_nodes) == []


@given(PODS)
def test_no_term_of_a_teams_pod_is_ever_silent_about_teams(body: Json) -> None:
    made = filled(body)
    owners = body["metadata"].get("ownerReferences", ())
    controllers = [each["kind"] for each in owners if each["controller"]]
    if controllers[:1] == ["DaemonSet"] or made["metadata"]["labels"].get("muster.dev/borrowed") == "true":
        return
    if KEY in made["spec"].get("nodeSelector", {}):
        return
    terms = made["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    for term in terms:
        expressions = term.get("matchExpressions") or []
        assert any(each["key"] == KEY for each in expressions) or not (expressions or term.get("matchFields")), terms
