"""Takes the outer world away while a simulation runs: no wall clock, threads, sockets or randomness without a seed.

What only measures (`time.perf_counter` and its like) gets the virtual time; what would make a run differ from the next
one raises `LeftTheSimulation`.
"""

from __future__ import annotations

import gc
import os
import random
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

from muster.sim.virtual.loop import VirtualLoop

CLOCKS = ("time", "monotonic", "perf_counter")


class LeftTheSimulation(RuntimeError):
    """Code in a simulation reached for the outer world."""


class _SeededRandom(random.Random):
    """`random.Random`, but never without a seed."""

    def __new__(cls, *seed: Any) -> _SeededRandom:
        if not seed or seed[0] is None:
            raise LeftTheSimulation("random.Random() without a seed: pass a generator made from the simulation's seed")
        return super().__new__(cls, *seed)


@contextmanager
def sealed(loop: VirtualLoop) -> Iterator[None]:
    """While the context is open, time is the loop's, and everything else outside the simulation raises."""
    with ExitStack() as stack:
        for clock in CLOCKS:
            stack.enter_context(patch.object(time, clock, loop.time))
        for owner, name in (
            (time, "sleep"),
            (socket, "socket"),
            (threading.Thread, "start"),
            (subprocess, "Popen"),
            (os, "urandom"),
            (uuid, "uuid4"),
        ):
            stack.enter_context(patch.object(owner, name, _refusal(f"{owner.__name__}.{name}")))
        stack.enter_context(patch.object(random, "Random", _SeededRandom))
        # When the collector runs depends on what ran before in this process, and finalizers are code.
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()


def _refusal(what: str) -> Any:
    def refuse(*args: object, **options: object) -> NoReturn:
        raise LeftTheSimulation(f"{what} is not there in a simulation")

    return refuse
