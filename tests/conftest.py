"""Fixtures for every test, and how tests are handed out to several processes."""

import os
import signal
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.support.handingout import handed_out_with, longest_first

pytest_plugins = ["tests.support.controlplane"]

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: no Ctrl-C to test there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each process of pytest-xdist has COLUMNS=80, which would fold what a script reads (issue 11.20).
os.environ.pop("COLUMNS", None)

settings.register_profile("muster", deadline=None, print_blob=True)  # no test asserts how long something takes
settings.load_profile("muster")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        longest_first(items)


class ByFile(LoadFileScheduling):
    """Hands out by file, and with each what belongs to it; to one process from the other end of the order.

    It takes what needs a core while the others begin with what mostly waits.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node.gateway.id == "gw0":
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return handed_out_with(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None
