"""The audit log of an API server that we start: who asked what, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

METADATA_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""

_DECISION = "authorization.k8s.io/decision"


class Reference(msgspec.Struct, rename="camel"):
    """The object of a request; for a list or a create the name is empty."""

    api_group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def what(self) -> str:
        """The resource as RBAC writes it: `pods/binding`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class User(msgspec.Struct):
    """The user of a request."""

    username: str = ""


class Status(msgspec.Struct):
    """The answer to a request."""

    code: int = 0


class AuditEntry(msgspec.Struct, rename="camel"):
    """One request at one of its stages: a watch has two."""

    verb: str = ""
    stage: str = ""
    user: User = msgspec.field(default_factory=User)
    request_uri: str = msgspec.field(default="", name="requestURI")
    user_agent: str = ""
    object_ref: Reference = msgspec.field(default_factory=Reference)
    response_status: Status = msgspec.field(default_factory=Status)
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def forbidden(self) -> bool:
        """Returns whether authorization refused it: quota and admission policies answer 403 as well."""
        return self.annotations.get(_DECISION) == "forbid"


_decode = msgspec.json.Decoder(AuditEntry).decode


class AuditLog:
    """The audit log of one API server, in `directory`."""

    def __init__(self, directory: Path, policy: str = METADATA_POLICY) -> None:
        """Write the policy; the API server is to be started with `apiserver_arguments`."""
        self._log = directory / "audit.log"
        self._policy = directory / "audit-policy.yaml"
        self._policy.write_text(policy)

    @property
    def apiserver_arguments(self) -> list[str]:
        """Returns the arguments of kube-apiserver for this log."""
        return [
            f"--audit-policy-file={self._policy}",
            f"--audit-log-path={self._log}",
            "--audit-log-maxsize=0",
            "--audit-log-mode=blocking",  # an answered request is in the log
        ]

    def position(self) -> int:
        """Returns the current end of the log, in bytes."""
        return self._log.stat().st_size if self._log.exists() else 0

    def entries(self, since: int = 0, until: int | None = None) -> Iterator[AuditEntry]:
        """Yield what was logged after the position `since`, and before `until` where it is given."""
        if not self._log.exists():
            return
        with self._log.open("rb") as log:
            log.seek(since)
            whole, _, _ = log.read(-1 if until is None else until - since).rpartition(b"\n")
        for line in whole.split(b"\n"):
            if line:
                yield _decode(line)
