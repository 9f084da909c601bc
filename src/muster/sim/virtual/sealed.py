"""Seals a running simulation: it has no wall clock, threads, sockets or randomness without a seed.

Functions that only measure (`time.perf_counter` and its like) return the virtual time. Functions that would make runs
differ raise `LeftTheSimulation`. That holds for the simulation's own thread, which cannot start another. Other threads
of the same process keep their clock and sockets.
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
    """Code in a simulation reached for the outer world."""


@contextmanager
def sealed(loop: VirtualLoop) -> Iterator[None]:
    """While the context is open, this thread's time is the loop's, and what is outside the simulation raises in it."""
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
        # the time of a collection depends on earlier code in this process, and finalizers are code
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()


def _only_in(owner: int, inside: Callable[..., Any], outside: Callable[..., Any]) -> Callable[..., Any]:
    """`inside` for the thread `owner`, `outside` for all others."""

    def either(*args: Any, **options: Any) -> Any:
        return (inside if threading.get_ident() == owner else outside)(*args, **options)

    return either


def _seeded_random(owner: int) -> type[random.Random]:
    """`random.Random`, but in the thread `owner` never without a seed."""

    class SeededRandom(random.Random):
        def __new__(cls, *seed: Any) -> SeededRandom:
            if (not seed or seed[0] is None) and threading.get_ident() == owner:
                raise LeftTheSimulation("random.Random() without a seed: pass one made from the simulation's seed")
            return super().__new__(cls, *seed)

    return SeededRandom


def _refusal(what: str) -> Callable[..., NoReturn]:
    def refuse(*args: object, **options: object) -> NoReturn:
        raise LeftTheSimulation(f"{what} is not there in a simulation")

    return refuse
