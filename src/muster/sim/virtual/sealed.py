"""Seals a running simulation: it has no wall clock, threads, sockets or randomness without a seed.

Clocks (`time.time`, `time.monotonic` and `time.perf_counter`) return the virtual time. Functions that would make
runs differ raise `LeftTheSimulation`. This applies only to the simulation's thread, which cannot start other
threads. Other threads of the same process keep their clock and sockets.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

from muster.sim.virtual.loop import VirtualLoop

CLOCKS = ("time", "monotonic", "perf_counter")


class LeftTheSimulation(RuntimeError):
    """Code in a simulation used something outside the simulation, such as a socket or a thread."""


@contextmanager
def sealed(loop: VirtualLoop) -> Iterator[None]:
    """A context in which this thread gets the loop's virtual time, and sockets, threads and the like raise."""
    owner = threading.get_ident()
    with ExitStack() as stack:
        for clock in CLOCKS:
            stack.enter_context(patch.object(time, clock, _only_in(owner, loop.time, getattr(time, clock))))
        for place, name in (
            (time, "sleep"),
            (socket.socket, "__init__"),
            (threading.Thread, "start"),
            (subprocess.Popen, "__init__"),
            (os, "urandom"),
            (uuid, "uuid4"),
        ):
            refuse = _refusal(f"{place.__name__}.{name}".removesuffix(".__init__"))
            stack.enter_context(patch.object(place, name, _only_in(owner, refuse, getattr(place, name))))
        stack.enter_context(patch.object(random, "Random", _seeded_random(owner)))
        # the moment of a garbage collection depends on earlier code of this process, and it runs finalizers
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()


def _only_in(owner: int, inside: Callable[..., Any], outside: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `inside` in the thread `owner`, and `outside` in all other threads."""

    def either(*args: Any, **options: Any) -> Any:
        return (inside if threading.get_ident() == owner else outside)(*args, **options)

    return either


def _seeded_random(owner: int) -> type[random.Random]:
    """Return a subclass of `random.Random` that raises if the thread `owner` creates it without a seed."""

    class SeededRandom(random.Random):
        def __new__(cls, *seed: Any) -> SeededRandom:
            if (not seed or seed[0] is None) and threading.get_ident() == owner:
                raise LeftTheSimulation("random.Random() without a seed: pass one made from the simulation's seed")
            return super().__new__(cls, *seed)

    return SeededRandom


def _refusal(what: str) -> Callable[..., NoReturn]:
    def refuse(*args: object, **options: object) -> NoReturn:
        raise LeftTheSimulation(f"{what} cannot be used in a simulation")

    return refuse
