"""A problem of a node's network, and what the check that found it knows about its kind."""

from __future__ import annotations

from typing import NamedTuple

from muster.api.finding import Culprit, Finding, Fix, Measure, Severity


class Kind(NamedTuple):
    """What is true of all problems of one kind.

    Attributes:
        severity: how urgent it is.
        title: one sentence for people.
        fix: what to do.
    """

    severity: Severity
    title: str
    fix: Fix


class Problem(NamedTuple):
    """One problem that a check of a node found.

    Attributes:
        check: such as `conntrack`.
        code: the kind of problem, such as `near-limit`. `kinds.KINDS` has its fix.
        component: the part of the node, such as a link; "" for the node itself.
        message: one line for people, with the numbers.
        measures: the same numbers for programs.
        times: for problems that are counted, how often since the last look; 0 for lasting states.
        fix: with values for this node; None if that of its kind suffices.
    """

    check: str
    code: str
    component: str
    message: str
    measures: tuple[Measure, ...] = ()
    times: int = 0
    fix: Fix | None = None


def finding_of(kind: Kind, problem: Problem, node: str) -> Finding:
    """Return the finding about a problem of one node."""
    where = f"{node} {problem.component}".strip()
    return Finding(
        id=finding_id(problem.check, problem.code),
        severity=kind.severity,
        title=f"{kind.title}: {problem.message}.",
        who=(Culprit("Node", where),),
        evidence=problem.measures,
        fix=problem.fix or kind.fix,
    )


def finding_id(check: str, code: str) -> str:
    """Return the stable name of a kind of problem, for scripts."""
    return f"{check}-{code}"
