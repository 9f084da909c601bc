"""Admission webhooks: what they intercept, and whether their backends are ready."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from muster.doctor.parts.backends import ready_endpoints
from muster.doctor.rule import Context
from muster.kube.objects.affinity import LabelSelector
from muster.kube.objects.struct import from_dict

_GROUP: Final = "/apis/admissionregistration.k8s.io/v1"
_KINDS: Final = {
    "ValidatingWebhookConfiguration": f"{_GROUP}/validatingwebhookconfigurations",
    "MutatingWebhookConfiguration": f"{_GROUP}/mutatingwebhookconfigurations",
}
_WHAT: Final = "admission webhooks"
_NAMESPACES_MAX: Final = 20


class Intercepts(msgspec.Struct, frozen=True):
    """A rule of a webhook; "*" means any.

    Attributes:
        groups: API groups.
        resources: plural names, or `pods/status`.
        operations: CREATE, UPDATE, DELETE, CONNECT.
        scope: Cluster, Namespaced or *.
    """

    groups: tuple[str, ...]
    resources: tuple[str, ...]
    operations: tuple[str, ...]
    scope: str


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """One admission webhook.

    Attributes:
        configuration_kind: kind of the object that holds it.
        configuration: name of that object.
        index: its position in that object.
        name: its own name.
        fails_closed: requests are refused if it does not answer (failurePolicy Fail).
        timeout_s: how long the API server waits for it.
        rules: what it intercepts.
        namespaces: selects namespaces by their labels.
        objects: selects objects by their labels.
        conditional: it has matchConditions, which are not evaluated here.
        service: its backend as namespace/name; "" for a URL.
    """

    configuration_kind: str
    configuration: str
    index: int
    name: str
    fails_closed: bool
    timeout_s: int
    rules: tuple[Intercepts, ...] = ()
    namespaces: LabelSelector = LabelSelector()
    objects: LabelSelector = LabelSelector()
    conditional: bool = False
    service: str = ""


class Webhooks(msgspec.Struct, frozen=True):
    """Admission webhooks, labels of the namespaces that matter for them, and ready endpoints of their Services."""

    items: tuple[Webhook, ...] = ()
    labels: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    ready: Mapping[str, int] = msgspec.field(default_factory=dict)


async def collect_webhooks(context: Context) -> Webhooks | None:
    """Read both kinds of webhook configurations, and what their backends depend on."""
    reader = context.reader
    found: list[Webhook] = []
    seen = False
    for kind, path in _KINDS.items():
        listed = await reader.list(path, what=_WHAT)
        if listed is None:
            continue
        seen = True
        for item in listed.items:
            found += webhooks_of(kind, item)
    services = {hook.service for hook in found if hook.service}
    namespaces = sorted({service.partition("/")[0] for service in services} | {"kube-system", "kube-node-lease"})
    labels: dict[str, Mapping[str, str]] = {}
    for namespace in namespaces[:_NAMESPACES_MAX] if found else ():
        seen_one = await reader.get(
            f"/api/v1/namespaces/{namespace}", what=_WHAT, right="get namespaces", optional=True
        )
        meta = (seen_one or {}).get("metadata") or {}
        labels[namespace] = meta.get("labels") or {"kubernetes.io/metadata.name": namespace}
    return Webhooks(tuple(found), labels, await ready_endpoints(reader, services, _WHAT)) if seen else None


def webhooks_of(kind: str, configuration: Mapping[str, Any]) -> Iterable[Webhook]:
    """Yield the webhooks of a configuration object."""
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        service = webhook["clientConfig"].get("service")
        yield Webhook(
            configuration_kind=kind,
            configuration=configuration["metadata"]["name"],
            index=index,
            name=webhook["name"],
            fails_closed=webhook.get("failurePolicy", "Fail") == "Fail",
            timeout_s=webhook.get("timeoutSeconds", 10),
            rules=tuple(map(_intercepts, webhook.get("rules") or ())),
            namespaces=from_dict(webhook.get("namespaceSelector") or {}, LabelSelector),
            objects=from_dict(webhook.get("objectSelector") or {}, LabelSelector),
            conditional=bool(webhook.get("matchConditions")),
            service=f"{service['namespace']}/{service['name']}" if service else "",
        )


def _intercepts(rule: Mapping[str, Any]) -> Intercepts:
    return Intercepts(
        tuple(rule.get("apiGroups") or ()),
        tuple(rule.get("resources") or ()),
        tuple(rule.get("operations") or ()),
        rule.get("scope") or "*",
    )
