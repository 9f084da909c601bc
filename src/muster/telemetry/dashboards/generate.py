"""Writes the chart's dashboards, and docs/reference/dashboards.md, which lists their panels."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from muster.api.generated import write_or_check
from muster.telemetry.dashboards.boards.all import DASHBOARDS
from muster.telemetry.dashboards.dashboard import Dashboard
from muster.telemetry.dashboards.panel import RUNBOOKS, Panel

_ROOT: Final = Path(__file__).resolve().parents[4]
FILES: Final = _ROOT / "deploy/chart/muster/files/dashboards"
PAGE: Final = _ROOT / "docs/reference/dashboards.md"
_HOW: Final = "python -m muster.telemetry.dashboards.generate"

_HEAD: Final = f"""# Dashboards: panels

<!-- Written by {_HOW}; change src/muster/telemetry/dashboards/boards instead. -->

[Dashboards](../dashboards.md) says how to install them. Rows are those of the dashboards, from top to bottom.
"""


def file_text(dashboard: Dashboard) -> str:
    """Return the JSON file of a dashboard."""
    return json.dumps(dashboard.to_json(), indent=1, ensure_ascii=False) + "\n"


def files() -> Mapping[Path, str]:
    """Return the text of each generated file."""
    return {**{FILES / f"{each.name}.json": file_text(each) for each in DASHBOARDS}, PAGE: page()}


def page() -> str:
    """Return the page as Markdown."""
    lines = [_HEAD]
    for dashboard in DASHBOARDS:
        lines.append(f"\n## Muster / {dashboard.title}\n\n{dashboard.description}\n")
        for row in dashboard.rows:
            lines.append(
                f"\n### {dashboard.title}: {row.title}\n\n| panel | what it shows | runbooks |\n|---|---|---|\n"
            )
            lines.extend(_lines(row.panels))
    return "".join(lines)


def _lines(panels: tuple[Panel, ...]) -> Iterator[str]:
    for panel in panels:
        pages = ", ".join(f"[{name}](../{RUNBOOKS.removeprefix('docs/')}/{name}.md)" for name in panel.alerts)
        yield f"| {panel.title} | {panel.description} | {pages} |\n"


def main(arguments: list[str]) -> int:
    """Write the files, or with --check compare them; returns the exit status."""
    return write_or_check(arguments, files, _HOW, "the code says")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
