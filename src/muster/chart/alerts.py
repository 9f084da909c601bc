"""Writes what comes from the alerts: `python -m muster.chart.alerts [--check]`.

These are the chart's files/rules, the facts and the last section of each runbook page, and tables of the index.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from muster.api.generated import write_or_check
from muster.chart.files import chart
from muster.telemetry.alerts.alert import Alert
from muster.telemetry.alerts.alerts import FILES, RUNBOOKS, by_name, duration, rule_file
from muster.telemetry.alerts.thresholds import DEFAULTS, THRESHOLDS

_HOW: Final = "python -m muster.chart.alerts"
PAGES: Final = Path(__file__).resolve().parents[3] / RUNBOOKS
_BEGIN, _END = f"<!-- written by {_HOW}: {{}} -->", "<!-- end -->"
_BLOCK: Final = re.compile(rf"<!-- written by {re.escape(_HOW)}: (\w+) -->\n.*?{_END}", re.DOTALL)


def facts(alert: Alert) -> str:
    """The severity, the wait and the expression of an alert."""
    wait = f"after {duration(alert.for_s)}" if alert.for_s else "at once"
    limits = ", ".join(f"`{name}` ({DEFAULTS[name]:.15g})" for name in alert.thresholds())
    lines = [f"Severity {alert.severity}; fires {wait}." + (f" Thresholds: {limits}." if limits else "")]
    return "\n".join([*lines, "", "```promql", alert.rendered(DEFAULTS).strip(), "```"])


def silence(alert: Alert) -> str:
    """How to silence an alert."""
    command = f'amtool silence add alertname={alert.name} --duration=2h --comment="why"'
    return (
        f"```sh\n{command}\n```\n\n"
        "Add labels of the alert to silence a part of it, such as `cluster=NAME`. If your team never needs this\n"
        f"alert, add `{alert.name}` to the chart's value `telemetry.alerts.disabled`."
    )


def alerts_table() -> str:
    """A row for each page."""
    files = {alert.name: file.name for file in reversed(FILES) for alert in file.alerts}
    rows = [f"| [{name}]({name}.md) | {same[0].severity} | {files[name]} |" for name, same in by_name().items()]
    return "\n".join(["| alert | severity | file |", "|---|---|---|", *rows])


def thresholds_table() -> str:
    """A row for each threshold."""
    rows = [f"| `{each.name}` | {each.default:.15g} | {each.meaning} |" for each in THRESHOLDS]
    return "\n".join(["| threshold | default | limits |", "|---|---|---|", *rows])


def _filled(text: str, blocks: dict[str, str]) -> str:
    """The text with its generated blocks. Raises KeyError for the name of an unknown block."""
    return _BLOCK.sub(lambda found: f"{_BEGIN.format(found[1])}\n{blocks[found[1]]}\n{_END}", text)


def _pages() -> Iterator[tuple[Path, str]]:
    for name, (alert, *_) in by_name().items():
        path = PAGES / f"{name}.md"
        if path.exists():
            yield path, _filled(path.read_text(encoding="utf-8"), {"facts": facts(alert), "silence": silence(alert)})
    index = PAGES / "README.md"
    yield (
        index,
        _filled(index.read_text(encoding="utf-8"), {"alerts": alerts_table(), "thresholds": thresholds_table()}),
    )


def definitions() -> dict[str, dict[str, Any]]:
    """Schemas of values of the chart, by path: thresholds by name, and names of alerts."""
    limits = {each.name: {"type": "number", "minimum": 0} for each in THRESHOLDS}
    return {
        "telemetry.alerts.thresholds": {"type": "object", "additionalProperties": False, "properties": limits},
        "telemetry.alerts.disabled": {"type": "array", "items": {"enum": sorted(by_name())}},
    }


def files() -> dict[Path, str]:
    """Every generated file with its text."""
    rules = {
        chart() / "files/rules" / f"{file.name}.yaml": f"# Written by {_HOW}.\n{rule_file(file)}" for file in FILES
    }
    return rules | dict(_pages())


def main(arguments: list[str]) -> int:
    """Write the files, or with --check compare them; returns the exit status."""
    return write_or_check(arguments, files, _HOW, "the alerts say")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
