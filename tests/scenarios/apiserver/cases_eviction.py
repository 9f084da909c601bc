"""Cases of evictions: with and without disruption budgets, in dry runs, by UID."""

from __future__ import annotations

from typing import Any

from tests.scenarios.apiserver.operations import PODS, STRATEGIC, Case, Step, get, patch, pod, post, status_only

BUDGETS = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"


def budget(name: str, **spec: Any) -> Any:
    spec.setdefault("selector", {"matchLabels": {"app": "x"}})
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}


def counted(name: str, **status: int) -> Step:
    """Wait until the budget's status says this."""
    return Step("GET", f"{BUDGETS}/{name}", until_status=status)


def evict(name: str, uid: str = "", *, dry_run: bool = False) -> Step:
    body: dict[str, Any] = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    if uid:
        body["deleteOptions"] = {"preconditions": {"uid": uid}}
    return post(f"{PODS}/{name}/eviction" + ("?dryRun=All" if dry_run else ""), body)


def running(name: str, *, ready: bool = True) -> list[Step]:
    """A pod that runs; no kubelet ever ends it."""
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"name": "nowhere"}}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"status": {"phase": "Running", "conditions": conditions}}
    return [
        post(PODS, pod(name)),
        post(f"{PODS}/{name}/binding", binding),
        patch(f"{PODS}/{name}/status", status, STRATEGIC),
    ]


def said(answer: Any) -> Any:
    """Of what is not an error only whether the pod is there and is being deleted."""
    if isinstance(answer, dict) and answer.get("kind") == "Pod":
        conditions = answer["status"].get("conditions", ())
        reasons = sorted(each.get("reason", "") for each in conditions if each["type"] == "DisruptionTarget")
        return {"deleted": "deletionTimestamp" in answer["metadata"], "reasons": reasons}
    if isinstance(answer, dict) and answer.get("kind") == "PodDisruptionBudget":
        return answer["spec"]
    return status_only(answer)


CASES = [
    Case(
        "eviction",
        [
            evict("absent"),
            *running("a"),
            evict("a", dry_run=True),
            get(PODS + "/a"),
            evict("a", "00000000-0000-0000-0000-000000000000"),
            evict("a", "00000000-0000-0000-0000-000000000000", dry_run=True),
            get(PODS + "/a"),
            evict("a"),
            get(PODS + "/a"),
            evict("a"),
            *running("starts")[:2],
            evict("starts"),
            get(PODS + "/starts"),
            post(PODS, pod("waits")),
            evict("waits", dry_run=True),
            evict("waits"),
            get(PODS + "/waits"),
        ],
        said,
    ),
    Case(
        "eviction_within_a_budget",
        [
            *running("a"),
            *running("b"),
            post(BUDGETS, budget("one", minAvailable=1)),
            counted("one", disruptionsAllowed=1, currentHealthy=2),
            evict("a", dry_run=True),
            evict("b", dry_run=True),
            get(PODS + "/a"),
            evict("a"),
            get(PODS + "/a"),
            counted("one", disruptionsAllowed=0, currentHealthy=1),
            evict("b", dry_run=True),
            evict("b"),
            get(PODS + "/b"),
            evict("a"),
        ],
        said,
    ),
    Case(
        "eviction_of_pods_that_are_not_ready",
        [
            *running("a"),
            *running("b", ready=False),
            post(BUDGETS, budget("met", minAvailable=1)),
            counted("met", disruptionsAllowed=0, currentHealthy=1),
            evict("a", dry_run=True),
            evict("b", dry_run=True),
            patch(f"{BUDGETS}/met", {"spec": {"minAvailable": 2}}),
            counted("met", desiredHealthy=2, observedGeneration=2),
            evict("b", dry_run=True),
            patch(f"{BUDGETS}/met", {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}),
            counted("met", observedGeneration=3),
            evict("b", dry_run=True),
            evict("b"),
        ],
        said,
    ),
    Case(
        "eviction_under_two_budgets",
        [
            *running("a"),
            post(BUDGETS, budget("one", minAvailable=0)),
            post(BUDGETS, budget("other", minAvailable=0, selector={})),
            counted("one", disruptionsAllowed=1),
            counted("other", disruptionsAllowed=1),
            evict("a", dry_run=True),
            evict("a"),
            get(PODS + "/a"),
        ],
        said,
    ),
]
