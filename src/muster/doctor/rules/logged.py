"""Culprits that a log of requests names, if the user gave one: more exact than samples and roles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from muster.api.finding import Culprit
from muster.doctor.costs.collect import RequestUsage
from muster.doctor.costs.owners import Caller
from muster.doctor.costs.tally import Usage
from muster.doctor.evidence import Evidence

_SHOWN: Final = 5


def logged(evidence: Evidence, keep: Callable[[Usage], bool], weight: Callable[[Usage], float]) -> tuple[Culprit, ...]:
    """Return the callers of the logged requests that `keep` chooses, with shares by `weight`, the largest first.

    Callers that belong to the control plane are left out.
    """
    usage = evidence.part(RequestUsage)
    found: dict[Caller, float] = {}
    for each in usage.observed.usages if usage is not None else ():
        if keep(each) and not each.caller.system:
            found[each.caller] = found.get(each.caller, 0.0) + weight(each)
    whole = sum(found.values())
    ranked = sorted(found.items(), key=lambda entry: (-entry[1], entry[0]))
    return tuple(
        Culprit(caller.kind, f"{caller.namespace}/{caller.name}" if caller.namespace else caller.name, part / whole)
        for caller, part in ranked[:_SHOWN]
        if part > 0
    )
