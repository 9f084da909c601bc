"""The result in a termination message: always whole JSON, never too long, and never another verdict."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.gputest.figures import FIGURES
from muster.gputest.report import Failure, Gpu, Report
from muster.gputest.summary import BYTES_MAX, read, summary

OTHER = '{"schema": "other", "level": 1, "backend": "cpu", "passed": true}'


def report(gpus: int, failures: int, text: str = "", *, passed: bool = True, figures: int = 14) -> Report:
    names = list(FIGURES)[:figures]
    return Report(
        node="n",
        level=2,
        backend="nvidia",
        passed=passed,
        started="2026-01-01T00:00:00Z",
        duration_s=1.0,
        budget_s=2.0,
        versions={"driver": "570.124.06", "torch": "2.11.0+cu128"},
        gpus=tuple(
            Gpu(
                index=index,
                uuid=f"GPU-0f3a7c1e-5b2d-4e6f-8a90-{index:012d}",
                name="NVIDIA H200",
                pci_address=f"0000:{index:02x}:00.0",
                memory_bytes=1,
                figures=dict.fromkeys(names, 4321.987654 + index),
            )
            for index in range(gpus)
        ),
        node_figures={},
        tests=(),
        failures=tuple(
            Failure(
                test="memory",
                code="wrong-word",
                gpu=f"GPU-0f3a7c1e-5b2d-4e6f-8a90-{index % max(1, gpus):012d}" if index % 3 else "",
                message=text or "word 7",
                remedy="Reset the GPU.",
            )
            for index in range(failures)
        ),
    )


def test_eight_gpus_with_every_figure_and_some_failures_fit_without_loss() -> None:
    said = read(summary(report(8, 4, "x" * 120, passed=False)))
    assert not said.cut
    assert (len(said.gpus), len(said.failures), said.passed) == (8, 4, False)
    assert dict(zip(said.names, said.gpus[2].figures, strict=True))["memory_bandwidth_gb_per_s"] == 4324.0
    assert said.models[said.gpus[0].model] == "NVIDIA H200"
    assert [each.gpu for each in said.failures] == [-1, 1, 2, -1]


@given(st.integers(0, 64), st.integers(0, 80), st.text(max_size=600), st.booleans(), st.integers(0, 18))
def test_never_too_long_never_torn_and_never_another_verdict(
    gpus: int, failures: int, text: str, passed: bool, figures: int
) -> None:
    made = report(gpus, failures, text, passed=passed, figures=figures)
    said = summary(made)
    assert len(said) <= BYTES_MAX
    assert (read(said).passed, read(said).level, read(said).backend) == (passed, 2, "nvidia")


@pytest.mark.parametrize(
    "text", ["", "Traceback (most recent call last)", '{"schema": "other"}', '{"level": 1}', OTHER]
)
def test_invalid_summary_is_refused(text: str) -> None:
    with pytest.raises((ValueError, msgspec.DecodeError)):
        read(text)
