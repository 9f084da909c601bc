"""What speaks against a node since its test: figures that are worse than those of its like, and what its agent found.

Suspicion never takes trust away: it makes the next test come sooner, of the level for suspects. What that test finds
is a failure; where it measures the same figures and nothing more, the node is slow and known to be.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator

from muster.api.preflight import PreflightSpec
from muster.gputest.outliers import Outlier, Reading, outliers

FINDINGS_MAX = 5
OUTLIER_WEIGHT = 9.0
"""An outlier that a thorough test has not confirmed yet makes a test due ten times as soon."""


def suspicion(record: PreflightSpec, findings: Iterable[float], *, outlying: bool, suspect_level: int) -> float:
    """Return how much speaks against a node: by one and that, it is tested sooner than its age says.

    Args:
        record: of its newest test.
        findings: when each incident was last seen, seconds since the epoch.
        outlying: a figure of the record is an outlier.
        suspect_level: of tests that confirm a suspicion.
    """
    since = record.time.timestamp()
    fresh = sum(at > since for at in findings)
    unconfirmed = outlying and record.level < suspect_level
    return min(fresh, FINDINGS_MAX) + (OUTLIER_WEIGHT if unconfirmed else 0.0)


class FleetFigures:
    """The figures of all nodes that passed, in little room: 8 GPUs with 14 figures are 450 bytes and a few names."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._nodes: dict[str, list[tuple[str, str, tuple[str, ...], array[float]]]] = {}
        self.changed = False
        """Something was put or taken since this was last set to False."""

    def put(self, node: str, record: PreflightSpec) -> None:
        """Take over a record; one that was not passed has no figures to compare others with."""
        self.take(node)
        if not record.passed:
            return
        rows = []
        for gpu in record.figures:
            names = tuple(sorted(gpu.figures))
            names = self._names.setdefault(names, names)
            rows.append((gpu.uuid, gpu.name, names, array("f", [gpu.figures[name] for name in names])))
        if rows:
            self._nodes[node] = rows
            self.changed = True

    def take(self, node: str) -> None:
        """The node's record is gone, or another."""
        if self._nodes.pop(node, None) is not None:
            self.changed = True

    def groups(self) -> Iterator[tuple[Reading, ...]]:
        """Yield like figures of like GPUs, a group at a time: of a large fleet each has ten thousand readings."""
        kinds: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for node, rows in self._nodes.items():
            for key in {(model, name) for _, model, names, _ in rows for name in names}:
                kinds[key].append(node)
        for (model, figure), nodes in sorted(kinds.items()):
            yield tuple(
                Reading(node=node, component=uuid, model=model, figure=figure, value=values[names.index(figure)])
                for node in nodes
                for uuid, kind, names, values in self._nodes.get(node, ())
                if kind == model and figure in names
            )


def outlying(figures: FleetFigures) -> Iterator[tuple[Outlier, ...]]:
    """Yield the outliers of each group, so that whoever asks can do something else between two."""
    for group in figures.groups():
        yield outliers(group)
