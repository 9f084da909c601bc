"""Suspicion against a node since its test: outliers among its figures, and findings of its agent.

Suspicion does not remove trust. It makes the next test earlier, at the level for suspects. If that test finds a fault,
it fails. If it measures the same figures and finds nothing else, the node is known to be slow.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator

from muster.api.preflight import PreflightSpec
from muster.gputest.figures import FIGURES
from muster.gputest.levels import sized_as
from muster.gputest.outliers import Outlier, Reading, outliers

FINDINGS_MAX = 5
OUTLIER_WEIGHT = 9.0
"""An outlier that a thorough test has not confirmed yet makes a test due ten times as soon."""


def suspicion(record: PreflightSpec, findings: Iterable[float], *, outlying: bool, suspect_level: int) -> float:
    """Return the suspicion against a node: the interval to its next test is divided by this plus one.

    Args:
        record: its newest test record.
        findings: when each incident was last seen, seconds since the epoch.
        outlying: whether a figure of the record is an outlier.
        suspect_level: the level of tests that confirm a suspicion.
    """
    since = record.time.timestamp()
    fresh = sum(at > since for at in findings)
    unconfirmed = outlying and record.level < suspect_level
    return min(fresh, FINDINGS_MAX) + (OUTLIER_WEIGHT if unconfirmed else 0.0)


_ANY = 0
"""Stands for all sizes of work."""
_Rows = list[tuple[str, str, tuple[str, ...], "array[float]"]]
"""The figures of a node's GPUs: UUID, model, names and values."""


class FleetFigures:
    """The figures of all nodes that passed, stored compactly: 8 GPUs with 14 figures take 450 bytes and a few names."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._nodes: dict[str, tuple[int, _Rows]] = {}
        self.changed = False
        """Whether something changed since this was last set to False."""

    def put(self, node: str, record: PreflightSpec) -> None:
        """Store a node's figures. Only passed tests have figures for comparison."""
        self.take(node)
        if not record.passed:
            return
        rows = []
        for gpu in record.figures:
            names = tuple(sorted(gpu.figures))
            names = self._names.setdefault(names, names)
            rows.append((gpu.uuid, gpu.name, names, array("f", [gpu.figures[name] for name in names])))
        if rows:
            self._nodes[node] = (sized_as(record.level), rows)
            self.changed = True

    def take(self, node: str) -> None:
        """Remove a node's figures."""
        if self._nodes.pop(node, None) is not None:
            self.changed = True

    def groups(self) -> Iterator[tuple[Reading, ...]]:
        """Yield the readings of one figure and GPU model at a time: in a large fleet, ten thousand each.

        A figure that depends on the sizes of work (`sized`) forms a group for each of these (`sized_as`).
        """
        kinds: defaultdict[tuple[str, str, int], list[str]] = defaultdict(list)
        for node, (sized, rows) in self._nodes.items():
            for model, name in {(model, name) for _, model, names, _ in rows for name in names}:
                kinds[model, name, sized if _is_sized(name) else _ANY].append(node)
        for (model, figure, sized), nodes in sorted(kinds.items()):
            yield tuple(
                Reading(node=node, component=uuid, model=model, figure=figure, value=values[names.index(figure)])
                for node in nodes
                for uuid, kind, names, values in self._rows(node, sized)
                if kind == model and figure in names
            )

    def _rows(self, node: str, sized: int) -> _Rows:
        """Return a node's figures; empty if it was removed or tested with other sizes since a group was begun."""
        at, rows = self._nodes.get(node, (sized, []))
        return rows if sized in (at, _ANY) else []


def _is_sized(figure: str) -> bool:
    return figure in FIGURES and FIGURES[figure].sized


def outlying(figures: FleetFigures) -> Iterator[tuple[Outlier, ...]]:
    """Yield the outliers of one group at a time, so that the caller can yield to other tasks in between."""
    for group in figures.groups():
        yield outliers(group)
