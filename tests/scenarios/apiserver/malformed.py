"""Malformed requests, generated: wrong types at each path of common objects, broken bodies, patches and parameters."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
NAMESPACE = "malformed"
NS = f"/api/v1/namespaces/{NAMESPACE}"
JOBS = f"/apis/muster.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
DRY = "?dryRun=All"


@dataclasses.dataclass(frozen=True)
class Malformed:
    """One request; `name` says what is wrong with it."""

    name: str
    method: str
    path: str
    body: bytes = b""
    content_type: str = "application/json"


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "malformed",
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "finalizers": ["example.com/f"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": True}],
    },
    "spec": {
        "activeDeadlineSeconds": 60,
        "containers": [
            {
                "name": "c",
                "image": "i",
                "command": ["x"],
                "env": [{"name": "A", "value": "b"}],
                "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1"}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "readinessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1},
            }
        ],
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
                }
            }
        },
        "hostNetwork": False,
        "priorityClassName": "",
    },
}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "malformed"},
    "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}], "unschedulable": True, "podCIDRs": []},
    "status": {
        "capacity": {"cpu": "8"},
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2027-01-01T00:00:00Z"}],
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {"bootID": "b"},
    },
}
LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "malformed"},
    "spec": {
        "holderIdentity": "h",
        "leaseDurationSeconds": 5,
        "leaseTransitions": 1,
        "renewTime": "2027-01-01T00:00:00.000000Z",
    },
}
EVENT = {
    "apiVersion": "v1",
    "kind": "Event",
    "metadata": {"name": "malformed"},
    "involvedObject": {"kind": "Pod", "name": "p", "namespace": NAMESPACE},
    "reason": "r",
    "message": "m",
    "count": 1,
    "firstTimestamp": "2027-01-01T00:00:00Z",
    "source": {"component": "c"},
}
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "malformed"}, "data": {"a": "b"}}
JOB = {
    "apiVersion": "muster.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "malformed", "labels": {"a": "b"}},
    "spec": {
        "replicas": 1,
        "image": "i",
        "command": ["x"],
        "env": [{"name": "A", "value": "b"}],
        "checkpoint": {"path": "/c"},
        "suspend": True,
        "template": {"metadata": {"labels": {"a": "b"}}},
    },
}
BINDING = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
EVICTION = {
    "apiVersion": "policy/v1",
    "kind": "Eviction",
    "metadata": {"name": "p"},
    "deleteOptions": {"gracePeriodSeconds": 1, "preconditions": {"uid": "u"}},
}
TOKEN = {
    "apiVersion": "authentication.k8s.io/v1",
    "kind": "TokenRequest",
    "spec": {"audiences": ["a"], "expirationSeconds": 600, "boundObjectRef": {"kind": "Pod", "name": "p"}},
}
WRONG: tuple[Any, ...] = (None, True, 5, 1.5, 10**30, "text", "", [], ["x"], [None], {}, {"x": {"y": 1}})

CREATED: tuple[tuple[str, str, Any], ...] = (
    ("pod", f"{NS}/pods", POD),
    ("node", "/api/v1/nodes", NODE),
    ("lease", LEASES, LEASE),
    ("event", f"{NS}/events", EVENT),
    ("configmap", f"{NS}/configmaps", CONFIG),
    ("job", JOBS, JOB),
    ("binding", f"{NS}/pods/p/binding", BINDING),
    ("eviction", f"{NS}/pods/p/eviction", EVICTION),
    ("token", f"{NS}/serviceaccounts/default/token", TOKEN),
)


def swapped(obj: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the object with each value replaced by one of each other type."""
    inner = list(obj.items()) if isinstance(obj, dict) else list(enumerate(obj)) if isinstance(obj, list) else []
    for key, value in inner:
        for wrong in WRONG:
            if type(wrong) is not type(value) or wrong in ([], {}, ""):
                made = copy.deepcopy(obj)
                made[key] = wrong
                yield ".".join(map(str, (*path, key))) + "=" + json.dumps(wrong), made
        for name, below in swapped(value, (*path, key)):
            made = copy.deepcopy(obj)
            made[key] = below
            yield name, made


def wrong_types() -> Iterator[Malformed]:
    """Creates of objects with one value of another type; nothing is stored."""
    for kind, path, good in CREATED:
        for name, made in swapped(good):
            yield Malformed(f"{kind} {name}", "POST", path + DRY, json.dumps(made).encode())


DEEP = b'{"a":' * 12_000 + b"1" + b"}" * 12_000
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "null": b"null",
    "list": b"[]",
    "number": b"5",
    "text": b'"x"',
    "half": b'{"metadata": {"name"',
    "latin-1": b'{"metadata": {"name": "\xff"}}',
    "utf-16": '{"metadata": {"name": "x"}}'.encode("utf-16"),
    "surrogate": b'{"metadata": {"name": "\\ud800"}}',
    "nul": b'{"metadata": {"name": "a\\u0000b"}}',
    "deep": DEEP,
    "deep list": b'{"metadata": {"name": "x"}, "data": ' + b"[" * 12_000 + b"]" * 12_000 + b"}",
    "deep name": b'{"metadata": {"name": ' + b"[" * 300 + b"]" * 300 + b"}}",
    "huge number": b'{"metadata": {"name": "x", "generation": 1e400}}',
    "NaN": b'{"metadata": {"name": "x", "generation": NaN}}',
    "kind {}": b'{"kind": {}, "metadata": {"name": "x"}}',
    "kind []": b'{"kind": [], "metadata": {"name": "x"}}',
    "kind false": b'{"kind": false, "metadata": {"name": "x"}}',
    "kind 5": b'{"kind": 5, "metadata": {"name": "x"}}',
    "apiVersion {}": b'{"apiVersion": {}, "metadata": {"name": "x"}}',
    "another kind": b'{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}',
    "another version": b'{"apiVersion": "v7", "metadata": {"name": "x"}}',
    "name ..": b'{"metadata": {"name": ".."}}',
    "name a/b": b'{"metadata": {"name": "a/b"}}',
    "name too long": b'{"metadata": {"name": "%s"}}' % (b"x" * 300),
    "another namespace": b'{"metadata": {"name": "x", "namespace": "other"}}',
    "resourceVersion": b'{"metadata": {"name": "x", "resourceVersion": "5"}}',
    "resourceVersion text": b'{"metadata": {"name": "x", "resourceVersion": "text"}}',
    "label": b'{"metadata": {"name": "x", "labels": {"a b": "c"}}}',
    "label value": b'{"metadata": {"name": "x", "labels": {"a": "-"}}}',
    "deletionTimestamp": b'{"metadata": {"name": "x", "deletionTimestamp": "2027-01-01T00:00:00Z"}}',
    "managedFields": b'{"metadata": {"name": "x", "managedFields": 5}}',
}


def broken_bodies() -> Iterator[Malformed]:
    """Bodies that are not objects of the path's kind."""
    for kind, path, _ in CREATED:
        for name, body in BODIES.items():
            yield Malformed(f"{kind} body {name}", "POST", path + DRY, body)
    for content_type in ("text/plain", "application/xml", "application/x-www-form-urlencoded", "a/b/c", ";"):
        yield Malformed(
            f"as {content_type}", "POST", f"{NS}/configmaps{DRY}", json.dumps(CONFIG).encode(), content_type
        )
    yield Malformed(
        "protobuf", "POST", f"{NS}/configmaps{DRY}", b"k8s\x00\xff\xff", "application/vnd.kubernetes.protobuf"
    )
    yield Malformed("protobuf of nothing", "POST", f"{NS}/configmaps{DRY}", b"", "application/vnd.kubernetes.protobuf")


CHANGED: tuple[tuple[str, str], ...] = (
    ("pod", f"{NS}/pods/p"),
    ("pod status", f"{NS}/pods/p/status"),
    ("node", "/api/v1/nodes/malformed-node"),
    ("node status", "/api/v1/nodes/malformed-node/status"),
    ("configmap", f"{NS}/configmaps/c"),
    ("lease", f"{LEASES}/l"),
    ("job", f"{JOBS}/j"),
    ("job status", f"{JOBS}/j/status"),
)
PATCHES: tuple[tuple[str, Any], ...] = (
    (MERGE, []),
    (MERGE, 5),
    (MERGE, None),
    (MERGE, {"metadata": 5}),
    (MERGE, {"metadata": []}),
    (MERGE, {"metadata": {"name": 5}}),
    (MERGE, {"metadata": {"name": "other"}}),
    (MERGE, {"metadata": {"namespace": "other"}}),
    (MERGE, {"metadata": {"uid": "other"}}),
    (MERGE, {"metadata": {"uid": {}}}),
    (MERGE, {"metadata": {"resourceVersion": "1"}}),
    (MERGE, {"metadata": {"resourceVersion": 5}}),
    (MERGE, {"metadata": {"labels": ["a"]}}),
    (MERGE, {"metadata": {"labels": {"a": 5}}}),
    (MERGE, {"metadata": {"labels": {"a b": "c"}}}),
    (MERGE, {"metadata": {"annotations": {"a": {}}}}),
    (MERGE, {"metadata": {"finalizers": "x"}}),
    (MERGE, {"metadata": {"finalizers": ["no slash"]}}),
    (MERGE, {"metadata": {"ownerReferences": {"x": 1}}}),
    (MERGE, {"metadata": {"ownerReferences": [{}]}}),
    (MERGE, {"metadata": {"generation": "x"}}),
    (MERGE, {"kind": {}}),
    (MERGE, {"kind": "Other"}),
    (MERGE, {"apiVersion": 5}),
    (MERGE, {"spec": 5}),
    (MERGE, {"spec": []}),
    (MERGE, {"status": 5}),
    (MERGE, {"status": []}),
    (MERGE, {"status": {"conditions": 5}}),
    (MERGE, {"status": {"conditions": [5]}}),
    (MERGE, {"status": {"phase": 5}}),
    (MERGE, {"status": {"phase": {}}}),
    (MERGE, {"data": 5}),
    (MERGE, {"data": {"a": 5}}),
    (STRATEGIC, []),
    (STRATEGIC, 5),
    (STRATEGIC, {"metadata": 5}),
    (STRATEGIC, {"metadata": {"labels": {"$patch": "unheard of"}}}),
    (STRATEGIC, {"metadata": {"labels": {"$patch": 5}}}),
    (STRATEGIC, {"$patch": "delete"}),
    (STRATEGIC, {"$patch": {}}),
    (STRATEGIC, {"$retainKeys": 5}),
    (STRATEGIC, {"spec": {"$retainKeys": ["nothing"]}}),
    (STRATEGIC, {"metadata": {"$deleteFromPrimitiveList/finalizers": 5}}),
    (STRATEGIC, {"metadata": {"$deleteFromPrimitiveList/labels": ["x"]}}),
    (STRATEGIC, {"metadata": {"$setElementOrder/finalizers": 5}}),
    (STRATEGIC, {"metadata": {"$setElementOrder/ownerReferences": [5]}}),
    (STRATEGIC, {"metadata": {"ownerReferences": [{"name": "no uid"}]}}),
    (STRATEGIC, {"spec": {"containers": [{"image": "no name"}]}}),
    (STRATEGIC, {"spec": {"containers": 5}}),
    (STRATEGIC, {"spec": {"containers": [5]}}),
    (STRATEGIC, {"spec": {"containers": [{"name": {}}]}}),
    (STRATEGIC, {"spec": {"taints": [{"key": 5}]}}),
    (STRATEGIC, {"status": {"conditions": [{"status": "no type"}]}}),
    (STRATEGIC, {"status": {"conditions": [{"type": 5}]}}),
    (JSON_PATCH, {}),
    (JSON_PATCH, 5),
    (JSON_PATCH, [5]),
    (JSON_PATCH, [None]),
    (JSON_PATCH, [[]]),
    (JSON_PATCH, [{}]),
    (JSON_PATCH, [{"op": "add"}]),
    (JSON_PATCH, [{"op": 5, "path": "/a", "value": 1}]),
    (JSON_PATCH, [{"op": "unheard of", "path": "/a"}]),
    (JSON_PATCH, [{"op": "add", "path": 5, "value": 1}]),
    (JSON_PATCH, [{"op": "add", "path": {}, "value": 1}]),
    (JSON_PATCH, [{"op": "add", "path": "no slash", "value": 1}]),
    (JSON_PATCH, [{"op": "add", "path": "", "value": 5}]),
    (JSON_PATCH, [{"op": "add", "path": "", "value": {}}]),
    (JSON_PATCH, [{"op": "remove", "path": ""}]),
    (JSON_PATCH, [{"op": "replace", "path": "", "value": []}]),
    (JSON_PATCH, [{"op": "remove", "path": "/metadata"}]),
    (JSON_PATCH, [{"op": "remove", "path": "/nowhere"}]),
    (JSON_PATCH, [{"op": "replace", "path": "/metadata/name", "value": 5}]),
    (JSON_PATCH, [{"op": "replace", "path": "/metadata", "value": 5}]),
    (JSON_PATCH, [{"op": "replace", "path": "/kind", "value": {}}]),
    (JSON_PATCH, [{"op": "add", "path": "/metadata/name/x", "value": 5}]),
    (JSON_PATCH, [{"op": "add", "path": "/metadata/finalizers/-", "value": "x"}]),
    (JSON_PATCH, [{"op": "add", "path": "/metadata/labels", "value": "x"}]),
    (JSON_PATCH, [{"op": "test", "path": "/metadata/name", "value": "other"}]),
    (JSON_PATCH, [{"op": "test", "path": "/metadata/nowhere", "value": {}}]),
    (JSON_PATCH, [{"op": "copy", "path": "/spec/x"}]),
    (JSON_PATCH, [{"op": "copy", "from": 5, "path": "/spec/x"}]),
    (JSON_PATCH, [{"op": "move", "from": "/metadata", "path": "/metadata/x"}]),
    (JSON_PATCH, [{"op": "copy", "from": "/metadata", "path": "/metadata/x"}] * 40),
    (JSON_PATCH, [{"op": "add", "path": "/spec/a", "value": 1}] * 10_001),
    (APPLY, "- x"),
    (APPLY, "5"),
    (APPLY, ""),
    (APPLY, "a: ["),
    (APPLY, "\x00"),
    (APPLY, "? [a]\n: b"),
    (APPLY, "5: x"),
    (APPLY, "a: &a [x]\nb: *a"),
    (APPLY, "metadata: 5"),
    (APPLY, "metadata: {name: 5}"),
    (APPLY, "metadata: {labels: {a: 2026-01-01}}"),
    (APPLY, "metadata: {labels: {a: .nan}}"),
    (APPLY, "metadata: {name: !!python/name:os.system }"),
    (APPLY, "{" * 2000),
    (APPLY, "[" * 2000),
    ("text/plain", {}),
    ("application/json", {}),
)


def broken_patches() -> Iterator[Malformed]:
    """Patches that cannot be applied, or whose result is not an object of its kind."""
    for kind, path in CHANGED:
        for index, (content_type, patch) in enumerate(PATCHES):
            text = patch if isinstance(patch, str) else json.dumps(patch)
            query = "?fieldManager=test&dryRun=All" if content_type == APPLY else DRY
            shown = text if len(text) < 80 else f"{text[:60]}..."
            yield Malformed(
                f"{kind} {content_type} {index} {shown}", "PATCH", path + query, text.encode(), content_type
            )
        for name, body in BODIES.items():
            yield Malformed(f"{kind} merge {name}", "PATCH", path + DRY, body, MERGE)
            yield Malformed(f"{kind} put {name}", "PUT", path + DRY, body)


VALUES = ("", "x", "-1", "1.5", "9" * 30, "%00", "%FF", "true", "[]", "²", "1_0")
PARAMETERS = (
    "limit",
    "continue",
    "watch",
    "resourceVersion",
    "timeoutSeconds",
    "allowWatchBookmarks",
    "labelSelector",
    "fieldSelector",
    "pretty",
    "unheardOf",
)
QUERIES = (
    "resourceVersionMatch=Exact",
    "resourceVersionMatch=x&resourceVersion=1",
    "resourceVersion=0&resourceVersionMatch=Exact",
    "sendInitialEvents=true",
    "sendInitialEvents=x&watch=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1",
    "watch=true&resourceVersion=x&timeoutSeconds=1",
    "watch=true&resourceVersion=-1&timeoutSeconds=1",
    "watch=true&timeoutSeconds=x",
    "labelSelector=a%20b%20c",
    "labelSelector=a%3D%3D%3Db",
    "labelSelector=a%20in%20(",
    "labelSelector=!",
    "labelSelector=,",
    "fieldSelector=spec.nowhere%3Dx",
    "fieldSelector=metadata.name",
    "fieldSelector=%3D",
    "fieldSelector=metadata.name%3E5",
    "continue=e30",
    "continue=bnVsbA",
    "continue=!!!",
)
PATHS = (
    "/api/v1/namespaces/malformed/pods/..%2Fx",
    "/api/v1/namespaces/malformed/pods/%2e%2e",
    "/api/v1/namespaces/malformed/pods/a%252Fb",
    "/api/v1/namespaces/malformed/pods/%FF",
    "/api/v1/namespaces/malformed/pods/%00",
    "/api/v1/namespaces//pods",
    "/api/v1/namespaces/malformed/pods/x/y/z",
    "/api/v1/namespaces/malformed/pods/p/nowhere",
    "/api/v1/nowhere",
    "/api/v9/pods",
    "/apis/nowhere/v1/x",
    "/apis//v1/x",
    "/nowhere",
    "/openapi/v3/nowhere",
)
DELETIONS: tuple[Any, ...] = (
    {"gracePeriodSeconds": "x"},
    {"gracePeriodSeconds": 1.5},
    {"gracePeriodSeconds": 10**30},
    {"gracePeriodSeconds": {}},
    {"propagationPolicy": "x"},
    {"propagationPolicy": 5},
    {"propagationPolicy": []},
    {"preconditions": 5},
    {"preconditions": {"uid": "other"}},
    {"preconditions": {"uid": 5}},
    {"preconditions": {"resourceVersion": 5}},
    {"orphanDependents": "x"},
    {"orphanDependents": True, "propagationPolicy": "Foreground"},
    {"dryRun": "All"},
    {"dryRun": ["x"]},
    {"kind": "Pod", "apiVersion": "v1"},
    [],
    5,
)


def broken_parameters() -> Iterator[Malformed]:
    """Query parameters, paths and options of deletions that make no sense."""
    for path in (f"{NS}/configmaps", JOBS):
        for parameter in PARAMETERS:
            for value in VALUES:
                more = "&timeoutSeconds=1" if parameter == "watch" else ""
                yield Malformed(f"{path} {parameter}={value}", "GET", f"{path}?{parameter}={value}{more}")
        for query in QUERIES:
            yield Malformed(f"{path} {query}", "GET", f"{path}?{query}")
    for path in PATHS:
        for method in ("GET", "PUT", "POST", "PATCH", "DELETE"):
            yield Malformed(f"{method} {path}", method, path, b"{}" if method in ("PUT", "POST", "PATCH") else b"")
    for parameter in ("dryRun=x", "fieldValidation=x", "fieldManager=%00", f"fieldManager={'x' * 200}"):
        yield Malformed(
            f"create {parameter}", "POST", f"{NS}/configmaps?{parameter}&dryRun=All", json.dumps(CONFIG).encode()
        )
        yield Malformed(f"patch {parameter}", "PATCH", f"{NS}/configmaps/c?{parameter}&dryRun=All", b"{}", MERGE)
    for path in (f"{NS}/configmaps/c", f"{NS}/pods/p", f"{JOBS}/j"):
        for options in DELETIONS:
            text = json.dumps(options)
            yield Malformed(f"delete {path} {text}", "DELETE", path + DRY, text.encode())
        for query in ("gracePeriodSeconds=x", "gracePeriodSeconds=1.5", "propagationPolicy=x", "orphanDependents=x"):
            yield Malformed(f"delete {path} {query}", "DELETE", f"{path}?{query}&dryRun=All")
    yield Malformed("apply without a manager", "PATCH", f"{NS}/configmaps/c{DRY}", b"{}", APPLY)
    yield Malformed("apply force=x", "PATCH", f"{NS}/configmaps/c{DRY}&fieldManager=t&force=x", b"{}", APPLY)
    yield Malformed("merge force", "PATCH", f"{NS}/configmaps/c{DRY}&force=true", b"{}", MERGE)
    yield Malformed("log of a pod without a node", "GET", f"{NS}/pods/p/log?container=x")
    yield Malformed("log tailLines", "GET", f"{NS}/pods/p/log?tailLines=x")


def requests() -> list[Malformed]:
    """All of them."""
    return [*wrong_types(), *broken_bodies(), *broken_patches(), *broken_parameters()]


EXISTING: tuple[tuple[str, Any], ...] = (
    ("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}),
    ("/api/v1/nodes", {"metadata": {"name": "malformed-node", "labels": {"a": "b"}}}),
    (f"{NS}/configmaps", {"metadata": {"name": "c"}, "data": {"a": "b"}}),
    (f"{NS}/pods", {**POD, "metadata": {"name": "p", "labels": {"a": "b"}}}),
    (LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "h"}}),
    (JOBS, {**JOB, "metadata": {"name": "j"}}),
)
"""What has to exist for requests that change or read an object, in the order in which it is created."""

KNOWN_DIFFERENCES = (
    r"pod spec\.containers\.0\.readinessProbe",
    r"pod spec\.affinity",
    r"job (apiVersion|kind)=",
    r"binding (target|metadata)",
    r"eviction deleteOptions.preconditions.uid=\"\"",
    r"token (spec\.boundObjectRef|body)",
    r"body (resourceVersion|another namespace)",
    r"event body (latin-1|surrogate|nul|name too long)",
    r"strategic-merge-patch",
    r"node( status)? .*\"namespace\"",
    r"node status .*(finalizers|ownerReferences)",
    r"job status .*(uid|kind)",
    r"(labelSelector|fieldSelector)=%",
    r"watch=true&resourceVersion=",
)
"""Requests that kube-apiserver judges otherwise (docs/embedded.md, "Malformed requests")."""
