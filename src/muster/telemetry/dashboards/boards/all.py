"""All dashboards."""

from __future__ import annotations

from typing import Final

from muster.telemetry.dashboards.boards.controlplane import CONTROL_PLANE
from muster.telemetry.dashboards.boards.data import DATA
from muster.telemetry.dashboards.boards.fleet import FLEET
from muster.telemetry.dashboards.boards.guard import GUARD
from muster.telemetry.dashboards.boards.jobs import JOBS
from muster.telemetry.dashboards.boards.network import NETWORK
from muster.telemetry.dashboards.boards.remediation import REMEDIATION
from muster.telemetry.dashboards.boards.scheduler import SCHEDULER

DASHBOARDS: Final = (FLEET, JOBS, SCHEDULER, REMEDIATION, CONTROL_PLANE, NETWORK, DATA, GUARD)
