"""`muster controller` whose backfilled gangs may be asked to leave after a few seconds instead of a minute."""

from __future__ import annotations

import functools
import sys

from muster.cli.main import run
from muster.cli.processes import controller
from muster.scheduler.plan import Settings

MIN_RUN_S = 3.0

if __name__ == "__main__":
    controller.Settings = functools.partial(Settings, backfill_min_run_s=MIN_RUN_S)  # type: ignore[misc, assignment]
    sys.exit(run(sys.argv[1:]))
