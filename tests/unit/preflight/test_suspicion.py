"""What speaks against a node: figures worse than those of its like, and findings after its test."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from muster.api.preflight import GpuFigures, PreflightSpec
from muster.fleet.preflight.suspicion import FleetFigures, outlying, suspicion

AT = 1_700_000_000.0
MATMUL = "matmul_bf16_tflop_per_s"
FIGURE = "memory_bandwidth_gb_per_s"


def record(
    values: list[float], *, level: int = 1, model: str = "H200", passed: bool = True, figure: str = FIGURE
) -> PreflightSpec:
    return PreflightSpec(
        node_uid="u",
        boot_id="b",
        level=level,
        passed=passed,
        time=datetime.fromtimestamp(AT, UTC),
        figures=tuple(
            GpuFigures(uuid=f"GPU-{index}", name=model, figures={figure: value, "temperature_max_c": 60.0})
            for index, value in enumerate(values)
        ),
    )


def found(figures: FleetFigures) -> set[tuple[str, str, str]]:
    return {
        (each.reading.node, each.reading.component, each.reading.figure)
        for group in outlying(figures)
        for each in group
    }


def test_a_slow_gpu_is_found_among_its_like_in_the_whole_fleet() -> None:
    figures = FleetFigures()
    for number in range(40):
        figures.put(f"n{number}", record([4100.0 + number % 7, 4103.0 + number % 5]))
    figures.put("h100", record([2900.0, 2901.0], model="H100"))
    assert found(figures) == set()
    figures.put("slow", record([4100.0, 3000.0]))
    assert found(figures) == {("slow", "GPU-1", FIGURE)}
    figures.put("slow", record([4100.0, 4101.0]))
    assert found(figures) == set()


@pytest.mark.parametrize(
    ("figure", "levels", "value", "slow"),
    [
        (MATMUL, (3, 1), 3000.0, False),  # larger sizes, other rates
        (MATMUL, (1, 3), 3000.0, False),
        (MATMUL, (2, 1), 3000.0, True),  # tested again because it is slow
        (MATMUL, (1, 2), 3000.0, True),
        (MATMUL, (3, 3), 3000.0, True),
        (MATMUL, (3, 1), 4100.0, False),
        (FIGURE, (3, 1), 3000.0, True),  # the same copies at each level
        (FIGURE, (1, 3), 3000.0, True),
        (FIGURE, (3, 1), 4100.0, False),
    ],
)
def test_only_figures_of_equal_sizes_are_compared(
    figure: str, levels: tuple[int, int], value: float, slow: bool
) -> None:
    figures = FleetFigures()
    for number in range(40):
        figures.put(f"n{number}", record([4100.0 + number % 7], level=levels[1], figure=figure))
    figures.put("n0", record([value], level=levels[0], figure=figure))
    assert found(figures) == ({("n0", "GPU-0", figure)} if slow else set())


def test_failed_or_missing_nodes_are_not_compared() -> None:
    figures = FleetFigures()
    for number in range(40):
        figures.put(f"n{number}", record([4100.0]))
    figures.put("failed", record([100.0], passed=False))
    figures.put("gone", record([100.0]))
    figures.take("gone")
    assert found(figures) == set()


def test_findings_count_since_the_test_and_an_outlier_until_a_thorough_test_has_seen_the_same() -> None:
    spec = record([4100.0])
    assert suspicion(spec, [AT - 5, AT - 1], outlying=False, suspect_level=2) == 0
    assert suspicion(spec, [AT - 5, AT + 1, AT + 2], outlying=False, suspect_level=2) == 2
    assert suspicion(spec, [], outlying=True, suspect_level=2) == 9
    assert suspicion(replace(spec, level=2), [], outlying=True, suspect_level=2) == 0
