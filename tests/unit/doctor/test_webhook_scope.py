"""Webhooks whose outage would stop the control plane."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.finding import Severity
from muster.doctor.parts.webhooks import Webhooks, webhooks_of
from tests.unit.doctor.conftest import Found

PODS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
ALL = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}
SERVICE = {"namespace": "policies", "name": "webhook"}
NAMESPACE = "kubernetes.io/metadata.name"


def hooks(ready: int = 2, **fields: Any) -> Webhooks:
    webhook = {"name": "hook.example.com", "clientConfig": {"service": SERVICE}, "rules": [PODS], **fields}
    configuration = {"metadata": {"name": "policies"}, "webhooks": [webhook]}
    labels = {name: {NAMESPACE: name} for name in ("kube-system", "kube-node-lease", "policies")}
    items = tuple(webhooks_of("ValidatingWebhookConfiguration", configuration))
    return Webhooks(items, labels, {"policies/webhook": ready})


def selector(operator: str, *values: str, key: str = NAMESPACE) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_webhook_over_all_pods_is_a_warning(find: Found) -> None:
    (found,) = find(parts=[hooks()])
    assert (found.id, found.severity) == ("webhook-can-block", Severity.WARNING)
    assert [who.name for who in found.who] == ["policies"]
    effects = " ".join(each.what for each in found.evidence)
    assert "pods in kube-system" in effects
    assert "pods in policies" in effects
    assert "kube-system, policies" in found.fix.manifest


def test_webhook_over_everything_stops_leases_and_nodes(find: Found) -> None:
    (found,) = find(parts=[hooks(rules=[ALL])])
    effects = " ".join(each.what for each in found.evidence)
    assert "leases in kube-node-lease" in effects
    assert "intercepts nodes" in effects
    assert "nodes/status" not in effects  # "*" does not include subresources


@pytest.mark.parametrize(
    "fields",
    [
        {"failurePolicy": "Ignore"},
        {"namespaceSelector": selector("NotIn", "kube-system", "policies")},
        {"namespaceSelector": {"matchLabels": {"checked": "true"}}},
        {"objectSelector": {"matchLabels": {"checked": "true"}}},
        {"matchConditions": [{"name": "some", "expression": "true"}]},
        {"rules": [{**PODS, "operations": ["DELETE"]}]},
        {"rules": [{**PODS, "resources": ["configmaps"]}]},
        {"rules": [{**PODS, "scope": "Cluster"}]},
        {"rules": [{**PODS, "apiGroups": ["apps"]}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_webhook_that_the_control_plane_does_not_need_is_not_reported(find: Found, fields: dict[str, Any]) -> None:
    assert find(parts=[hooks(**fields)]) == []


def test_webhook_that_excludes_kube_system_still_guards_its_own_backend(find: Found) -> None:
    (found,) = find(parts=[hooks(namespaceSelector=selector("NotIn", "kube-system"))])
    assert "its own backend cannot be recreated" in found.title


def test_object_selector_that_excludes_only_marked_objects_does_not_protect(find: Found) -> None:
    marked = selector("DoesNotExist", key="unchecked")
    del marked["matchExpressions"][0]["values"]
    assert [each.id for each in find(parts=[hooks(objectSelector=marked)])] == ["webhook-can-block"]


def test_webhook_without_ready_backend_is_an_error(find: Found) -> None:
    (found,) = find(parts=[hooks(ready=0, namespaceSelector={"matchLabels": {"checked": "true"}})])
    assert (found.id, found.severity) == ("webhook-down", Severity.ERROR)


def test_open_webhook_without_backend_delays_the_control_plane(find: Found) -> None:
    assert [each.id for each in find(parts=[hooks(ready=0, failurePolicy="Ignore")])] == ["webhook-down"]
    assert find(parts=[hooks(ready=0, failurePolicy="Ignore", timeoutSeconds=2)]) == []


def test_writes_that_depend_on_a_webhook_are_its_cost(find: Found) -> None:
    line = 'apiserver_request_total{{verb="POST",group="",resource="pods",subresource="",code="201"}} {}\n'
    (found,) = find((line.format(0), line.format(30)), parts=[hooks()])
    assert (found.costs[0].today, found.costs[0].planned) == (3.0, 30.0)
