"""Tests in virtual time: a busy machine makes none of their steps late, and waits take no time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.sealed import sealed

P = ParamSpec("P")


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine function: it runs in a loop with virtual time and reaches nothing of the machine."""

    @functools.wraps(test)
    def run(*args: P.args, **options: P.kwargs) -> None:
        loop = VirtualLoop.new()
        try:
            with sealed(loop):
                loop.run(test(*args, **options))
        finally:
            loop.wind_up()

    return run
