"""What was found out about a server's series."""

from __future__ import annotations

import msgspec


class Population(msgspec.Struct, frozen=True):
    """Size of the cluster; 0 if it is not known.

    Attributes:
        nodes: number of nodes.
        pods: number of pods.
        nodes_expression: PromQL that gives the nodes at any time; empty without one.
    """

    nodes: int = 0
    pods: int = 0
    nodes_expression: str = ""


class Job(msgspec.Struct, frozen=True):
    """Targets of a job.

    Attributes:
        name: value of the label `job`.
        targets: their number.
        samples: of one scrape of all targets, after relabelling.
        largest_samples: of the largest target.
        scrape_s: longest duration of a scrape.
        interval_s: between scrapes.
        scrape_bytes: size of one page of all targets; an estimate if the server does not export it.
        added_per_h: series that are new in an hour.
    """

    name: str
    targets: int
    samples: float
    largest_samples: float = 0.0
    scrape_s: float = 0.0
    interval_s: float = 0.0
    scrape_bytes: float = 0.0
    added_per_h: float = 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples that are stored in a second."""
        return self.samples / self.interval_s if self.interval_s else 0.0


class Metric(msgspec.Struct, frozen=True):
    """Series of a metric.

    Attributes:
        name: of the metric.
        series: their number.
        jobs: whose targets export it; empty if that was not found out.
        labels: names of labels of its series; empty if none was looked at.
        distinct: different values of labels that may grow.
        pairs: different pairs of values of two labels: `a,b`.
        history: pairs of nodes and series at earlier times.
    """

    name: str
    series: int
    jobs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    distinct: dict[str, int] = {}
    pairs: dict[str, int] = {}
    history: tuple[tuple[float, float], ...] = ()


class Label(msgspec.Struct, frozen=True):
    """Values of a label over all series. `memory_bytes` is that of the values; 0 if the server does not export it."""

    name: str
    values: int
    memory_bytes: int = 0


class Evidence(msgspec.Struct, frozen=True):
    """All that was found out.

    Attributes:
        series: in the head of the server.
        series_bytes: memory for each series.
        population: of the cluster.
        jobs: with most samples first.
        metrics: with most series first.
        labels: with most values first.
        requests: sent to the server.
        server_s: time that the server needed for them.
        notes: what could not be found out.
    """

    series: int
    series_bytes: float
    population: Population
    jobs: tuple[Job, ...]
    metrics: tuple[Metric, ...]
    labels: tuple[Label, ...]
    requests: int = 0
    server_s: float = 0.0
    notes: tuple[str, ...] = ()
