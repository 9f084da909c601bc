"""Cheaper forms in refusals: only forms that are allowed are offered."""

from __future__ import annotations

import pytest

from muster.telemetry.guard.decide import Allow, Refuse, decide
from muster.telemetry.guard.limits import Limits
from muster.telemetry.guard.pricing.capabilities import Capabilities
from muster.telemetry.guard.pricing.price import Price
from muster.telemetry.guard.query.operation import Operation
from muster.telemetry.guard.query.parsing import parse
from muster.telemetry.guard.serving.offer import WITHOUT_FORM, with_allowed_form

NOW_S = 1_800_000_000.0
SAMPLES = 1_000_000


def priced(asked: Operation) -> Price:
    """A sample for each point of 2000 series; they cost less with longer steps only."""
    points = int(((asked.end_s or 0) - (asked.start_s or 0)) / asked.step_s) + 1 if asked.step_s else 1
    return Price(series=2000, samples=2000 * points, answer_bytes=5000, items=2000)


async def refused(path: str, limits: Limits, **named: str) -> tuple[Refuse, list[Operation]]:
    tried: list[Operation] = []

    def verdict(asked: Operation) -> Allow | Refuse:
        return decide(asked, priced(asked), limits, Capabilities())

    async def decided(asked: Operation) -> Allow | Refuse:
        tried.append(asked)
        return verdict(asked)

    first = verdict(parse("GET", path, list(named.items()), "", b"", NOW_S))
    assert isinstance(first, Refuse)
    return await with_allowed_form(first, NOW_S, decided), tried


async def test_step_that_is_still_too_dear_gives_way_to_a_longer_one() -> None:
    limits = Limits(max_samples=SAMPLES, max_steps=10_000)
    times = {"start": "1799913600", "end": "1800000000", "step": "1"}
    found, tried = await refused("/api/v1/query_range", limits, query="x", **times)
    assert len(tried) > 1
    assert found.cheaper.endswith(f"step={tried[-1].step_s:.0f}")
    assert priced(tried[-1]).samples <= SAMPLES
    assert f"use a step of {tried[-1].step_s:.0f} s" in found.advice


@pytest.mark.parametrize("path", ["/api/v1/labels", "/api/v1/label/__name__/values", "/api/v1/label/pod/values"])
async def test_form_that_is_refused_is_not_offered(path: str) -> None:
    found, _ = await refused(path, Limits(max_label_values=10))
    assert found.cheaper == ""
    assert "/api/v1" not in found.advice


async def test_topk_is_not_offered_around_topk() -> None:
    found, tried = await refused("/api/v1/query", Limits(max_answer_bytes=100), query="x")
    assert (found.cheaper, found.advice) == ("", WITHOUT_FORM)
    assert len(tried) == 1
