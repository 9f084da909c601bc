"""Fixtures for every test, and how tests are handed out to several processes."""

import gc
import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.support.fewexamples import limit_examples
from tests.support.handingout import handed_out_with, longest_first, next_unit

pytest_plugins = ["tests.support.controlplane", "tests.support.lateloop"]

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: no Ctrl-C to test there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What collecting creates stays until the end: searching it for garbage again and again takes 3 of 10 CPU seconds.
gc.disable()

# Each process of pytest-xdist has COLUMNS=80, which would fold what a script reads (issue 11.20).
os.environ.pop("COLUMNS", None)

# Tests trust only authorities that they create. aiohttp reads all authorities of the system at each import (25 ms).
os.environ["SSL_CERT_FILE"] = os.devnull

# A real API server collects garbage less often here: 0.1 GB more, and a sixth of its CPU time less.
os.environ.setdefault("GOGC", "400")

# No test asserts how long something takes, and no example is too slow.
settings.register_profile("muster", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("muster")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-server",
        action="store_true",
        help="run tests marked any_server on a real control plane too (tests/support/anyserver.py)",
    )
    parser.addoption(
        "--most-examples",
        type=int,
        help="try at most this many examples of each property (tests/support/fewexamples.py)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("every_server"):
        needless = {item for item in items if item.get_closest_marker("any_server") and item.get_closest_marker("real")}
        items[:] = [item for item in items if item not in needless]
        config.hook.pytest_deselected(items=list(needless))
    if config.getoption("most_examples"):
        limit_examples(items, config.getoption("most_examples"))
    if hasattr(config, "workerinput"):
        longest_first(items)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name bytes by their argument: packed ones hold the time, and pytest-xdist wants equal names in each process."""
    return argname if isinstance(val, bytes) and not val.isascii() else None


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
