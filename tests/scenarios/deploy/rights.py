"""What the controller's service account may do, and what it did according to the API server's audit log."""

from __future__ import annotations

from typing import NamedTuple

from muster.drills.auditlog import AuditEntry
from tests.scenarios.deploy.conftest import SYSTEM, Cluster


class Grant(NamedTuple):
    """One thing that is allowed; an empty namespace or name stands for all."""

    verb: str
    group: str
    resource: str
    name: str
    namespace: str

    def covers(self, entry: AuditEntry) -> bool:
        """Whether the entry made use of it."""
        asked = entry.object_ref
        return (
            (entry.verb, asked.api_group, asked.what) == (self.verb, self.group, self.resource)
            and self.name in ("", asked.name)
            and self.namespace in ("", asked.namespace)
        )


def granted(cluster: Cluster) -> list[Grant]:
    """Everything that the installed roles of the controller allow."""
    roles = [
        cluster.get("clusterrole", "muster-controller"),
        *(
            role
            for role in cluster.get("roles", "--all-namespaces")["items"]
            if role["metadata"]["name"] == "muster-controller"
        ),
    ]
    return [
        Grant(verb, group, resource, name, role["metadata"].get("namespace", ""))
        for role in roles
        for rule in role["rules"] or ()
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or ("",)
    ]


def used(cluster: Cluster, account: str, since: int = 0) -> list[AuditEntry]:
    """Every request of the account since a position of the log."""
    assert account.startswith(f"system:serviceaccount:{SYSTEM}:")
    return [entry for entry in cluster.audit.entries(since) if entry.user.username == account]


def forbidden(cluster: Cluster, account: str) -> set[str]:
    """What the account was refused while its rights were there: an uninstall takes them before the pods have ended."""
    return {
        f"{entry.verb} {entry.object_ref}"
        for since, until in cluster.installed
        for entry in cluster.audit.entries(since, until)
        if entry.user.username == account and entry.forbidden
    }
