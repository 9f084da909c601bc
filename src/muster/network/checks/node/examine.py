"""All rules of a node, and the kinds of problems that they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from muster.network.checks.node import allowances, bridges, conntrack, mtu, neighbours, ports, probed, reversepath
from muster.network.checks.node.evidence import NodeEvidence, Settings
from muster.network.checks.problem import Kind, Problem

RULES: Final[tuple[Callable[[NodeEvidence, NodeEvidence | None, Settings], Iterator[Problem]], ...]] = (
    conntrack.find,
    neighbours.find,
    mtu.find,
    ports.find,
    reversepath.find,
    bridges.find,
    allowances.find,
)
KINDS: Final[Mapping[tuple[str, str], Kind]] = {
    **conntrack.KINDS,
    **neighbours.KINDS,
    **mtu.KINDS,
    **ports.KINDS,
    **reversepath.KINDS,
    **bridges.KINDS,
    **allowances.KINDS,
    **probed.KINDS,
}
"""By check and code."""


def examine(now: NodeEvidence, before: NodeEvidence | None, settings: Settings) -> list[Problem]:
    """Return the problems of a node. Pure.

    Args:
        now: what was just read.
        before: what was read at the last look; None at the first one, which then finds nothing that is counted.
        settings: of the operator.
    """
    return [problem for rule in RULES for problem in rule(now, before, settings)]
