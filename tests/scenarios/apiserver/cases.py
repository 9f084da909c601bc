"""Operations whose answers must be the same on the embedded and the real API server."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json-patch+json"
NS = "/api/v1/namespaces/{ns}"


@dataclasses.dataclass(frozen=True)
class Step:
    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    compare: bool = True  # else only the code is compared
    until: int = 0  # only wait until the path answers with this code


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    steps: list[Step]
    reduce: Callable[[Any], Any] = lambda answer: answer
    cleanup: tuple[str, ...] = ()


def get(path: str, **headers: str) -> Step:
    return Step("GET", path, headers=headers)


def post(path: str, body: Any) -> Step:
    return Step("POST", path, body)


def put(path: str, body: Any) -> Step:
    return Step("PUT", path, body)


def patch(path: str, body: Any, content_type: str = MERGE) -> Step:
    return Step("PATCH", path, body, content_type)


def delete(path: str, body: Any = None) -> Step:
    return Step("DELETE", path, body)


def config(name: str, **data: str) -> Any:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str, /, **spec: Any) -> Any:
    spec.setdefault("containers", [{"name": "c", "image": "busybox"}])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "x"}}, "spec": spec}


CM, PODS = NS + "/configmaps", NS + "/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
_AGE = re.compile(r"^\d+s$")
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


def status_only(answer: Any) -> Any:
    """Keep what matters of an error: code, reason and message."""
    if isinstance(answer, dict) and answer.get("kind") == "Status":
        return {key: answer.get(key) for key in ("code", "reason", "message", "details", "status")}
    return answer


def message_head(answer: Any) -> Any:
    """Drop what follows the first line of a message (a diff the server adds)."""
    if isinstance(answer, dict) and answer.get("kind") == "Status":
        return {"code": answer.get("code"), "reason": answer.get("reason"), "message": answer["message"].split("\n")[0]}
    return answer


def table_cells(answer: Any) -> Any:
    if isinstance(answer, dict) and answer.get("kind") == "Table":
        columns = [
            [item["name"], item["type"], item["format"], item["priority"]] for item in answer["columnDefinitions"]
        ]
        return [
            columns,
            [
                [_AGE.sub("AGE", cell) if isinstance(cell, str) else cell for cell in row["cells"]]
                for row in answer["rows"]
            ],
            sorted(answer["rows"][0]["object"]),
        ]
    return answer


CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.diff.example.com"},
    "spec": {
        "group": "diff.example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["size"],
                                "properties": {
                                    "size": {"type": "integer", "minimum": 1, "maximum": 10},
                                    "mode": {"type": "string", "enum": ["A", "B"], "default": "A"},
                                    "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                                    "port": {"x-kubernetes-int-or-string": True},
                                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                    "env": {"type": "object", "additionalProperties": {"type": "string"}},
                                    "deep": {
                                        "type": "object",
                                        "properties": {"on": {"type": "boolean", "default": True}},
                                        "default": {},
                                    },
                                    "parts": {
                                        "type": "array",
                                        "maxItems": 2,
                                        "items": {
                                            "type": "object",
                                            "required": ["key"],
                                            "properties": {"key": {"type": "string"}},
                                        },
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["key"],
                                    },
                                },
                            },
                            "status": {
                                "type": "object",
                                "properties": {
                                    "ready": {"type": "integer"},
                                    "conditions": {
                                        "type": "array",
                                        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                    },
                                },
                            },
                        },
                    }
                },
            }
        ],
    },
}
WIDGETS = "/apis/diff.example.com/v1/namespaces/{ns}/widgets"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def widget(name: str, /, **spec: Any) -> Any:
    return {"apiVersion": "diff.example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


CASES = [
    Case(
        "crud",
        [
            post(CM, config("a", x="1")),
            post(CM, config("a", x="1")),
            get(CM + "/a"),
            get(CM + "/absent"),
            put(CM + "/a", config("a", x="2")),
            put(CM + "/a", config("b", x="2")),
            put(CM + "/absent", config("absent", x="2")),
            put(CM + "/a", {**config("a", x="3"), "metadata": {"name": "a", "resourceVersion": "1"}}),
            put(
                CM + "/a",
                {**config("a", x="3"), "metadata": {"name": "a", "uid": "11111111-1111-1111-1111-111111111111"}},
            ),
            patch(CM + "/a", {"data": {"x": None, "y": "4"}, "metadata": {"labels": {"k": "v"}}}),
            patch(CM + "/a", {"metadata": {"resourceVersion": "1"}}),
            patch(CM + "/a", [{"op": "add", "path": "/data/z", "value": "5"}], JSON),
            patch(CM + "/a", [{"op": "test", "path": "/data/z", "value": "6"}], JSON),
            patch(CM + "/a", [{"op": "remove", "path": "/data/missing"}], JSON),
            patch(CM + "/a", {"data": {"q": "1"}}, STRATEGIC),
            Step("POST", CM + "?dryRun=All", config("dry", x="1")),
            get(CM + "/dry"),
            delete(CM + "/a", {"preconditions": {"uid": "nope"}}),
            delete(CM + "/a", {"preconditions": {"resourceVersion": "1"}}),
            delete(CM + "/a"),
            delete(CM + "/a"),
        ],
        status_only,
    ),
    Case(
        "bad_requests",
        [
            post(CM, config("Upper_Case")),
            post(CM, {**config("a"), "metadata": {"name": "a", "labels": {"bad key!": "x"}}}),
            post(CM, {**config("a"), "metadata": {"name": "a", "labels": {"k": "bad value!"}}}),
            post(CM, {**config("a"), "metadata": {"name": "a", "annotations": {"bad key!": "x"}}}),
            post(CM, {**config("a"), "metadata": {"name": "a", "namespace": "other"}}),
            post(CM, {**config("a"), "metadata": {}}),
            post(CM, {**config("a"), "apiVersion": "v2"}),
            post(CM, {**config("a", **{"bad key": "x"})}),
            post("/api/v1/namespaces/absent/configmaps", config("a")),
            post("/api/v1/namespaces", {"metadata": {"name": "a.b"}}),
            get("/api/v1/namespaces/{ns}/nothings"),
            Step("GET", CM + "?labelSelector=a%20in", compare=False),
            get(CM + "?fieldSelector=data.x=1"),
            get(PODS + "?fieldSelector=spec.foo=1"),
            get(PODS + "?limit=x"),
            Step("PATCH", CM + "/a", {}, "application/unknown"),
            Step("DELETE", "/api/v1/namespaces/default"),
        ],
        status_only,
    ),
    Case(
        "generate_name",
        [
            post(CM, {"metadata": {"generateName": "gen-"}, "data": {}}),
            get(CM + "?fieldSelector=metadata.name!=kube-root-ca.crt"),
        ],
    ),
    Case(
        "pod_defaults",
        [
            post(PODS, pod("plain")),
            post(
                PODS,
                pod(
                    "rich",
                    restartPolicy="Never",
                    hostNetwork=True,
                    automountServiceAccountToken=False,
                    nodeSelector={"a": "b"},
                    tolerations=[{"key": "k", "operator": "Exists"}],
                    volumes=[
                        {"name": "e"},
                        {"name": "h", "hostPath": {"path": "/x"}},
                        {"name": "cm", "configMap": {"name": "c"}},
                        {
                            "name": "t",
                            "projected": {
                                "sources": [{"serviceAccountToken": {"path": "token", "audience": "muster.dev"}}]
                            },
                        },
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1024Mi"}},
                    ],
                    initContainers=[{"name": "i", "image": "a/b:1.2"}],
                    containers=[
                        {
                            "name": "c",
                            "image": "registry:5000/a/b@sha256:" + "0" * 64,
                            "command": ["x"],
                            "resources": {
                                "limits": {"cpu": "2000m", "memory": "1024Mi", "nvidia.com/gpu": "8"},
                                "requests": {"cpu": "500m"},
                            },
                            "ports": [{"containerPort": 80}],
                            "env": [
                                {"name": "A", "value": "b"},
                                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                            ],
                            "readinessProbe": {"httpGet": {"port": 80}},
                            "volumeMounts": [{"name": "e", "mountPath": "/e"}],
                        }
                    ],
                ),
            ),
            get(PODS + "?fieldSelector=spec.nodeName=,status.phase=Pending"),
            get(PODS + "?labelSelector=app%20in%20(x,y),!zz"),
        ],
    ),
    Case(
        "pod_refused",
        [
            post(PODS, pod("a", containers=[])),
            post(PODS, pod("a", containers=[{"name": "C_", "image": "x"}])),
            post(PODS, pod("a", containers=[{"name": "c"}])),
            post(PODS, pod("a", containers=[{"name": "c", "image": "x"}, {"name": "c", "image": "x"}])),
            post(PODS, pod("a", restartPolicy="Sometimes")),
            post(PODS, pod("a", serviceAccountName="absent")),
            post(PODS, pod("a", priorityClassName="absent")),
            post(
                PODS,
                pod("a", containers=[{"name": "c", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]),
            ),
            post(PODS, pod("a", containers=[{"name": "c", "image": "x", "env": [{"name": "", "value": "1"}]}])),
            post(
                PODS,
                pod(
                    "a",
                    containers=[
                        {"name": "c", "image": "x", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}
                    ],
                ),
            ),
            post(
                PODS,
                pod("a", containers=[{"name": "c", "image": "x", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]),
            ),
            post(PODS, pod("a", tolerations=[{"operator": "Equal", "value": "x"}])),
            post(PODS, pod("a", activeDeadlineSeconds=0)),
        ],
        status_only,
    ),
    Case(
        "pod_update",
        [
            post(PODS, pod("a")),
            patch(PODS + "/a", {"spec": {"nodeName": "other"}}),
            patch(PODS + "/a", {"spec": {"restartPolicy": "Never"}}),
            patch(PODS + "/a", {"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}}, STRATEGIC),
            patch(PODS + "/a", {"spec": {"containers": [{"name": "d", "image": "busybox:2"}]}}, STRATEGIC),
            patch(PODS + "/a", {"spec": {"activeDeadlineSeconds": 100}}),
            patch(PODS + "/a/status", {"status": {"phase": "Running"}, "spec": {"restartPolicy": "Never"}}, STRATEGIC),
            patch(PODS + "/a", {"status": {"phase": "Failed"}}, STRATEGIC),
            get(PODS + "/a"),
        ],
        message_head,
    ),
    Case(
        "binding",
        [
            post(PODS, pod("a")),
            post(PODS + "/absent/binding", {"metadata": {"name": "absent"}, "target": {"kind": "Node", "name": "n"}}),
            post(
                PODS + "/a/binding",
                {
                    "metadata": {"name": "a", "uid": "11111111-1111-1111-1111-111111111111"},
                    "target": {"kind": "Node", "name": "n"},
                },
            ),
            post(PODS + "/a/binding", {"metadata": {"name": "a"}, "target": {"kind": "Node"}}),
            post(PODS + "/a/binding", {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "diff-node"}}),
            post(PODS + "/a/binding", {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "diff-node"}}),
            get(PODS + "/a"),
            delete(PODS + "/a"),
            get(PODS + "/a"),
            delete(PODS + "/a"),
            delete(PODS + "/a", {"gracePeriodSeconds": 5}),
            delete(PODS + "/a", {"gracePeriodSeconds": 0}),
            get(PODS + "/a"),
        ],
        status_only,
    ),
    Case(
        "pod_delete",
        [
            post(PODS, pod("a")),
            delete(PODS + "/a"),
            get(PODS + "/a"),
            post(PODS, {**pod("b"), "metadata": {"name": "b", "finalizers": ["x.dev/y"]}}),
            delete(PODS + "/b"),
            get(PODS + "/b"),
            patch(PODS + "/b", {"metadata": {"finalizers": ["x.dev/y", "x.dev/z"]}}),
            patch(PODS + "/b", {"metadata": {"finalizers": None}}),
            get(PODS + "/b"),
            post(PODS, pod("c")),
            post(PODS + "/c/binding", {"metadata": {"name": "c"}, "target": {"kind": "Node", "name": "diff-node"}}),
            patch(PODS + "/c/status", {"status": {"phase": "Succeeded"}}),
            delete(PODS + "/c"),
            get(PODS + "/c"),
        ],
        status_only,
    ),
    Case(
        "finalizers",
        [
            post(CM, {**config("a"), "metadata": {"name": "a", "finalizers": ["x.dev/y"]}}),
            delete(CM + "/a", {"propagationPolicy": "Foreground"}),
            Step("GET", CM + "/a", until=200),
            patch(CM + "/a", {"metadata": {"finalizers": None}}),
            Step("GET", CM + "/a", until=404),
            post(CM, config("b")),
            delete(CM + "/b", {"propagationPolicy": "Sideways"}),
        ],
        status_only,
    ),
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
            Step("GET", NS + "/resourcequotas/q", until=200),
            post(PODS, pod("a")),
            post(PODS, pod("a", containers=[{"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}])),
            post(PODS, pod("b", containers=[{"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}])),
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
            post(PODS, pod("a", priorityClassName="diff-high")),
            post(PODS, pod("b", priorityClassName="diff-high", priority=7)),
            delete("/apis/scheduling.k8s.io/v1/priorityclasses/diff-high"),
        ],
        status_only,
        ("/apis/scheduling.k8s.io/v1/priorityclasses/diff-high",),
    ),
    Case(
        "custom",
        [
            Step("POST", CRDS, CRD, compare=False),
            Step("GET", WIDGETS, until=200),
            post(WIDGETS, widget("a", size=3)),
            post(WIDGETS, widget("a", size=3)),
            post(WIDGETS, widget("bad", size=11, mode="C", name="toolong", port=True, env={"a": 1})),
            post(WIDGETS, widget("bad", size="three")),
            post(WIDGETS, widget("bad")),
            post(WIDGETS, widget("bad", size=1, parts=[{"key": "a"}, {"key": "a"}])),
            post(WIDGETS, widget("bad", size=1, parts=[{"key": "a"}, {"key": "b"}, {"key": "c"}])),
            post(WIDGETS, widget("bad", size=1, parts=[{}])),
            post(WIDGETS + "?fieldValidation=Strict", widget("bad", size=1, bogus=2)),
            post(WIDGETS + "?fieldValidation=Warn", widget("warned", size=1, bogus=2, free={"any": {"thing": 1}})),
            put(WIDGETS + "/a", widget("a", size=4)),
            patch(WIDGETS + "/a", {"spec": {"size": 5}, "status": {"ready": 9}}),
            patch(WIDGETS + "/a/status", {"spec": {"size": 6}, "status": {"ready": 1}}),
            patch(WIDGETS + "/a", {"metadata": {"labels": {"x": "y"}}}),
            patch(WIDGETS + "/a?fieldValidation=Strict", {"spec": {"bogus": 6}}),
            patch(WIDGETS + "/a", {"spec": {"size": 5}}, STRATEGIC),
            get(WIDGETS),
            get(WIDGETS + "?fieldSelector=spec.size=1"),
            delete(WIDGETS + "/a"),
            get("/apis/diff.example.com/v1"),
        ],
        status_only,
        (CRDS + "/widgets.diff.example.com",),
    ),
    Case(
        "tables",
        [
            post(PODS, pod("a")),
            get(PODS, **TABLE),
            get(PODS + "/a", **TABLE),
            get(CM, **TABLE),
            get("/api/v1/namespaces/{ns}", **TABLE),
            get(NS + "/serviceaccounts", **TABLE),
        ],
        table_cells,
    ),
    Case(
        "partial_metadata",
        [
            post(CM, config("a", x="1")),
            get(CM + "/a", Accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
            get(
                CM + "?fieldSelector=metadata.name=a",
                Accept="application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
            ),
        ],
    ),
    Case(
        "paging",
        [
            *[post(CM, config(f"c{index}")) for index in range(3)],
            get(CM + "?limit=2&fieldSelector=metadata.name!=kube-root-ca.crt"),
            get(CM + "?limit=2"),
            get(CM + "?continue=bogus"),
            get(CM + "?resourceVersion=999999999"),
            get(CM + "?resourceVersionMatch=Exact"),
            get(CM + "?watch=true&sendInitialEvents=true"),
            get(CM + "?watch=true&resourceVersion=abc"),
            get(CM + "?resourceVersion=abc"),
            Step("DELETE", CM + "?labelSelector=none=none"),
        ],
        lambda answer: (
            {
                "items": [item["metadata"]["name"] for item in answer["items"]],
                "more": "continue" in answer["metadata"],
                "remaining": answer["metadata"].get("remainingItemCount"),
            }
            if isinstance(answer, dict) and "items" in answer
            else status_only(answer)
        ),
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
    Case(
        "secrets",
        [
            post(NS + "/secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}}),
            post(NS + "/secrets", {"metadata": {"name": "t"}, "data": {"bad key": "Yg=="}}),
            patch(NS + "/secrets/s", {"type": "other"}),
            patch(NS + "/secrets/s", {"immutable": True}),
            patch(NS + "/secrets/s", {"stringData": {"a": "c"}}),
            get(NS + "/secrets?fieldSelector=type=Opaque"),
        ],
        status_only,
    ),
]


def section(obj: Any, name: str) -> Any:
    return obj.get(name) or {}
