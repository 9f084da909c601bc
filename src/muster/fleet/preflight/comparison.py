"""Compares GPUs across the fleet at intervals, and finds those that are slower than others of their model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from muster.fleet.preflight.cache import Knowledge
from muster.fleet.preflight.events import Teller
from muster.fleet.preflight.metrics import PreflightMetrics
from muster.fleet.preflight.suspicion import outlying

COMPARE_S = 600.0
"""The shortest interval between two comparisons."""


async def compare(known: Knowledge, teller: Teller, metrics: PreflightMetrics, changed: Callable[[], None]) -> None:
    """Compare all figures whenever some have changed, one group at a time. Never returns."""
    while True:
        await asyncio.sleep(COMPARE_S)
        if known.figures.changed:
            known.figures.changed = False
            await _once(known, teller, metrics)
            changed()


async def _once(known: Knowledge, teller: Teller, metrics: PreflightMetrics) -> None:
    found: dict[tuple[str, str], list[str]] = {}
    for group in outlying(known.figures):
        for each in group:
            reading = each.reading
            text = f"{reading.figure} {reading.value:.4g}, the median of {each.samples} is {each.median:.4g}"
            found.setdefault((reading.node, reading.component), []).append(text)
        await asyncio.sleep(0)
    for (name, gpu), texts in found.items():
        about = known.identity_of(name)
        if name not in known.outlying and about is not None:
            teller.outlying(name, about.node_uid, gpu, texts)
    metrics.outliers.set(len(found))
    known.outlying = frozenset(name for name, _ in found)
