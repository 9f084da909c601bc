"""In which order, and in whose company, files of tests are handed out to processes that run side by side."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
TOGETHER = {
    f"tests/scenarios/{folder}/test_{name}.py": folder
    for folder, names in {
        "admission": ("attempts", "chart", "legitimate"),
        "deploy": ("chart", "installed", "shadow"),
    }.items()
    for name in names
}
"""Files that share a cluster which takes half a minute to make: one process runs them, one after the other."""
LONG = {
    "admission": 150,
    "deploy": 300,
    "tests/scenarios/baddays/test_control_plane.py": 380,
    "tests/scenarios/baddays/test_nodes_and_pods.py": 250,
    "tests/scenarios/deploy/test_everything.py": 150,
    "tests/scenarios/deploy/test_values.py": 15,
    "tests/scenarios/fleet/test_balloons.py": 50,
    "tests/scenarios/fleet/test_joins.py": 50,
    "tests/scenarios/fleet/test_scaling.py": 200,
    "tests/scenarios/fleet/test_scaling_aws.py": 40,
    "tests/scenarios/fleet/test_scaling_program.py": 70,
    "tests/scenarios/preflight/test_installed.py": 60,
    "tests/scenarios/preflight/test_kubelet.py": 60,
    "tests/scenarios/remediation/test_gangs.py": 70,
    "tests/scenarios/scheduler/test_differential.py": 40,
    "tests/scenarios/trainingjobs/test_shrinking.py": 100,
    "tests/scenarios/trainingjobs/test_upstream.py": 200,
    "tests/system/test_cli_demo.py": 150,
    "tests/system/test_cli_jobs.py": 200,
    "tests/system/test_setup.py": 40,
}
"""Seconds that files take, where the number of their tests says little about it."""


def handed_out_with(nodeid: str) -> str:
    """Return what is handed out as one with this test: its file, or files that belong together."""
    file = nodeid.partition("::")[0]
    return TOGETHER.get(file, file)


def longest_first(items: list[pytest.Item]) -> None:
    """Sort so that no process is left alone with a long file at the end.

    The longest files come first (they mostly wait), then other files that run processes. Simulations and
    unit tests come last, as they use all the CPU; one process begins with these (tests/conftest.py).
    pytest-xdist keeps this order with --no-loadscope-reorder. Its own order begins with the files that have
    the most tests.
    """
    seconds: Counter[str] = Counter()
    for item in items:
        if not any(item.path.is_relative_to(TESTS / folder) for folder in ("unit", "sim")):
            seconds[handed_out_with(item.nodeid)] += 5 if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: -LONG.get(handed_out_with(item.nodeid), seconds[handed_out_with(item.nodeid)]))
