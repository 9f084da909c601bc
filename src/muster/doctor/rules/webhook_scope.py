"""Admission webhooks whose outage would stop the control plane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from muster.api.finding import Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.evidence import Evidence
from muster.doctor.parts.webhooks import Intercepts, Webhook, Webhooks
from muster.doctor.rule import Rule
from muster.kube.objects.selectors import from_label_selector

REQUESTS: Final = "apiserver_request_total"
_LONG_S: Final = 10


class _Critical(NamedTuple):
    """A write that the control plane depends on; `namespace` is "" for a cluster-wide object."""

    group: str
    resource: str
    operation: str
    namespace: str
    effect: str


CRITICAL: Final = (
    _Critical("coordination.k8s.io", "leases", "UPDATE", "kube-node-lease", "nodes become NotReady"),
    _Critical("coordination.k8s.io", "leases", "UPDATE", "kube-system", "controllers lose their leadership"),
    _Critical("", "nodes", "CREATE", "", "new nodes cannot join"),
    _Critical("", "nodes/status", "UPDATE", "", "kubelets cannot report"),
    _Critical("", "pods", "CREATE", "kube-system", "pods of the control plane cannot be recreated"),
    _Critical("", "pods/binding", "CREATE", "kube-system", "pods of the control plane are not scheduled"),
    _Critical("discovery.k8s.io", "endpointslices", "UPDATE", "kube-system", "Services of kube-system get stale"),
)
_SELECTORS: Final = """\
namespaceSelector:
  matchExpressions:
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: [%s]}
"""


def _find(evidence: Evidence) -> Iterator[Finding]:
    hooks = evidence.part(Webhooks)
    for hook in hooks.items if hooks is not None else ():
        assert hooks is not None
        down = bool(hook.service) and hooks.ready.get(hook.service) == 0
        effects = effects_of(hook, hooks)
        if (hook.fails_closed and (down or effects)) or (
            not hook.fails_closed and down and effects and hook.timeout_s >= _LONG_S
        ):
            yield _finding(evidence, hook, effects, down)


def effects_of(hook: Webhook, hooks: Webhooks) -> list[tuple[str, str]]:
    """Return what a webhook intercepts that the control plane depends on, and what its outage does.

    A webhook with matchConditions is left out, because they may exclude these objects.
    """
    if hook.conditional or not from_label_selector(hook.objects).matches({}):
        return []
    found = [
        (each.resource + (f" in {each.namespace}" if each.namespace else ""), each.effect)
        for each in CRITICAL
        if any(_covers(rule, each) for rule in hook.rules) and _selects(hook, hooks, each.namespace)
    ]
    own = hook.service.partition("/")[0]
    pods = _Critical("", "pods", "CREATE", own, "its own backend cannot be recreated")
    if own and own != "kube-system" and any(_covers(rule, pods) for rule in hook.rules) and _selects(hook, hooks, own):
        found.append((f"pods in {own}", pods.effect))
    return found


def _covers(rule: Intercepts, each: _Critical) -> bool:
    resource, _, subresource = each.resource.partition("/")
    names = {each.resource, "*/*", f"{resource}/*"} | ({f"*/{subresource}"} if subresource else {"*"})
    return (
        bool({each.group, "*"} & set(rule.groups))
        and bool(names & set(rule.resources))
        and bool({each.operation, "*"} & set(rule.operations))
        and rule.scope in ("*", "Namespaced" if each.namespace else "Cluster")
    )


def _selects(hook: Webhook, hooks: Webhooks, namespace: str) -> bool:
    """Returns whether the namespaceSelector admits it; it does not apply to cluster-wide objects."""
    if not namespace:
        return True
    labels = hooks.labels.get(namespace, {"kubernetes.io/metadata.name": namespace})
    return from_label_selector(hook.namespaces).matches(labels)


def _finding(evidence: Evidence, hook: Webhook, effects: list[tuple[str, str]], down: bool) -> Finding:
    writes = _writes(evidence, hook)
    measures = [
        Measure("time that the API server waits for it", hook.timeout_s, "s", "timeoutSeconds"),
        *(Measure(f"without it, {effect}: it intercepts {what}", 1, "", "rules") for what, effect in effects),
    ]
    if down:
        measures.append(Measure(f"ready endpoints of Service {hook.service}", 0, "", "EndpointSlices"))
    if down:
        title = f"Webhook {hook.name} has no ready backend, " + (
            "so the requests that it intercepts are refused."
            if hook.fails_closed
            else f"so the requests that it intercepts wait up to {hook.timeout_s} s."
        )
    else:
        title = (
            f"If webhook {hook.name} stops, {effects[0][1]}: it intercepts {effects[0][0]}, with failurePolicy Fail."
        )
    where = f"{hook.configuration_kind.lower()} {hook.configuration}"
    excluded = sorted({"kube-system", "kube-node-lease", hook.service.partition("/")[0]} - {""})
    return Finding(
        id="webhook-down" if down else "webhook-can-block",
        severity=Severity.ERROR if down else Severity.WARNING,
        title=title,
        who=(Culprit(hook.configuration_kind, hook.configuration),),
        evidence=tuple(measures),
        costs=(cost("writes that depend on it", "requests/s", writes, Growth.PER_NODE, evidence.scale),),
        fix=Fix(
            "Intercept only the resources that it needs, exclude these namespaces, and let the API server wait 5 s at "
            f"most. To get out of an outage, delete it: kubectl delete {where}.",
            (f"kubectl edit {where}",),
            _SELECTORS % ", ".join(excluded),
        ),
    )


def _writes(evidence: Evidence, hook: Webhook) -> float:
    """Return writes per second of the resources that a webhook intercepts, in all namespaces."""
    verbs = {"CREATE": {"POST"}, "UPDATE": {"PUT", "PATCH", "APPLY"}, "DELETE": {"DELETE"}}
    total = 0.0
    for labels, rate in evidence.rates(REQUESTS):
        resource = labels.get("resource", "")
        if labels.get("subresource"):
            resource += f"/{labels['subresource']}"
        for operation, names in verbs.items():
            each = _Critical(labels.get("group", ""), resource, operation, "", "")
            if labels.get("verb") in names and any(
                _covers(Intercepts(rule.groups, rule.resources, rule.operations, "*"), each) for rule in hook.rules
            ):
                total += rate
                break
    return total


RULE: Final = Rule("webhook_scope", frozenset({REQUESTS}), _find)
