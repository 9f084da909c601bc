"""All alerts, and the text of the files of rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from muster.telemetry.alerts.alert import Alert, RuleFile
from muster.telemetry.alerts.rules.controller import CONTROLLER
from muster.telemetry.alerts.rules.data import DATA
from muster.telemetry.alerts.rules.guard import GUARD
from muster.telemetry.alerts.rules.jobs import JOBS
from muster.telemetry.alerts.rules.network import NETWORK
from muster.telemetry.alerts.rules.nodes import HEALTH, JOINS, PREFLIGHT, SCALING, TEAMS
from muster.telemetry.alerts.rules.readcache import READCACHE
from muster.telemetry.alerts.rules.scheduler import SCHEDULER
from muster.telemetry.alerts.thresholds import DEFAULTS

FILES: Final = (CONTROLLER, JOBS, SCHEDULER, HEALTH, PREFLIGHT, JOINS, SCALING, TEAMS, READCACHE, NETWORK, DATA, GUARD)
RUNBOOKS: Final = "docs/runbooks"
"""The folder of runbooks in the repository. In the chart, `telemetry.alerts.runbookBaseUrl` replaces it."""

_Lines = type("_Lines", (str,), {})


class _Dumper(yaml.SafeDumper):
    """Writes expressions as blocks of lines."""


_Dumper.add_representer(
    _Lines, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)


def by_name() -> dict[str, list[Alert]]:
    """Return the alerts by name. Several files may hold one of the same name: a runbook page serves all of them."""
    found: dict[str, list[Alert]] = {}
    for file in FILES:
        for alert in file.alerts:
            found.setdefault(alert.name, []).append(alert)
    return found


def rule_file(
    file: RuleFile,
    *,
    for_s: float | None = None,
    thresholds: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
) -> str:
    """Return the file as Prometheus reads it.

    Args:
        file: its alerts.
        for_s: seconds for which every expression must hold, instead of those of the alerts.
        thresholds: values that replace defaults, by name.
        labels: added to each alert.

    Raises KeyError for the name of an unknown threshold.
    """
    values = {**DEFAULTS, **(thresholds or {})}
    for name in values:
        DEFAULTS[name]
    rules = [_rule(alert, values, alert.for_s if for_s is None else for_s, labels or {}) for alert in file.alerts]
    group = {"name": f"muster-{file.name}", "rules": rules}
    return yaml.dump({"groups": [group]}, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def _rule(alert: Alert, values: Mapping[str, float], for_s: float, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": _Lines(alert.rendered(values) + "\n"),
        **({"for": duration(for_s)} if for_s else {}),
        "labels": {"severity": alert.severity, **({"job": alert.job} if alert.job else {}), **labels},
        "annotations": {"summary": alert.summary, "runbook_url": f"{RUNBOOKS}/{alert.name}.md"},
    }


def duration(seconds: float) -> str:
    """Return a duration as Prometheus writes it: `90s`, `15m`, `1h`, `500ms`."""
    if seconds % 1:
        return f"{round(seconds * 1000)}ms"
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
