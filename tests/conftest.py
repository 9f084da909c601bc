"""Fixtures for every test, and the order of files."""

import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["tests.support.controlplane"]

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: no Ctrl-C to test there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("muster", deadline=None, print_blob=True)  # no test asserts how long something takes
settings.load_profile("muster")

UNIT = Path(__file__).parent / "unit"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes side by side none shall be left alone with a long file at the end.

    Files with the most slow tests come first (they mostly wait), then the rest of what runs processes; unit tests,
    which take milliseconds and all the CPU there is, fill what is left. pytest-xdist hands files out in this order
    with --no-loadscope-reorder: its own begins with those that have the most tests, however quick these are.
    """
    if not hasattr(config, "workerinput"):
        return
    weights: Counter[Path] = Counter()
    for item in items:
        if not item.path.is_relative_to(UNIT):
            weights[item.path] += 10 if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: -weights[item.path])
