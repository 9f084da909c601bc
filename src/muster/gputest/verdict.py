"""Judges the measured figures: by the floors of the model, and by comparison among the node's GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from muster.gputest.backend import Device
from muster.gputest.codes import REMEDIES, Code
from muster.gputest.figures import FIGURES
from muster.gputest.floors import Floors
from muster.gputest.outliers import Reading, outliers
from muster.gputest.report import Failure, ProbeRun

Figures = Mapping[str, Mapping[str, float]]
"""By UUID of the GPU, and by "" for the node; then by name of the figure."""


def below_floors(devices: Sequence[Device], figures: Figures, floors: Floors) -> list[Failure]:
    """Return failures for figures of GPUs and of the node below the floors of the model."""
    failures = []
    for device in devices:
        for floor in floors.of(device.name, len(devices)):
            value = figures.get(device.uuid, {}).get(floor.figure)
            if value is not None and value < floor.at_least:
                failures.append(_below(device.uuid, device.name, floor.figure, value, floor.at_least, floor.source))
    for name in sorted({device.name for device in devices}):
        for floor in floors.of(name, len(devices)):
            value = figures.get("", {}).get(floor.figure)
            if value is not None and value < floor.at_least:
                failures.append(_below("", name, floor.figure, value, floor.at_least, floor.source))
    return failures


def slower_than_peers(devices: Sequence[Device], figures: Figures, node: str, margin_min: float) -> list[Failure]:
    """Return failures for GPUs that are slower than the node's others of the same model."""
    readings = [
        Reading(node=node, component=device.uuid, model=device.name, figure=figure, value=value)
        for device in devices
        for figure, value in figures.get(device.uuid, {}).items()
    ]
    return [
        _failure(
            found.reading.figure,
            Code.SLOWER_THAN_PEERS,
            found.reading.component,
            f"{found.reading.figure} is {found.reading.value:.4g}, the median of {found.samples} GPUs here "
            f"{found.median:.4g}, the limit {found.limit:.4g}",
        )
        for found in outliers(readings, margin_min=margin_min)
    ]


def judged(tests: Sequence[ProbeRun], failures: Sequence[Failure]) -> tuple[ProbeRun, ...]:
    """Return the tests, with those marked as failed whose figures failed."""
    failed = {failure.test for failure in failures}
    return tuple(
        msgspec.structs.replace(test, outcome="failed") if test.outcome == "passed" and test.name in failed else test
        for test in tests
    )


def _below(gpu: str, model: str, figure: str, value: float, floor: float, source: str) -> Failure:
    message = f"{figure} is {value:.4g}, the floor of {model} is {floor:g} ({source})"
    return _failure(figure, Code.BELOW_FLOOR, gpu, message)


def _failure(figure: str, code: Code, gpu: str, message: str) -> Failure:
    return Failure(test=FIGURES[figure].test, code=code, gpu=gpu, message=message, remedy=REMEDIES[code])
