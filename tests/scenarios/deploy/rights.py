"""What a service account of Muster may do, and what it did according to the API server's audit log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.scenarios.deploy.conftest import SYSTEM, Cluster
from tests.support.auditlog import AuditEntry


class Grant(NamedTuple):
    """One thing that is allowed; an empty namespace or name stands for all. A resource with a slash first is a path."""

    verb: str
    group: str
    resource: str
    name: str
    namespace: str

    def covers(self, entry: AuditEntry) -> bool:
        """Whether the entry made use of it."""
        asked = entry.object_ref
        if self.resource.startswith("/"):
            return (entry.verb, urlsplit(entry.request_uri).path) == (self.verb, self.resource)
        return (
            (entry.verb, asked.api_group, asked.what) == (self.verb, self.group, self.resource)
            and self.name in ("", asked.name)
            and self.namespace in ("", asked.namespace)
        )


def granted(cluster: Cluster, account: str = "muster-controller") -> dict[str, list[Grant]]:
    """Everything that is allowed to a service account of Muster's namespace, by the names of the roles bound to it."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}
    found: dict[str, list[Grant]] = {}
    for binding in cluster.get("clusterrolebindings,rolebindings", "--all-namespaces")["items"]:
        if subject in binding.get("subjects", ()):
            name, namespace = binding["roleRef"]["name"], binding["metadata"].get("namespace", "")
            where = (f"--namespace={namespace}",) if binding["roleRef"]["kind"] == "Role" else ()
            role = cluster.get(binding["roleRef"]["kind"].lower(), name, *where)
            found.setdefault(name, []).extend(_grants(role, namespace))
    return found


def _grants(role: dict[str, Any], namespace: str) -> Iterator[Grant]:
    for rule in role["rules"] or ():
        for verb in rule["verbs"]:
            yield from (Grant(verb, "", path, "", "") for path in rule.get("nonResourceURLs", ()))
            for group in rule.get("apiGroups", ()):
                for resource in rule["resources"]:
                    for name in rule.get("resourceNames") or ("",):
                        yield Grant(verb, group, resource, name, namespace)


def used(cluster: Cluster, account: str, since: int = 0) -> list[AuditEntry]:
    """Every request of the account since a position of the log."""
    assert account.startswith(f"system:serviceaccount:{SYSTEM}:")
    return [entry for entry in cluster.audit.entries(since) if entry.user.username == account]


def unused(grants: list[Grant], entries: list[AuditEntry]) -> list[Grant]:
    """What no entry made use of."""
    return [grant for grant in grants if not any(grant.covers(entry) for entry in entries)]


def forbidden(cluster: Cluster, account: str) -> set[str]:
    """What the account was refused while its rights were there: an uninstall takes them before the pods have ended."""
    return {
        f"{entry.verb} {entry.object_ref}"
        for since, until in cluster.installed
        for entry in cluster.audit.entries(since, until)
        if entry.user.username == account and entry.forbidden
    }
