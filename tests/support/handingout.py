"""How tests are grouped into units and in which order the test processes get these units."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
TOGETHER = {
    f"tests/scenarios/{folder}/test_{name}.py": folder
    for folder, names in {
        "admission": ("attempts", "chart", "legitimate"),
        "deploy": ("chart", "data_cache", "installed", "shadow"),
    }.items()
    for name in names
}
"""Files that share a cluster which takes half a minute to make: one process runs them, one after the other."""
LONG = {
    "admission": 150,
    "deploy": 300,
    "tests/scenarios/backfill/test_bad_days.py[real]": 30,
    "tests/scenarios/backfill/test_jobs.py[real]": 25,
    "tests/scenarios/baddays/test_control_plane.py": 380,
    "tests/scenarios/baddays/test_control_plane.py[real]": 100,
    "tests/scenarios/baddays/test_nodes_and_pods.py": 250,
    "tests/scenarios/data/test_world_sizes.py": 30,
    "tests/scenarios/deploy/test_absent_values.py": 150,
    "tests/scenarios/deploy/test_everything.py": 150,
    "tests/scenarios/deploy/test_images.py": 75,
    "tests/scenarios/deploy/test_values.py": 15,
    "tests/scenarios/fleet/test_balloons.py": 50,
    "tests/scenarios/fleet/test_joins.py": 50,
    "tests/scenarios/fleet/test_scaling.py": 200,
    "tests/scenarios/fleet/test_scaling_aws.py": 40,
    "tests/scenarios/fleet/test_scaling_program.py": 70,
    "tests/scenarios/network/test_uplink.py": 40,
    "tests/scenarios/preflight/test_installed.py": 60,
    "tests/scenarios/preflight/test_kubelet.py": 60,
    "tests/scenarios/readcache/test_clients.py": 55,
    "tests/scenarios/remediation/test_dead.py": 30,
    "tests/scenarios/remediation/test_dead.py[real]": 25,
    "tests/scenarios/remediation/test_gangs.py": 70,
    "tests/scenarios/scheduler/test_differential.py": 40,
    "tests/scenarios/telemetry/test_alerts_fire.py": 190,
    "tests/scenarios/trainingjobs/test_borrowing.py[real]": 25,
    "tests/scenarios/trainingjobs/test_exec_rights.py[real]": 20,
    "tests/scenarios/trainingjobs/test_history.py": 35,
    "tests/scenarios/trainingjobs/test_history.py[real]": 40,
    "tests/scenarios/trainingjobs/test_shrinking.py": 100,
    "tests/scenarios/trainingjobs/test_silence.py": 20,
    "tests/scenarios/trainingjobs/test_upstream.py": 200,
    "tests/system/test_cli_demo.py": 150,
    "tests/system/test_cli_jobs.py": 200,
    "tests/system/test_controlplane.py[real]": 40,
    "tests/system/test_data_tutorial.py": 65,
    "tests/system/test_quick_start.py": 30,
    "tests/system/test_setup.py": 40,
    "tests/system/test_up_real.py": 75,
}
"""Seconds that files take, where the number of their tests says little about it."""


ON_REAL = frozenset(
    {
        "tests/scenarios/agent/test_rights.py",
        "tests/scenarios/apiserver/test_differential.py",
        "tests/scenarios/apiserver/test_malformed.py",
        "tests/scenarios/deploy/test_network_addresses.py",
        "tests/scenarios/network/test_address_plan.py",
        "tests/scenarios/readcache/test_reads_differential.py",
        "tests/scenarios/readcache/test_wire.py",
        "tests/system/test_controlplane.py",
    }
)
"""Files that use the shared real control plane of their process in all tests."""
REAL = "[real]"
"""The end of the name of a unit whose tests run on the shared real control plane of their process."""
REAL_PROCESSES = 1
"""How many processes run such units first: each real control plane takes CPU as long as its process lives."""
_ON_REAL = re.compile(r"\[(?:[^\[\]]*-)?real(?:-[^\[\]]*)?\]$")


def handed_out_with(nodeid: str) -> str:
    """Return the unit of a test: its file, or files that share a cluster.

    Tests on the real API server are a unit of their own.
    """
    file = nodeid.partition("::")[0]
    unit = TOGETHER.get(file, file)
    return f"{unit}{REAL}" if file in ON_REAL or _ON_REAL.search(nodeid) else unit


def next_unit(process: int, units: Iterable[str]) -> str:
    """Return which of the waiting units a test process gets, given its number and the units in order.

    Process 0 begins at the end, with what needs a core while the other processes mostly wait. The next
    REAL_PROCESSES begin with units for the real API server, and the others with the rest.
    """
    waiting = list(units)
    if process == 0:
        return waiting[-1]
    wants_real = process <= REAL_PROCESSES
    return next((unit for unit in waiting if unit.endswith(REAL) == wants_real), waiting[0])


def longest_first(items: list[pytest.Item]) -> None:
    """Sort so that no process is left alone with a long file at the end.

    The longest files come first (they mostly wait), then other files that run processes. Unit tests and
    simulations come last, as they use all the CPU; one process begins with these (tests/conftest.py). The
    simulations, whose files are longer, are its first. pytest-xdist keeps this order with
    --no-loadscope-reorder. Its own order begins with the files that have the most tests.
    """
    seconds: Counter[str] = Counter()
    for item in items:
        unit = handed_out_with(item.nodeid)
        if item.path.is_relative_to(TESTS / "sim"):
            seconds[unit] = -1
        elif not item.path.is_relative_to(TESTS / "unit"):
            seconds[unit] += 5 if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: -LONG.get(handed_out_with(item.nodeid), seconds[handed_out_with(item.nodeid)]))
