"""The report of `muster network doctor`."""

from __future__ import annotations

import msgspec

from muster.api.finding import Finding, Severity, Unseen
from muster.api.reader import OwnCost


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of an examination. Scripts read its JSON form: never rename or remove a field.

    Attributes:
        nodes: nodes of the cluster; 0 if not known. 1 for the examination of this machine.
        planned_nodes: nodes for which findings are planned; 0 for today's.
        checked_nodes: nodes whose agent reports about its network.
        examined: what could be examined, at least in part. Empty: the report says nothing about the network.
        findings: errors first.
        unseen: what could not be examined.
        own_cost: what the examination cost the API server.
    """

    nodes: int
    planned_nodes: int
    checked_nodes: int
    examined: tuple[str, ...]
    findings: tuple[Finding, ...]
    unseen: tuple[Unseen, ...]
    own_cost: OwnCost

    @property
    def failed(self) -> bool:
        """Returns whether a finding is an error, or nothing could be examined."""
        return not self.examined or any(finding.severity is Severity.ERROR for finding in self.findings)
