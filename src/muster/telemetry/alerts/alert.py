"""What an alert is: when it fires, how urgent it is, and the thresholds that operators may change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

Severity = Literal["critical", "warning", "info"]
"""critical: jobs or nodes are at risk now, so wake a person. warning: act today. info: act this week."""

MARK: Final = "telemetry.alerts.thresholds."
"""Begins the comment behind each threshold in a rule; the chart finds the threshold by it."""

_USED: Final = re.compile(r"\$([a-zA-Z]+)")


class Threshold(msgspec.Struct, frozen=True):
    """A number in an expression that the chart's values can change.

    Attributes:
        name: its key in `telemetry.alerts.thresholds`.
        default: its value without a setting.
        meaning: what it limits, with its unit, for the page of runbooks.
    """

    name: str
    default: float
    meaning: str


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert.

    Attributes:
        name: begins with `Muster`; also the name of its runbook page.
        expr: PromQL. `$name` at the end of a line stands for the threshold with this name.
        for_s: seconds for which `expr` must hold.
        severity: how soon a person must act.
        summary: one line, with Go templates over `$labels` and `$value`.
        job: a label of the rule, by which alerts of one name differ; "" for none.
    """

    name: str
    expr: str
    for_s: int
    severity: Severity
    summary: str
    job: str = ""

    def thresholds(self) -> list[str]:
        """Return the names of the thresholds in the expression, in their order."""
        return _USED.findall(self.expr)

    def rendered(self, values: Mapping[str, float]) -> str:
        """Return the expression with `values`, and with a comment behind each of them."""
        return _USED.sub(lambda found: f"{values[found[1]]:.15g} # {MARK}{found[1]}", self.expr)


class RuleFile(msgspec.Struct, frozen=True):
    """Alerts about one part of Muster: a file of rules with one group.

    Attributes:
        name: of the file, without its ending.
        alerts: in the order of the file.
    """

    name: str
    alerts: tuple[Alert, ...]
