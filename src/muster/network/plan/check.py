"""Checks an estate of clusters: runs every rule, and sorts the findings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from muster.network.plan.checks.capacity import fragmented, full, mixed_masks, node_masks, service_ranges
from muster.network.plan.checks.limits import limits
from muster.network.plan.checks.nodes import isolation, kernels, mtus
from muster.network.plan.checks.overlaps import duplicate_blocks, overlapping, reserved
from muster.network.plan.checks.view import View, view
from muster.network.plan.estate import Estate
from muster.network.plan.finding import Finding, Severity

PER_RULE_MAX: Final = 200
"""One wrong supernet can overlap every range of a large estate."""

_RULES: Final[tuple[Callable[[View], Iterator[Finding]], ...]] = (
    overlapping,
    duplicate_blocks,
    reserved,
    service_ranges,
    node_masks,
    mixed_masks,
    full,
    fragmented,
    limits,
    kernels,
    mtus,
    isolation,
)


def check(estate: Estate) -> tuple[Finding, ...]:
    """Return the findings of all rules, errors first."""
    found = view(estate)
    findings: list[Finding] = []
    for rule in _RULES:
        of_rule = list(islice(rule(found), PER_RULE_MAX + 1))
        if len(of_rule) > PER_RULE_MAX:
            last = of_rule[PER_RULE_MAX - 1]
            of_rule = of_rule[: PER_RULE_MAX - 1]
            what = f"there are more findings like this than the {PER_RULE_MAX} that are shown: {last.what}"
            of_rule.append(Finding(last.id, last.severity, last.where, what, last.fix, last.source))
        findings += of_rule
    return tuple(sorted(findings, key=lambda each: each.severity is not Severity.ERROR))
