"""Scrape pools of a server, and which pool scrapes which series of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from muster.telemetry.prometheus.answers import Labels, Target
from muster.telemetry.prometheus.durations import seconds_of

_OF_ONE_TARGET: Final = frozenset({"job", "instance", "__name__"})
_VALUES_MAX: Final = 100


@dataclass
class Pool:
    """Targets of one entry of `scrape_configs`.

    Attributes:
        name: of the entry; of a ServiceMonitor, `serviceMonitor/NAMESPACE/NAME/INDEX`.
        jobs: values of the label `job` of its targets.
        interval_s: longest time between two scrapes of a target; 0 if it is not known.
        labels: values of each other label of its targets; None for a label with many values, or without any.
    """

    name: str
    jobs: set[str] = field(default_factory=set)
    interval_s: float = 0.0
    labels: dict[str, set[str] | None] = field(default_factory=dict)

    def add(self, target: Target) -> None:
        """Add a target."""
        first = not self.jobs
        self.jobs.add(target.labels.get("job", ""))
        self.interval_s = max(self.interval_s, interval_s(target.scrape_interval))
        for label in target.labels if first else ():
            self.labels[label] = set()
        for label, values in self.labels.items():
            value = target.labels.get(label)
            if value is None or values is None or len(values) >= _VALUES_MAX:
                self.labels[label] = None
            else:
                values.add(value)


@dataclass(frozen=True)
class Mark:
    """A label that shows which pool scraped a series of a job that several pools have.

    Attributes:
        label: such as `metrics_path` of the kubelet's endpoints.
        pools: name of the pool by the label's value.
    """

    label: str
    pools: Mapping[str, str]


def pools_of_targets(targets: Iterable[Target]) -> dict[str, Pool]:
    """Return the pools of targets by name."""
    pools: dict[str, Pool] = {}
    for each in targets:
        pools.setdefault(each.scrape_pool, Pool(each.scrape_pool)).add(each)
    return pools


def pools_of_configs(configs: Iterable[Mapping[str, Any]]) -> dict[str, Pool]:
    """Return the pools of configurations, for a server that does not list its targets: the job is the entry's name."""
    pools = {}
    for config in configs:
        jobs = config.get("scrape_configs")
        for job in jobs if isinstance(jobs, list) else ():
            if isinstance(job, dict) and (name := str(job.get("job_name", ""))):
                pools[name] = Pool(name, {name}, interval_s(str(job.get("scrape_interval", ""))))
    return pools


def marks_of(pools: Iterable[Pool]) -> dict[str, Mark]:
    """Return, for each job that several pools have, a label that differs between them."""
    of_job: dict[str, list[Pool]] = {}
    for pool in pools:
        for job in pool.jobs:
            of_job.setdefault(job, []).append(pool)
    found = {job: _mark(shared) for job, shared in of_job.items() if len(shared) > 1}
    return {job: mark for job, mark in found.items() if mark is not None}


def _mark(pools: Sequence[Pool]) -> Mark | None:
    for label in sorted(set.intersection(*({*pool.labels} for pool in pools)) - _OF_ONE_TARGET):
        values = {value: pool.name for pool in pools for value in pool.labels[label] or ()}
        if all(pool.labels[label] for pool in pools) and len(values) == sum(
            len(pool.labels[label] or ()) for pool in pools
        ):
            return Mark(label, values)
    return None


def pool_of(labels: Labels, marks: Mapping[str, Mark]) -> str:
    """Return the name of the pool that scraped a series; "" if several can have."""
    mark = marks.get(labels.get("job", ""))
    return mark.pools.get(labels.get(mark.label, ""), "") if mark is not None else ""


def interval_s(text: str) -> float:
    """Return the seconds of an interval; 0 if the server does not say it, as before 2.28."""
    try:
        return seconds_of(text)
    except ValueError:
        return 0.0
