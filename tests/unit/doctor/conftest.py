"""Evidence from small pages of metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from muster.api.finding import Finding, Scale
from muster.doctor.evidence import Evidence
from muster.doctor.registry import FAMILIES, RULES
from muster.doctor.samples import compare, parse

Pages = tuple[str, str]
Found = Callable[..., list[Finding]]
NOW = 10_000.0
WINDOW_S = 10.0


def evidence_of(
    *servers: Pages,
    nodes: int = 100,
    planned: int = 1000,
    known: bool = True,
    parts: Sequence[Any] = (),
    window_s: float = WINDOW_S,
) -> Evidence:
    """Evidence from two pages of each server. A page without a start time is of a process that started at 1."""
    compared = []
    for number, (before, after) in enumerate(servers):
        first, second = (
            parse(text if "process_start" in text else f"process_start_time_seconds 1\n{text}", FAMILIES)
            for text in (before, after)
        )
        server = compare(f"https://api-{number}", first, second, window_s, after_at=NOW)
        assert server is not None
        compared.append(server)
    return Evidence(
        scale=Scale(nodes, planned, known),
        servers=tuple(compared),
        window_s=window_s,
        parts={type(part): part for part in parts},
    )


@pytest.fixture
def find() -> Found:
    """Apply all rules, so that each test also shows that nothing else is found."""

    def found(*servers: Pages, **options: Any) -> list[Finding]:
        evidence = evidence_of(*servers, **options)
        return [finding for rule in RULES for finding in rule.find(evidence)]

    return found
