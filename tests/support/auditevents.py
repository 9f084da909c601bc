"""Events of kube-apiserver's audit log, made for tests in the form that kube-apiserver 1.36 writes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

_ids = itertools.count(1)
START = 1_733_900_000.0


def event(
    verb: str,
    resource: str,
    at: float,
    *,
    group: str = "",
    version: str = "v1",
    user: str = "system:serviceaccount:monitoring:telemetry",
    agent: str = "telemetry/1.0",
    pod: str = "",
    node: str = "",
    namespace: str = "",
    name: str = "",
    subresource: str = "",
    query: dict[str, str] | None = None,
    code: int = 200,
    seconds: float = 0.01,
    stage: str = "ResponseComplete",
    audit_id: str = "",
    peer: str = "10.0.0.1",
) -> str:
    """One line: a request that began `at` seconds after START, and took `seconds`."""
    extra = {}
    if pod:
        extra["authentication.kubernetes.io/pod-name"] = [pod]
    if node:
        extra["authentication.kubernetes.io/node-name"] = [node]
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    path = "/".join(part for part in (f"{root}{scope}/{resource}", name, subresource) if part)
    parameters = dict(query or {}) | ({"watch": "true"} if verb == "watch" else {})
    return json.dumps(
        {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": audit_id or f"id-{next(_ids)}",
            "stage": stage,
            "requestURI": path + (f"?{urlencode(parameters)}" if parameters else ""),
            "verb": verb,
            "user": {"username": user, "uid": "u", "groups": ["system:authenticated"], "extra": extra},
            "sourceIPs": [peer],
            "userAgent": agent,
            "objectRef": {
                "resource": resource,
                "apiVersion": version,
                **({"apiGroup": group} if group else {}),
                **({"namespace": namespace} if namespace else {}),
                **({"name": name} if name else {}),
                **({"subresource": subresource} if subresource else {}),
            },
            "responseStatus": {"metadata": {}, "code": code},
            "requestReceivedTimestamp": _time(START + at),
            "stageTimestamp": _time(START + at + (0.0 if stage == "ResponseStarted" else seconds)),
            "annotations": {"authorization.k8s.io/decision": "allow"},
        }
    )


def polling(
    nodes: int, seconds: float, every_s: float, resource: str = "pods", *, first: float = 0.0, step_s: float = 0.0
) -> list[str]:
    """A DaemonSet with a pod on each node that lists all objects again and again; a pod starts each `step_s`."""
    lines = []
    for number in range(nodes):
        at = first + number * (step_s or every_s / nodes)
        while at < first + seconds:
            lines.append((at, event("list", resource, at, pod=f"telemetry-{number}", node=f"node-{number}")))
            at += every_s
    return [line for _, line in sorted(lines)]


def informers(nodes: int, seconds: float, *, first: float = 0.0) -> list[str]:
    """A DaemonSet with one watch for each pod, from resourceVersion 0, that selects the pods of its own node."""
    lines: list[str] = []
    for number in range(nodes):
        node = f"node-{number}"
        query = {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}
        lines += [
            event(
                "watch",
                "pods",
                first + number * 0.1,
                query=query,
                stage=stage,
                seconds=seconds,
                audit_id=f"watch-{first}-{number}",
                agent="quiet/1.0",
                pod=f"quiet-{number}",
                node=node,
                user="system:serviceaccount:monitoring:quiet",
            )
            for stage in ("ResponseStarted", "ResponseComplete")
        ]
    return lines


def text(lines: Sequence[str]) -> bytes:
    """The lines as a file."""
    return "".join(line + "\n" for line in lines).encode()


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
