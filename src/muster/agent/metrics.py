"""Metrics of the agent, without a metrics library, which would be a tenth of the agent's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.agent.runner import Runner
from muster.agent.writer import Writer
from muster.kube.described import Described

PROGRESS: Final = Described(
    "muster_progress_age_seconds", "gauge", ("loop",), "Seconds since a loop last made progress."
)
DEADLINE: Final = Described(
    "muster_progress_deadline_seconds", "gauge", ("loop",), "Age of a loop's last progress above which liveness fails."
)
FINDINGS: Final = Described("muster_agent_findings", "gauge", (), "Findings that the agent holds.")
WRITES: Final = Described("muster_agent_writes_total", "counter", ("outcome",), "Writes of the NodeHealth, by outcome.")
FAILING: Final = Described(
    "muster_agent_writes_failing_seconds",
    "gauge",
    (),
    "Seconds since the first of the writes that failed in a row; 0 while writes succeed.",
)
LOOKS: Final = Described("muster_agent_looks_total", "counter", ("check", "outcome"), "Calls of a check, by outcome.")
METRICS: Final = (PROGRESS, DEADLINE, FINDINGS, WRITES, FAILING, LOOKS)


def samples(runner: Runner, writer: Writer) -> Iterator[tuple[str, float]]:
    """Yield each sample in its text form, with its value; the page adds `PROGRESS` and `DEADLINE`."""
    yield FINDINGS.name, writer.held
    yield FAILING.name, writer.failing_s
    for outcome, count in writer.writes.items():
        yield sample(WRITES, outcome), count
    for (check, outcome), count in runner.looks.items():
        yield sample(LOOKS, check, outcome), count


def sample(metric: Described, *values: str) -> str:
    """Return the name with its labels, as in `muster_agent_writes_total{outcome="written"}`."""
    pairs = ",".join(f'{label}="{value}"' for label, value in zip(metric.labels, values, strict=True))
    return f"{metric.name}{{{pairs}}}"
