"""Cases of what a cluster is run with: leases, nodes, quota, priorities, tokens, events."""

from __future__ import annotations

from typing import Any

from tests.scenarios.apiserver.operations import (
    LEASES,
    NS,
    PODS,
    STRATEGIC,
    Case,
    Step,
    delete,
    get,
    patch,
    pod,
    post,
    put,
    status_only,
)


def section(obj: Any, name: str) -> Any:
    return obj.get(name) or {}


def _one_cpu(name: str) -> Any:
    return pod(name, containers=[{"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}])


CASES = [
    Case(
        "leases",
        [
            post(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}}),
            put(LEASES + "/l", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "you"}}),
            put(LEASES + "/new", {"metadata": {"name": "new"}, "spec": {"holderIdentity": "you"}}),
            put(LEASES + "/l", {"metadata": {"name": "l", "resourceVersion": "1"}, "spec": {"holderIdentity": "you"}}),
            get(LEASES),
        ],
        status_only,
    ),
    Case(
        "nodes",
        [
            post("/api/v1/nodes", {"metadata": {"name": "diff-n1"}, "status": {"capacity": {"cpu": "4000m"}}}),
            patch("/api/v1/nodes/diff-n1", {"spec": {"taints": [{"key": "a", "effect": "Bogus"}]}}),
            patch("/api/v1/nodes/diff-n1", {"spec": {"unschedulable": True}}),
            patch(
                "/api/v1/nodes/diff-n1/status",
                {"status": {"conditions": [{"type": "MyCheck", "status": "True", "reason": "R", "message": "m"}]}},
                STRATEGIC,
            ),
            patch(
                "/api/v1/nodes/diff-n1/status",
                {"status": {"conditions": [{"type": "MyCheck", "status": "False"}]}},
                STRATEGIC,
            ),
            delete("/api/v1/nodes/diff-n1"),
        ],
        lambda answer: (
            [
                section(answer, "spec").get("unschedulable"),
                section(answer, "status").get("conditions"),
                section(answer, "status").get("capacity"),
                section(answer, "status").get("allocatable"),
            ]
            if isinstance(answer, dict) and answer.get("kind") == "Node"
            else status_only(answer)
        ),
        ("/api/v1/nodes/diff-n1",),
    ),
    Case(
        "quota",
        [
            post(
                NS + "/resourcequotas",
                {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2", "requests.cpu": "1500m"}}},
            ),
            # The real server refuses pods until a controller has counted what the namespace uses.
            Step("POST", PODS + "?dryRun=All", _one_cpu("a"), until=201),
            post(PODS, pod("a")),
            post(PODS, _one_cpu("a")),
            post(PODS, _one_cpu("b")),
        ],
        status_only,
    ),
    Case(
        "priority",
        [
            post("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "diff-high"}, "value": 1000}),
            post("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "system-x"}, "value": 1000}),
            post(
                "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "diff-huge"}, "value": 2000000000}
            ),
            patch("/apis/scheduling.k8s.io/v1/priorityclasses/diff-high", {"value": 5}),
            # The real server refuses pods of a class that it has not heard of yet.
            Step("POST", PODS + "?dryRun=All", pod("a", priorityClassName="diff-high"), until=201),
            post(PODS, pod("a", priorityClassName="diff-high")),
            post(PODS, pod("b", priorityClassName="diff-high", priority=7)),
            delete("/apis/scheduling.k8s.io/v1/priorityclasses/diff-high"),
        ],
        status_only,
        ("/apis/scheduling.k8s.io/v1/priorityclasses/diff-high",),
    ),
    Case(
        "tokens",
        [
            post(
                NS + "/serviceaccounts/default/token", {"spec": {"audiences": ["muster.dev"], "expirationSeconds": 600}}
            ),
            post(NS + "/serviceaccounts/default/token", {"spec": {"expirationSeconds": 5}}),
            post(NS + "/serviceaccounts/absent/token", {"spec": {}}),
            post(PODS, pod("a")),
            post(
                NS + "/serviceaccounts/default/token",
                {"spec": {"audiences": ["x"], "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "a"}}},
            ),
            post(
                NS + "/serviceaccounts/default/token",
                {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "a", "uid": "nope"}}},
            ),
        ],
        status_only,
    ),
    Case(
        "events",
        [
            post(
                NS + "/events",
                {
                    "metadata": {"name": "e1"},
                    "involvedObject": {"kind": "Pod", "name": "p", "namespace": "{ns}"},
                    "reason": "R",
                    "message": "m",
                    "type": "Normal",
                },
            ),
            post(
                "/apis/events.k8s.io/v1/namespaces/{ns}/events",
                {
                    "metadata": {"name": "e2"},
                    "regarding": {"kind": "Pod", "name": "p", "namespace": "{ns}"},
                    "reason": "R",
                    "note": "m",
                    "type": "Normal",
                    "action": "Act",
                    "eventTime": "2030-01-01T00:00:00.000000Z",
                    "reportingController": "muster.dev/x",
                    "reportingInstance": "i",
                },
            ),
            get(NS + "/events/e2"),
            get("/apis/events.k8s.io/v1/namespaces/{ns}/events/e1"),
            get(NS + "/events?fieldSelector=involvedObject.name=p,reason=R,type=Normal"),
            post(
                NS + "/events",
                {"metadata": {"name": "e3"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "other"}},
            ),
        ],
        status_only,
    ),
]
