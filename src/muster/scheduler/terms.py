"""Scheduling in terms of leading: a controller for each, gone when the lease is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from muster.kube.leader import LeaderElector
from muster.scheduler.controller import SchedulerController


async def schedule_while_leading(elector: LeaderElector, make: Callable[[], SchedulerController]) -> None:
    """Run a new controller in each term, until cancelled. What ends a controller by itself ends this as well."""
    while True:
        await elector.acquired.wait()
        leading = elector.term
        if leading is None:  # over already, and the elector has not said so yet
            await elector.lost.wait()
            continue
        term = asyncio.create_task(make().run(asyncio.Event(), term=leading), name="scheduler")
        lost = asyncio.create_task(elector.lost.wait())
        try:
            await asyncio.wait([term, lost], return_when=asyncio.FIRST_COMPLETED)
            if term.done():
                term.result()
        finally:
            for task in (term, lost):
                task.cancel()
            await asyncio.gather(term, lost, return_exceptions=True)
