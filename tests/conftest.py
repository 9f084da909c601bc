"""Fixtures for every test, and how tests are handed out to several processes."""

import os
import signal
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.support.handingout import handed_out_with, longest_first, next_unit

pytest_plugins = ["tests.support.controlplane"]

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: no Ctrl-C to test there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each process of pytest-xdist has COLUMNS=80, which would fold what a script reads (issue 11.20).
os.environ.pop("COLUMNS", None)

# Tests trust only authorities that they create. aiohttp reads all authorities of the system at each import (25 ms).
os.environ["SSL_CERT_FILE"] = os.devnull

settings.register_profile("muster", deadline=None, print_blob=True)  # no test asserts how long something takes
settings.load_profile("muster")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    needless = {item for item in items if item.get_closest_marker("any_server") and item.get_closest_marker("real")}
    items[:] = [item for item in items if item not in needless]
    config.hook.pytest_deselected(items=list(needless))
    if hasattr(config, "workerinput"):
        longest_first(items)


class ByFile(LoadFileScheduling):
    """Hands out units of tests: `tests/support/handingout.py` says what a unit is and which process gets which."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        unit = next_unit(int(node.gateway.id.removeprefix("gw")), self.workqueue)
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return handed_out_with(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None
