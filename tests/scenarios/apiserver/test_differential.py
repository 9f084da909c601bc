"""The same operations on the embedded server and on the real kube-apiserver, answers compared.

What differs by nature (UIDs, versions, times, field managers) is replaced before comparing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.scenarios.apiserver.cases import CASES
from tests.scenarios.apiserver.operations import Case, Step
from tests.support.apiserver import Api
from tests.support.controlplane import RealCluster
from tests.support.waiting import eventually

VOLATILE = {
    "uid": "UID",
    "resourceVersion": "VERSION",
    "creationTimestamp": "TIME",
    "deletionTimestamp": "TIME",
    "lastTransitionTime": "TIME",
    "timeAdded": "TIME",
    "token": "TOKEN",
    "expirationTimestamp": "TIME",
}
DROPPED = {"managedFields", "selfLink", "storageVersionHash"}
_TOKEN_VOLUME = re.compile(r"kube-api-access-[a-z0-9]{5}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_VERSION = re.compile(r"(resource version: |current: |in record \()\d+")
_PATCHED = re.compile(r'Invalid value: "\{.*": strict', re.DOTALL)
_GENERATED = re.compile(r"\bgen-[bcdfghjklmnpqrstvwxz2456789]{5}\b")


def _settled(value: dict[str, Any]) -> dict[str, Any]:
    """Bring into one order what the real server leaves to chance or says twice."""
    value = dict(value)
    if isinstance(value.get("causes"), list):
        causes = {json.dumps(cause, sort_keys=True): cause for cause in value["causes"]}
        value["causes"] = [causes[key] for key in sorted(causes)]
    if value.get("kind") == "Status" and value.get("reason") == "Invalid" and ": [" in value.get("message", ""):
        head, _, rest = value["message"].partition(": [")
        value["message"] = [head, *sorted(set(rest.rstrip("]").split(", ")))]
    if isinstance(value.get("verbs"), list):
        value["verbs"] = sorted(value["verbs"])
    if isinstance(value.get("items"), list) and str(value.get("kind", "")).endswith("List"):
        # The embedded server's bytes are shared by lists and watches, so items of built-in kinds also say their kind.
        value["items"] = [
            {key: part for key, part in item.items() if key not in ("kind", "apiVersion")} for item in value["items"]
        ]
    return value


def normalised(value: Any) -> Any:
    if isinstance(value, dict):
        value = _settled(value)
        return {
            key: VOLATILE[key] if key in VOLATILE and item is not None else normalised(item)
            for key, item in sorted(value.items())
            if key not in DROPPED and not (key == "continue" and item == "")
        }
    if isinstance(value, list):
        return [normalised(item) for item in value]
    if isinstance(value, str):
        value = _TOKEN_VOLUME.sub("kube-api-access-XXXXX", value)
        value = _UUID.sub("UID", value)
        value = _PATCHED.sub("Invalid value: ...: strict", value)
        value = value.partition(" is not valid: ")[0]
        value = _GENERATED.sub("gen-XXXXX", value)
        return _VERSION.sub(r"\1N", value)
    return value


def run(api: Api, case: Case) -> list[Any]:
    namespace = f"diff-{case.name}".replace("_", "-")
    code, made, _ = api.send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    assert code == 201, made
    # The real one makes these a moment later.
    eventually(
        "a service account",
        lambda: api.send("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")[0] == 200,
    )
    eventually(
        "the CA", lambda: api.send("GET", f"/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt")[0] == 200
    )
    answers: list[Any] = []
    remembered: dict[str, str] = {"ns": namespace}
    try:
        answers.extend(_answer(api, step, remembered, case.reduce) for step in case.steps)
    finally:
        for path in case.cleanup:
            api.send("DELETE", path, {"gracePeriodSeconds": 0})
        api.send("DELETE", f"/api/v1/namespaces/{namespace}")
    return answers


def _answer(api: Api, step: Step, remembered: dict[str, str], reduce: Callable[[Any], Any]) -> Any:
    def fill(text: str) -> str:
        for name, value in remembered.items():
            text = text.replace("{" + name + "}", value)
        return text

    body = step.body
    if body is not None:
        text = body if isinstance(body, str) else json.dumps(body)
        body = fill(text).encode()

    def send() -> tuple[int, Any, list[str]]:
        return api.send(step.method, fill(step.path), body, content_type=step.content_type, headers=step.headers)

    code, answer, warnings = send()
    if step.until:
        eventually(f"{step.path} answers {step.until}", lambda: send()[0] == step.until)
        return [step.method, fill(step.path), step.until]
    if step.until_status:

        def says() -> bool:
            status = api.send(step.method, fill(step.path))[1].get("status", {})
            return all(status.get(key) == value for key, value in step.until_status.items())

        eventually(f"{step.path} says {step.until_status}", says)
        return [step.method, fill(step.path), step.until_status]
    if step.may_exist:
        assert code in (201, 409), answer
        return [step.method, fill(step.path)]
    if not step.compare:
        return [step.method, fill(step.path), code]
    if isinstance(answer, dict):
        meta = answer.get("metadata", {})
        remembered["uid"] = meta.get("uid", "")
        remembered["rv"] = meta.get("resourceVersion", "")
    return [step.method, fill(step.path), code, reduce(normalised(answer)), [normalised(item) for item in warnings]]


@pytest.mark.kubernetes_since("1.36")  # the version that the embedded server answers as
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_answers(embedded: Api, real_control_plane: RealCluster, case: Case) -> None:
    ours = run(embedded, case)
    real = run(Api(real_control_plane.kubeconfig), case)
    found = []
    for mine, theirs in zip(ours, real, strict=True):
        found += [f"{mine[0]} {mine[1]}: {line}" for line in differences(mine, theirs)] if mine != theirs else []
    assert not found, "\n" + "\n".join(found)


def differences(ours: Any, real: Any, where: str = "") -> list[str]:
    """Name each place where two answers differ."""
    if isinstance(ours, dict) and isinstance(real, dict):
        keys = sorted({*ours, *real})
        return [line for key in keys for line in differences(ours.get(key), real.get(key), f"{where}.{key}")]
    if isinstance(ours, list) and isinstance(real, list) and len(ours) == len(real):
        pairs = enumerate(zip(ours, real, strict=True))
        return [line for index, (a, b) in pairs for line in differences(a, b, f"{where}[{index}]")]
    return [] if ours == real else [f"{where}\n    ours: {json.dumps(ours)}\n    real: {json.dumps(real)}"]
