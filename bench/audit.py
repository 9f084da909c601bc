"""Writes to the API server, counted from its own audit log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

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


class _Reference(msgspec.Struct):
    resource: str = ""
    subresource: str = ""


class _User(msgspec.Struct):
    username: str = ""


class _Status(msgspec.Struct):
    code: int = 0


class _Entry(msgspec.Struct, rename="camel"):
    verb: str = ""
    user: _User = msgspec.field(default_factory=_User)
    user_agent: str = ""
    object_ref: _Reference = msgspec.field(default_factory=_Reference)
    response_status: _Status = msgspec.field(default_factory=_Status)


_decode = msgspec.json.Decoder(_Entry).decode


class AuditLog:
    """The audit log of one API server, in `directory`.

    Lease renewals and questions (TokenReview and the like) are not in it. Refused requests count: they cost as much.
    What Kubernetes' node lifecycle controller writes about a lost node is the same whoever runs on it: not counted.
    """

    def __init__(self, directory: Path, *, ignored_agents: Sequence[str]) -> None:
        """Write the policy; `ignored_agents` are User-Agents whose writes are not counted."""
        self._log = directory / "audit.log"
        self._policy = directory / "audit-policy.yaml"
        self._policy.write_text(POLICY)
        self._ignored = set(ignored_agents)

    @property
    def apiserver_arguments(self) -> list[str]:
        """What kube-apiserver needs to be told."""
        return [
            f"--audit-policy-file={self._policy}",
            f"--audit-log-path={self._log}",
            "--audit-log-maxsize=0",
            "--audit-log-mode=blocking",  # an answered request is in the log
        ]

    def position(self) -> int:
        """Where the log ends now."""
        return self._log.stat().st_size if self._log.exists() else 0

    def writes(self, since: int) -> Counter[str]:
        """Writes since `since`, by user, verb and resource."""
        with self._log.open("rb") as log:
            log.seek(since)
            whole, _, _ = log.read().rpartition(b"\n")
        counted: Counter[str] = Counter()
        for line in whole.split(b"\n"):
            if not line:
                continue
            entry = _decode(line)
            if entry.user_agent in self._ignored or entry.user.username.endswith(":node-controller"):
                continue
            what = "/".join(part for part in (entry.object_ref.resource, entry.object_ref.subresource) if part)
            refused = f" ({entry.response_status.code})" if entry.response_status.code >= 400 else ""
            counted[f"{entry.user.username.rpartition(':')[2]} {entry.verb} {what}{refused}"] += 1
        return counted


def total(writes: Mapping[str, int]) -> int:
    """All of them."""
    return sum(writes.values())
