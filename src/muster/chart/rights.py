"""Writes the tables of rights in docs/install.md from the chart's templates: `python -m muster.chart.rights [--check]`.

The module does not render the templates. It removes everything in braces, including conditions, so every part
counts as switched on. tests/scenarios/deploy compares the result with what Helm renders.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from muster.api.generated import write_or_check
from muster.chart.files import chart

PAGE: Final = Path(__file__).resolve().parents[3] / "docs/install.md"
_HOW: Final = "python -m muster.chart.rights"
_BEGIN: Final = f"<!-- rights: written by {_HOW}; change the chart's templates or muster/chart/rights.py instead -->"
_END: Final = "<!-- rights: end -->"
OWN: Final = "its namespace"
"""The namespace of the release."""
_CACHED: Final = '{{- include "muster.readCache.rules" . }}'
"""Stands in the template for the rules of the kinds in `readCache.kinds`."""
NODE_LEASES: Final = "kube-node-lease"
"""The namespace of the Leases that kubelets renew."""


class Right(NamedTuple):
    """One rule of a role."""

    role: str
    namespace: str
    """The namespace of a Role; "" for a ClusterRole, which applies everywhere."""
    groups: tuple[str, ...]
    resources: tuple[str, ...]
    names: tuple[str, ...]
    verbs: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        """The key of the rule's reason in REASONS: the role, and the resources with their names and namespace."""
        named = f" {' '.join(self.names)}" if self.names else ""
        where = f" in {NODE_LEASES}" if self.namespace == NODE_LEASES else ""
        return self.role, ", ".join(self.resources) + named + where


REASONS: Final[dict[tuple[str, str], str]] = {
    ("muster-controller", "trainingjobs"): "to run jobs; `get` to check whether a refused checkpoint belongs to an old "
    "attempt; `delete` for `ttlSecondsAfterFinished`",
    ("muster-controller", "placements"): "to record which slot is on which node, before the first bind",
    ("muster-controller", "pods"): "to create and delete the gangs' pods; to count the room that all pods use on nodes",
    ("muster-controller", "nodes, namespaces"): "to find usable nodes; namespaces, because pod affinity and "
    "anti-affinity can select them by label",
    ("muster-controller", "events"): "to read hardware faults that node agents report; to report what happened to jobs",
    ("muster-controller", "persistentvolumeclaims"): "to find the nodes that a claim permits; to write the node for a "
    "claim that waits for its first consumer",
    ("muster-controller", "persistentvolumes"): "to find the nodes that the volume of a claim permits",
    ("muster-controller", "daemonsets"): "to reserve room for pods of DaemonSets",
    ("muster-controller", "storageclasses"): "to find out whether a claim waits for its first consumer",
    ("muster-controller", "poddisruptionbudgets"): "to find out which pods may be evicted for gangs of higher priority",
    ("muster-controller", "jobs"): "to read the size of a gang, if a pod belongs to this kind",
    ("muster-controller", "statefulsets"): "the same",
    ("muster-controller", "podgroups"): "the same",
    ("muster-controller", "jobsets"): "the same",
    ("muster-controller", "mpijobs"): "the same",
    ("muster-controller", "rayclusters"): "the same",
    ("muster-controller", "tokenreviews"): "to authenticate clients of port 8443",
    ("muster-controller", "trainingjobs/status"): "to write phase, faults and checkpoints",
    ("muster-controller", "placements/status"): "to record whether the gang is bound",
    ("muster-controller", "pods/binding"): "to bind pods",
    ("muster-controller", "pods/eviction"): "to evict pods of other controllers within their disruption budgets",
    ("muster-controller", "pods/status"): "to write conditions: the pod can never be placed, needs nodes, or is "
    "disrupted",
    ("muster-controller", "leases"): "leader election (RBAC cannot restrict `create` to a name)",
    ("muster-controller", "leases in kube-node-lease"): "to find out whether the node of a supervisor that does not "
    "answer is still alive",
    ("muster-controller", "leases muster-controller"): "leader election",
    ("muster-controller", "configmaps muster-scheduler"): "to read the backfill policies and the order of the queue",
    ("muster-controller", "runhistories"): "to create the object below (RBAC cannot restrict `create` to a name)",
    ("muster-controller", "runhistories muster"): "to record run times of ended jobs, from which starts are estimated",
    ("muster-controller", "secrets"): "to create the two Secrets below (RBAC cannot restrict `create` to a name)",
    ("muster-controller", "secrets muster-controller-tls muster-cluster-secret"): "to read the controller's "
    "certificate, and the secret from which keys of attempts are derived",
    ("muster-teams", "nodes"): "to write the owner: label, taint and record",
    ("muster-teams", "configmaps muster-teams"): "to read how many nodes each team owns; in shadow mode only `teamKey`",
    ("muster-balloons", "configmaps muster-balloons"): "to read which pools have balloons",
    ("muster-balloons", "pods"): "to mark the balloon that a Deployment deletes first",
    ("muster-balloons", "deployments"): "to create and scale the balloons",
    ("muster-joins", "nodes"): "to write the taint of joining nodes, and the record of the join",
    ("muster-joins", "/metrics"): "to measure the load of the API server",
    ("muster-joins", "configmaps muster-joins"): "to read the configuration; to show the pace in an annotation",
    ("muster-scaling", "nodes"): "to cordon nodes, with a record; to delete nodes whose instance is gone",
    ("muster-scaling", "configmaps muster-scaling"): "to read which pools are scaled",
    ("muster-scaling", "configmaps muster-scaling-status"): "to write the status of the pools",
    ("muster-scaling", "configmaps"): "to create `muster-scaling-status` (RBAC cannot restrict `create` to a name)",
    ("muster-remediation", "nodehealths, preflights"): "to read findings and results of tests",
    ("muster-remediation", "noderemediations"): "to keep the state of all sessions",
    ("muster-remediation", "noderemediations/status"): "the same",
    ("muster-remediation", "nodes"): "to write the quarantine taint and its record",
    ("muster-remediation", "nodes/status"): "to write conditions about hardware faults",
    (
        "muster-remediation",
        "configmaps muster-health muster-scaling",
    ): "to read the policy and the limits, and which pools can replace nodes",
    ("muster-remediation", "configmaps muster-mesh"): "to write the list of nodes that agents probe",
    ("muster-remediation", "configmaps"): "to create `muster-mesh` (RBAC cannot restrict `create` to a name)",
    ("muster-preflight", "preflights"): "to write records of tests",
    ("muster-preflight", "nodehealths, noderemediations"): "to find nodes with evidence against them, or in quarantine",
    ("muster-preflight", "nodes"): "to write the taint of nodes that were not tested",
    ("muster-preflight", "configmaps muster-preflight muster-health"): "to read the configuration of tests, and the "
    "policy about findings",
    ("muster-cache", "configmaps"): "to create `muster-cache` (RBAC cannot restrict `create` to a name)",
    ("muster-cache", "configmaps muster-cache"): "to write the key with which node caches verify the tickets of jobs",
    ("muster-network-hub", "configmaps muster-network"): "to read the uplink's budget",
    ("muster-network-hub", "configmaps"): "to create `muster-network-hub` (RBAC cannot restrict `create` to a name)",
    ("muster-network-hub", "configmaps muster-network-hub"): "to publish the authority of the hub's certificate",
    ("muster-network-hub", "secrets muster-network-hub-tls"): "to read and renew the hub's certificate",
    ("muster-network-addresses", "addresspools"): "to know the ranges from which the node takes blocks",
    ("muster-network-addresses", "addressblocks"): "to take blocks of addresses and give them back; the policy "
    "`muster-network-addresses` restricts it to the agent's own node",
    ("muster-network-addresses", "nodes"): "to read the labels of the node, which pools select, and its UID",
    ("muster-network", "networkpolicies"): "to install the CNI plugin only if a program enforces NetworkPolicies",
    ("muster-network", "pods"): "to find the job and the addresses of each pod on its node",
    ("muster-agent", "nodehealths"): "to write findings; the policy `muster-agents` restricts it to the agent's own "
    "node",
    ("muster-agent", "nodehealths/status"): "the same",
    ("muster-admission", "namespaces"): "to find the team of a pod",
    ("muster-admission", "mutatingwebhookconfigurations, validatingwebhookconfigurations muster-admission"): (
        "to write `caBundle` of its certificates"
    ),
    ("muster-admission", "configmaps muster-teams"): "to read how many nodes each team owns",
    ("muster-admission", "secrets"): "to create the Secret below (RBAC cannot restrict `create` to a name)",
    ("muster-admission", "secrets muster-admission-tls"): "to read and renew its certificates",
    ("muster-readcache", "customresourcedefinitions trainingjobs.muster.dev nodehealths.muster.dev"): "to read which "
    "fields selectors may name",
    ("muster-readcache", "tokenreviews"): "to authenticate callers",
    ("muster-readcache", "subjectaccessreviews"): "to find out what callers may read",
    ("muster-readcache", "secrets, configmaps"): "to create the Secrets and ConfigMaps below (RBAC cannot restrict "
    "`create` to a name)",
    ("muster-readcache", "secrets muster-readcache-tls"): "to read and renew its certificate",
    ("muster-readcache", "configmaps muster-readcache-ca"): "to publish the authority of its certificate",
    (
        "muster-readcache",
        "secrets muster-readcache-node-tls",
    ): "to read and renew the certificate of the caches on nodes",
    ("muster-readcache", "configmaps muster-readcache-node-ca"): "to publish the authority of that certificate",
    ("muster-guard", "tokenreviews"): "to authenticate callers with tokens of the cluster (only with "
    "`telemetry.guard.config.callers.cluster`)",
    (
        "muster-blocks",
        "flowschemas",
    ): "to remove blocks that have ended; the policy `muster-break-glass` restricts it to FlowSchemas of blocks",
    (
        "muster-break-glass",
        "flowschemas",
    ): "so that users of `doctor.breakGlass.groups` can block an account; "
    "the policy `muster-break-glass` restricts it to FlowSchemas of blocks",
    ("muster-break-glass", "prioritylevelconfigurations muster-break-glass"): "to find out whether a block would work",
    ("muster-break-glass", "serviceaccounts"): "to find out whether the account exists",
    ("muster-break-glass", "/metrics"): "to show what a block does not stop, and how many requests it rejected",
    ("muster-edit", "trainingjobs"): "so that users with `edit` or `admin` can submit jobs (`aggregateUserRoles`)",
    ("muster-view", "trainingjobs, trainingjobs/status, placements"): "so that users with `view` can see jobs",
    ("muster-view", "nodehealths, preflights, noderemediations"): "so that users with `view` can see nodes",
}
"""The reason for each right, by role and resources."""


def cached_kinds() -> list[str]:
    """The kinds that the read cache serves by default."""
    values = yaml.safe_load((chart() / "values.yaml").read_text(encoding="utf-8"))
    kinds: list[str] = values["readCache"]["kinds"]
    return kinds


REASONS.update({("muster-readcache", name.partition(".")[0]): "to cache this kind" for name in cached_kinds()})


def rights() -> Iterator[Right]:
    """Every rule of the chart, by template."""
    for path in sorted(chart().glob("templates/*.yaml"), key=lambda path: (path.name != "rbac.yaml", path.name)):
        text = re.sub(r"\{\{-? ?/\*.*?\*/ ?-?\}\}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        text = text.replace("{{ .Release.Namespace }}", OWN).replace(_CACHED, _cached_rules())
        for part in re.split(r"^---\s*$", text, flags=re.MULTILINE):
            if re.search(r"^kind: (Cluster)?Role$", part, re.MULTILINE):
                yield from of_role(yaml.safe_load(re.sub(r"\{\{.*?\}\}", "", part)))


def _cached_rules() -> str:
    """The rules that the chart writes for the kinds that the read cache serves by default."""
    split = [name.partition(".")[::2] for name in cached_kinds()]
    rules = [{"apiGroups": [group], "resources": [plural], "verbs": ["list", "watch"]} for plural, group in split]
    custom = [f"{plural}.{group}" for plural, group in split if "." in group and not group.endswith(".k8s.io")]
    resources = ["customresourcedefinitions"]
    rules.append(
        {"apiGroups": ["apiextensions.k8s.io"], "resources": resources, "resourceNames": custom, "verbs": ["get"]}
    )
    return yaml.safe_dump(rules)


def of_role(role: dict[str, Any]) -> Iterator[Right]:
    """The rules of one role."""
    name, namespace = role["metadata"]["name"], role["metadata"].get("namespace", "")
    for rule in role["rules"]:
        resources = tuple(rule.get("resources") or rule["nonResourceURLs"])
        groups, names = tuple(rule.get("apiGroups", ())), tuple(rule.get("resourceNames", ()))
        yield Right(name, namespace, groups, resources, names, tuple(rule["verbs"]))


def tables() -> str:
    """A table for each role."""
    found: dict[str, list[Right]] = {}
    for right in rights():
        found.setdefault(right.role, []).append(right)
    return "\n".join(line for role, rules in found.items() for line in _table(role, rules))


def _table(role: str, rules: list[Right]) -> Iterator[str]:
    yield f"\n`{role}`:\n\n| what | API group | where | verbs | why |\n|---|---|---|---|---|"
    for right in rules:
        what = ", ".join(right.resources) + (f": `{'`, `'.join(right.names)}`" if right.names else "")
        group = ", ".join(f"`{each}`" if each else "core" for each in right.groups)
        where = {"": "everywhere", OWN: OWN}.get(right.namespace, f"`{right.namespace}`")
        yield f"| {what} | {group} | {where} | {', '.join(right.verbs)} | {REASONS[right.key]} |"


def page() -> str:
    """Returns docs/install.md with tables that match the chart."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}\n{tables()}\n\n{_END}{rest.partition(_END)[2]}"


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it; returns the exit status."""
    return write_or_check(arguments, lambda: {PAGE: page()}, _HOW, "the chart says")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
