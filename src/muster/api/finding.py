"""A finding of a doctor: the culprit, the evidence, the cost today and at the planned size, and the fix.

`muster doctor` finds problems of the control plane, `muster network doctor` those of the network.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How urgent a finding is. Scripts read these values: never rename one."""

    ERROR = "error"
    """It harms the cluster now, or a single failure stops what many need."""
    WARNING = "warning"
    """It costs more than it should, or will harm the cluster at the planned size."""


class Growth(StrEnum):
    """How a cost grows with the number of nodes."""

    CONSTANT = "constant"
    PER_NODE = "perNode"
    PER_NODE_SQUARED = "perNodeSquared"

    @property
    def power(self) -> int:
        """The exponent of the number of nodes."""
        return (Growth.CONSTANT, Growth.PER_NODE, Growth.PER_NODE_SQUARED).index(self)


class Scale(msgspec.Struct, frozen=True):
    """The size of the cluster today and the planned one, in nodes.

    Attributes:
        nodes: today; 0 also if it is not known.
        planned: the planned number.
        known: whether today's number could be read.
    """

    nodes: int
    planned: int
    known: bool = True

    @property
    def factor(self) -> float:
        """Times today's size: 1 if that is not known. A cluster without nodes counts as one node."""
        return self.planned / max(self.nodes, 1) if self.known else 1.0

    def at_plan(self, today: float, growth: Growth) -> float:
        """Return what a cost of `today` becomes at the planned size."""
        return float(today * self.factor**growth.power)


class Culprit(msgspec.Struct, frozen=True):
    """What causes a finding, such as ("ServiceAccount", "monitoring/exporter").

    Attributes:
        kind: a Kubernetes kind, or "User", "Flow", "EventSource".
        name: `namespace/name`, or a name that has no namespace.
        share: its share of the cost, from 0 to 1; None if not known.
    """

    kind: str
    name: str
    share: float | None = None


class Measure(msgspec.Struct, frozen=True):
    """A number that supports a finding.

    Attributes:
        what: what was measured.
        value: the number.
        unit: its unit, such as "requests/s", "bytes" or "s"; "" for a count.
        source: where the number comes from: a metric, a path or an object.
    """

    what: str
    value: float
    unit: str
    source: str


class Cost(msgspec.Struct, frozen=True):
    """What a culprit costs today and at the planned size, in `unit`."""

    what: str
    unit: str
    today: float
    planned: float
    growth: Growth


def cost(what: str, unit: str, today: float, growth: Growth, scale: Scale) -> Cost:
    """Return a cost that grows by a law."""
    return Cost(what, unit, today, scale.at_plan(today, growth), growth)


class Fix(msgspec.Struct, frozen=True):
    """What to do.

    Attributes:
        summary: one or two sentences.
        commands: command lines that can be copied.
        manifest: YAML to apply, "" for none.
    """

    summary: str
    commands: tuple[str, ...] = ()
    manifest: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem of the cluster.

    Attributes:
        id: the rule's name for this kind of problem, such as `webhook-slow`. Stable for scripts.
        severity: how urgent it is.
        title: one sentence for people, which names the culprit.
        who: the culprits, the most expensive one first.
        evidence: the numbers that support it.
        costs: what it costs today and at the planned size.
        fix: what to do.
    """

    id: str
    severity: Severity
    title: str
    who: tuple[Culprit, ...] = ()
    evidence: tuple[Measure, ...] = ()
    costs: tuple[Cost, ...] = ()
    fix: Fix


class Unseen(msgspec.Struct, frozen=True):
    """Something that could not be examined.

    Attributes:
        what: what was not examined.
        why: the reason, such as the API server's answer.
        right: the RBAC right that is missing, such as `get nonResourceURL /metrics`; "" if a right would not help.
    """

    what: str
    why: str
    right: str = ""
