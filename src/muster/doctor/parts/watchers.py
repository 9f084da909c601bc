"""Who may watch Endpoints, and how large they are. It is read only if there are such watches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from muster.doctor.rule import Context
from muster.doctor.samples import Page

LONGRUNNING: Final = "apiserver_longrunning_requests"
OWN_WATCHES: Final = 3
"""Watches of Endpoints that Kubernetes itself has: controllers of kube-controller-manager."""
_WATCH: Final = {"resource": "endpoints", "verb": "WATCH", "scope": "cluster"}.items()
_WHAT: Final = "who watches Endpoints"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_SIZED: Final = 20
_OWN_ROLES: Final = frozenset({"cluster-admin", "system:node-proxier", "system:kube-dns", "system:kube-aggregator"})
"""Roles with the right whose programs use EndpointSlices, or are not clients of each node."""


class EndpointsUse(msgspec.Struct, frozen=True):
    """Use of Endpoints.

    Attributes:
        accounts: service accounts that may watch all Endpoints, as namespace/name.
        largest_bytes: largest Endpoints object of a sample.
        largest_addresses: number of its addresses.
        slice_bytes: largest EndpointSlice of a sample.
    """

    accounts: frozenset[str]
    largest_bytes: int = 0
    largest_addresses: int = 0
    slice_bytes: int = 0


def watches_of(pages: Iterable[Page]) -> float:
    """Return the number of open watches of the Endpoints of all namespaces.

    Watches of one object or one namespace are cheap: agents watch the Service `kubernetes` that way.
    """
    return sum(value for page in pages for labels, value in page.of(LONGRUNNING) if labels.items() >= _WATCH)


async def collect_endpoints_use(context: Context) -> EndpointsUse | None:
    """Read roles, bindings, and some Endpoints, if programs besides Kubernetes' own watch Endpoints."""
    if watches_of(context.first) <= OWN_WATCHES:
        return None
    reader = context.reader
    roles = await reader.list(f"{_RBAC}/clusterroles", what=_WHAT, pages=5)
    bindings = await reader.list(f"{_RBAC}/clusterrolebindings", what=_WHAT, pages=5)
    endpoints = await reader.list("/api/v1/endpoints", what="sizes of Endpoints", limit=_SIZED, sample=True)
    slices = await reader.list(
        "/apis/discovery.k8s.io/v1/endpointslices", what="sizes of EndpointSlices", limit=_SIZED, sample=True
    )
    accounts = accounts_that_watch(roles.items, bindings.items) if roles is not None and bindings is not None else ()
    largest = max(endpoints.items, key=size_of, default={}) if endpoints is not None else {}
    return EndpointsUse(
        accounts=frozenset(accounts),
        largest_bytes=size_of(largest) if largest else 0,
        largest_addresses=_addresses(largest),
        slice_bytes=max(map(size_of, slices.items), default=0) if slices is not None else 0,
    )


def size_of(item: Mapping[str, Any]) -> int:
    """Return the size of an object in bytes of JSON, as a watch sends it."""
    return len(msgspec.json.encode(item))


def _addresses(item: Mapping[str, Any]) -> int:
    return sum(
        len(subset.get("addresses") or ()) + len(subset.get("notReadyAddresses") or ())
        for subset in item.get("subsets") or ()
    )


def accounts_that_watch(roles: Iterable[Mapping[str, Any]], bindings: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Yield service accounts that a ClusterRoleBinding allows to watch Endpoints, without Kubernetes' own roles."""
    allowing = {
        role["metadata"]["name"]
        for role in roles
        if role["metadata"]["name"] not in _OWN_ROLES
        and not role["metadata"]["name"].startswith("system:controller:")
        and any(map(_allows, role.get("rules") or ()))
    }
    for binding in bindings:
        if binding["roleRef"]["name"] in allowing:
            for subject in binding.get("subjects") or ():
                if subject["kind"] == "ServiceAccount":
                    yield f"{subject.get('namespace', '')}/{subject['name']}"


def _allows(rule: Mapping[str, Any]) -> bool:
    return all(
        wanted in (rule.get(field) or ()) or "*" in (rule.get(field) or ())
        for field, wanted in (("apiGroups", ""), ("resources", "endpoints"), ("verbs", "watch"))
    )
