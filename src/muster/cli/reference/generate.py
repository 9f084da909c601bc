"""Generates all files that come from the code: `python -m muster.cli.reference.generate [--check]`.

One process generates all of them, since the imports take most of the time.
"""

from __future__ import annotations

import sys
from typing import Final

import muster.api.generate
import muster.chart.alerts
import muster.chart.generate
import muster.chart.rights
import muster.cli.reference.commands
import muster.cli.reference.metrics
import muster.cli.reference.sdk
import muster.fleet.health.schema
import muster.telemetry.dashboards.generate
import muster.telemetry.guard.reference
import muster.trainingjobs.faults.page

_GENERATORS: Final = (
    muster.api.generate.main,
    muster.trainingjobs.faults.page.main,
    muster.fleet.health.schema.main,
    muster.chart.generate.main,
    muster.chart.alerts.main,
    muster.chart.rights.main,
    muster.cli.reference.commands.main,
    muster.cli.reference.metrics.main,
    muster.telemetry.dashboards.generate.main,
    muster.telemetry.guard.reference.main,
    muster.cli.reference.sdk.main,
)


def main(arguments: list[str]) -> int:
    """Write or check all files. Return the highest exit status."""
    return max([generate(arguments) for generate in _GENERATORS])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
