"""The tests of each level, with their work times and deadlines, and the computation of budgets."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from muster.gputest.wire import Request


class Step(NamedTuple):
    """A test: seconds of repeated work (0: once), and the deadline in seconds after which it counts as hung."""

    test: str
    work_s: float
    deadline_s: float


# The first test's deadline includes the start of PyTorch and of the driver (8 GPUs without persistence: 20 s). The
# levels follow DCGM's r1 (seconds), r2 (2 minutes) and r3 (15 minutes). Deadlines add up to the level's budget.
LEVELS: dict[int, tuple[Step, ...]] = {
    1: (
        Step("visibility", 0, 40),
        Step("memory", 0, 20),
        Step("transfers", 0, 15),
        Step("matmul", 0, 40),
        Step("cpu", 0, 5),
        Step("host-memory", 0, 10),
        Step("disk", 0, 10),
    ),
    2: (
        Step("visibility", 0, 40),
        Step("memory", 15, 40),
        Step("transfers", 0, 20),
        Step("peers", 0, 20),
        Step("matmul", 15, 45),
        Step("sustained", 30, 40),
        Step("all-reduce", 0, 45),
        Step("all-reduce-nodes", 0, 60),
        Step("cpu", 2, 5),
        Step("host-memory", 5, 15),
        Step("disk", 4, 20),
    ),
    3: (
        Step("visibility", 0, 40),
        Step("memory", 180, 220),
        Step("transfers", 0, 30),
        Step("peers", 0, 30),
        Step("matmul", 120, 180),
        Step("sustained", 240, 255),
        Step("all-reduce", 0, 60),
        Step("all-reduce-nodes", 0, 90),
        Step("cpu", 10, 20),
        Step("host-memory", 20, 60),
        Step("disk", 15, 60),
    ),
}

HOST_TESTS = frozenset({"cpu", "host-memory", "disk"})
"""Tests that do not need GPUs."""

TESTS = tuple(dict.fromkeys(step.test for level in LEVELS.values() for step in level))


def sized_as(level: int) -> int:
    """Return the lowest level with the same sizes of work: only figures of such levels can be compared.

    Level 3 multiplies larger matrices and sums larger messages, and a healthy GPU has other rates with them. Levels 1
    and 2 have equal sizes: a slow node that is tested again at level 2 stays comparable with others at level 1.
    """
    return 3 if level >= 3 else 1


def plan(level: int, only: Collection[str] = (), budget_s: float | None = None) -> tuple[Request, ...]:
    """Return the tests of a level, or the named ones. Work and deadlines are scaled to another budget.

    Raises ValueError for a test that the level does not have.
    """
    steps = [step for step in LEVELS[level] if not only or step.test in only]
    unknown = set(only) - {step.test for step in steps}
    if unknown:
        raise ValueError(f"level {level} has no test {', '.join(sorted(unknown))}")
    scale = budget_s / sum(step.deadline_s for step in steps) if budget_s is not None else 1.0
    return tuple(
        Request(test=step.test, work_s=step.work_s * scale, deadline_s=step.deadline_s * scale) for step in steps
    )
