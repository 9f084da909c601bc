"""Metrics that a selector may read, by conditions on their name and their job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from muster.telemetry.promql.matcher import NAME_LABEL, Matcher
from muster.telemetry.usage.pattern import matches

JOB_LABEL: Final = "job"


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions that a series must meet to be read. Conditions on other labels are left out, so it reads too many.

    Attributes:
        name: conditions on the metric's name; without any, every metric may be read.
        job: conditions on the label `job`.
        label: a label that the series must have; "" if that does not matter.
    """

    name: tuple[Matcher, ...] = ()
    job: tuple[Matcher, ...] = ()
    label: str = ""

    @property
    def exact(self) -> str | None:
        """The metric's name if only one name can match."""
        return next((each.value for each in self.name if each.op == "="), None)

    def reads_name(self, name: str) -> bool:
        """Returns whether a metric of this name may be read."""
        return all(matches(each, name) for each in self.name)

    def reads_job(self, job: str) -> bool:
        """Returns whether series of this job may be read."""
        return all(matches(each, job) for each in self.job)


EVERYTHING: Final = Selection()


def named(name: str) -> Selection:
    """Return the selection of one metric."""
    return Selection((Matcher(NAME_LABEL, "=", name),))


def matching(pattern: str) -> Selection:
    """Return the selection of metrics whose whole name matches a pattern."""
    return Selection((Matcher(NAME_LABEL, "=~", pattern),))
