"""Alerts about the guard in front of Prometheus."""

from __future__ import annotations

from typing import Final

from muster.telemetry.alerts.alert import Alert, RuleFile
from muster.telemetry.alerts.expressions import lines
from muster.telemetry.alerts.targets import missing

_ALL: Final = "sum by (cluster) (rate(muster_guard_requests_total[10m]))"


def _share(outcomes: str, threshold: str) -> str:
    """The share of requests that ended so is greater than a threshold."""
    return lines(f"""
        sum by (cluster) (rate(muster_guard_requests_total{{outcome=~"{outcomes}"}}[10m]))
        / {_ALL} > ${threshold}
    """)


GUARD: Final = RuleFile(
    "guard",
    (
        missing("guard"),
        Alert(
            name="MusterGuardRefuses",
            expr=_share("refused|over_budget", "guardRefusedShare"),
            for_s=900,
            severity="info",
            summary="The guard refuses {{ $value | humanizePercentage }} of the requests, because they cost too much.",
        ),
        Alert(
            name="MusterGuardWithoutUpstream",
            expr=_share("unreachable|timeout|broken", "guardFailedShare"),
            for_s=300,
            severity="critical",
            summary="{{ $value | humanizePercentage }} of the guard's requests get no answer from Prometheus.",
        ),
        Alert(
            name="MusterGuardWithoutPrice",
            expr=_share("no_price", "guardFailedShare"),
            for_s=300,
            severity="warning",
            summary="The guard finds no price for {{ $value | humanizePercentage }} of the requests, and refuses them.",
        ),
        Alert(
            name="MusterGuardConfigBroken",
            expr="count by (cluster) (muster_guard_config_problem == 1)",
            for_s=300,
            severity="warning",
            summary="{{ $value }} guards cannot use the newest guard.yaml, so an earlier configuration is in use.",
        ),
        Alert(
            name="MusterGuardUpstreamFilesBroken",
            expr="count by (cluster, files) (muster_guard_upstream_files_problem == 1)",
            for_s=120,  # the kubelet renews a token of an hour 12 minutes before its end
            severity="critical",
            summary="{{ $value }} guards cannot use their new {{ $labels.files }}: requests fail once the old expire.",
        ),
    ),
)
