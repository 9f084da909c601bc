"""Checks that the fields of a rule fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from muster.fleet.health.policy import UNKNOWN_CODE, Entry, Rule


def rule_problems(rule: Rule, codes: Mapping[str, Mapping[str, Entry]]) -> Iterator[str]:
    """Yield the problems of a rule whose single fields are valid, and what to change."""
    if rule.remediations:
        if rule.check or rule.codes or rule.beside or rule.excuses:
            yield "remediations stands alone; leave out check, codes, beside and excuses"
        return
    if not rule.check:
        yield "check is missing; write which check's findings it is about"
    elif rule.check not in codes:
        yield f"no code of the check {rule.check} is in the policy; correct its name, or add the check below codes"
    else:
        known = codes[rule.check]
        wanted = (*rule.codes, *(rule.beside.codes if rule.beside else ()))
        for code in wanted:
            if code == UNKNOWN_CODE or not any(each == code or each.startswith(f"{code}/") for each in known):
                yield f"code {code} of {rule.check} is not in the policy; correct it, or add it below codes"
    if rule.components > 1 and rule.per == "component":
        yield "components counts different ones, and per: component looks at one; write per: node"
