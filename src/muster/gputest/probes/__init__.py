"""The tests, one per file: functions that take a Context and report figures and failures."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from muster.gputest.context import Context

_PLACES = {
    "visibility": ("visibility", "run"),
    "memory": ("memory", "run"),
    "transfers": ("transfers", "run"),
    "peers": ("peers", "run"),
    "matmul": ("matmul", "run"),
    "sustained": ("sustained", "run"),
    "all-reduce": ("allreduce", "run"),
    "all-reduce-nodes": ("allreduce", "run_between_nodes"),
    "cpu": ("cpu", "run"),
    "host-memory": ("memory", "run_on_host"),
    "disk": ("disk", "run"),
}


def probe(name: str) -> Callable[[Context], None]:
    """Return the test of this name. It is imported now: if its libraries do not load, only this test fails."""
    module, function = _PLACES[name]
    run: Callable[[Context], None] = getattr(import_module(f"muster.gputest.probes.{module}"), function)
    return run
