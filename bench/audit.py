"""Writes to the API server, counted from its own audit log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import auditlog

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: None
  resources: [{group: coordination.k8s.io, resources: [leases]}]
- level: None  # questions, nothing is stored
  resources: [{group: authentication.k8s.io}, {group: authorization.k8s.io}]
- level: Metadata
"""


class AuditLog(auditlog.AuditLog):
    """The audit log of one API server, in `directory`.

    Left out are Lease renewals and review requests (TokenReview and the like). Refused requests count: they cost as
    much. The writes of Kubernetes' node lifecycle controller about a lost node are the same for every side: not
    counted.
    """

    def __init__(self, directory: Path, *, ignored_agents: Sequence[str]) -> None:
        """Write the policy; `ignored_agents` are User-Agents whose writes are not counted."""
        super().__init__(directory, POLICY)
        self._ignored = set(ignored_agents)

    def writes(self, since: int) -> Counter[str]:
        """Writes since `since`, by user, verb and resource."""
        counted: Counter[str] = Counter()
        for entry in self.entries(since):
            if entry.user_agent in self._ignored or entry.user.username.endswith(":node-controller"):
                continue
            refused = f" ({entry.response_status.code})" if entry.response_status.code >= 400 else ""
            user = entry.user.username.rpartition(":")[2]
            counted[f"{user} {entry.verb} {entry.object_ref.what}{refused}"] += 1
        return counted


def total(writes: Mapping[str, int]) -> int:
    """All of them."""
    return sum(writes.values())
