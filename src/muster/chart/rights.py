"""Writes the tables of rights in docs/install.md from the chart's templates: `python -m muster.chart.rights [--check]`.

Templates are read as they are, with every part switched on: what is in braces is taken away, conditions included.
tests/scenarios/deploy compares the result with what Helm renders.
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


class Right(NamedTuple):
    """One rule of a role."""

    role: str
    namespace: str
    """The namespace of a Role; "" for a ClusterRole, which holds everywhere."""
    groups: tuple[str, ...]
    resources: tuple[str, ...]
    names: tuple[str, ...]
    verbs: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        """The role and what the rule is about: its reason is found by it."""
        named = f" {' '.join(self.names)}" if self.names else ""
        return self.role, ", ".join(self.resources) + named


REASONS: Final[dict[tuple[str, str], str]] = {
    ("muster-controller", "trainingjobs"): "what to run; `get` where a checkpoint was refused, to know a stale attempt "
    "from a fault; `delete` for `ttlSecondsAfterFinished`",
    ("muster-controller", "placements"): "which slot is on which node, before the first bind",
    ("muster-controller", "pods"): "the gangs' pods; those of others too, as they hold nodes",
    ("muster-controller", "nodes, namespaces"): "which nodes are ready; what rules about other pods select",
    ("muster-controller", "events"): "hardware faults that node agents report; what happened to a job",
    ("muster-controller", "persistentvolumeclaims"): "where a claim lets a waiting pod run; the node of a claim that "
    "waits for its consumer",
    ("muster-controller", "persistentvolumes"): "the same, for the volume of a claim",
    ("muster-controller", "daemonsets"): "room for daemons on nodes",
    ("muster-controller", "storageclasses"): "whether a claim waits for its consumer",
    ("muster-controller", "poddisruptionbudgets"): "which pods may give way to gangs of higher priority",
    ("muster-controller", "jobs"): "how many pods belong together; read once a pod names one",
    ("muster-controller", "statefulsets"): "the same",
    ("muster-controller", "podgroups"): "the same",
    ("muster-controller", "jobsets"): "the same",
    ("muster-controller", "mpijobs"): "the same",
    ("muster-controller", "rayclusters"): "the same",
    ("muster-controller", "tokenreviews"): "who is calling port 8443",
    ("muster-controller", "trainingjobs/status"): "phase, faults, checkpoints",
    ("muster-controller", "placements/status"): "whether the gang is bound",
    ("muster-controller", "pods/binding"): "bind",
    ("muster-controller", "pods/eviction"): "pods of others that give way, as their budgets allow",
    ("muster-controller", "pods/status"): "say that a pod can never be placed, wants nodes, or is disrupted",
    ("muster-controller", "leases"): "who leads (RBAC cannot restrict `create` to a name); in `kube-node-lease` "
    "whether the node of a silent supervisor lives",
    ("muster-controller", "leases muster-controller"): "who leads",
    ("muster-controller", "secrets"): "the two below (RBAC cannot restrict `create` to a name)",
    ("muster-controller", "secrets muster-controller-tls muster-cluster-secret"): "its certificate; keys of attempts",
    ("muster-teams", "nodes"): "label, taint and record of the owner",
    ("muster-teams", "configmaps muster-teams"): "who owns how many nodes; in shadow mode for `teamKey` alone",
    ("muster-balloons", "configmaps muster-balloons"): "which pools have balloons",
    ("muster-balloons", "pods"): "which balloon goes first",
    ("muster-balloons", "deployments"): "the balloons",
    ("muster-joins", "nodes"): "the taint of nodes that join, and its record",
    ("muster-joins", "/metrics"): "how busy the API server is",
    ("muster-joins", "configmaps muster-joins"): "the configuration; where the pace is shown",
    ("muster-scaling", "nodes"): "cordon and record; nodes whose instance is gone",
    ("muster-scaling", "configmaps muster-scaling"): "which pools are scaled",
    ("muster-scaling", "configmaps muster-scaling-status"): "what became of them",
    ("muster-scaling", "configmaps"): "the one before (RBAC cannot restrict `create` to a name)",
    ("muster-remediation", "nodehealths, preflights"): "what was found on nodes",
    ("muster-remediation", "noderemediations"): "its only memory",
    ("muster-remediation", "noderemediations/status"): "the same",
    ("muster-remediation", "nodes"): "the taint of quarantine, and its record",
    ("muster-remediation", "nodes/status"): "conditions that say what is wrong",
    (
        "muster-remediation",
        "configmaps muster-health muster-scaling",
    ): "what may be done; which pools can replace nodes",
    ("muster-remediation", "configmaps muster-mesh"): "which agents look at which nodes",
    ("muster-remediation", "configmaps"): "the one before (RBAC cannot restrict `create` to a name)",
    ("muster-preflight", "preflights"): "records of tests",
    ("muster-preflight", "nodehealths, noderemediations"): "which nodes are suspect or in quarantine",
    ("muster-preflight", "nodes"): "the taint of nodes that were not tested",
    ("muster-preflight", "configmaps muster-preflight muster-health"): "how to test; what findings mean",
    ("muster-agent", "nodehealths"): "what it sees; by the policy `muster-agents` only of its own node",
    ("muster-agent", "nodehealths/status"): "the same",
    ("muster-admission", "namespaces"): "whose a pod is",
    ("muster-admission", "mutatingwebhookconfigurations, validatingwebhookconfigurations muster-admission"): (
        "`caBundle` of its certificates"
    ),
    ("muster-admission", "configmaps muster-teams"): "who owns how many nodes",
    ("muster-admission", "secrets"): "the one below (RBAC cannot restrict `create` to a name)",
    ("muster-admission", "secrets muster-admission-tls"): "its certificates",
    ("muster-edit", "trainingjobs"): "for people with `edit` or `admin`: submit jobs (`aggregateUserRoles`)",
    ("muster-view", "trainingjobs, trainingjobs/status, placements"): "for people with `view`: see jobs",
    ("muster-view", "nodehealths, preflights, noderemediations"): "for people with `view`: see nodes",
}
"""Why each right is given, by role and by what it is about."""


def rights() -> Iterator[Right]:
    """Every rule of the chart, by template."""
    for path in sorted(chart().glob("templates/*.yaml"), key=lambda path: (path.name != "rbac.yaml", path.name)):
        text = re.sub(r"\{\{-? ?/\*.*?\*/ ?-?\}\}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        text = text.replace("{{ .Release.Namespace }}", OWN)
        for part in re.split(r"^---\s*$", text, flags=re.MULTILINE):
            if re.search(r"^kind: (Cluster)?Role$", part, re.MULTILINE):
                yield from of_role(yaml.safe_load(re.sub(r"\{\{.*?\}\}", "", part)))


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
    """docs/install.md with its tables as the chart is."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}\n{tables()}\n\n{_END}{rest.partition(_END)[2]}"


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it; returns the exit status."""
    return write_or_check(arguments, lambda: {PAGE: page()}, _HOW, "the chart says")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
