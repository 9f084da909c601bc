"""What an operation on an API server is, and which parts of its answer are compared."""

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
    may_exist: bool = False  # creates an object of the whole server, which another test may have created
    until: int = 0  # only wait until the path answers with this code
    until_status: dict[str, Any] = dataclasses.field(default_factory=dict)  # only wait until its status says this


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
