"""Exhaustive search for a gang's nodes, pod by pod, within a bound: used when several rules meet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from muster.scheduler.placement.candidates import Groups, candidates
from muster.scheduler.placement.closed import Closed
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.rules import Rules, ends_even
from muster.scheduler.pods.pod_class import PodClass

STEPS = 2000
"""Limit on pods tried on nodes, about 0.1 s."""


def search(
    ledger: Ledger,
    matcher: Matcher,
    groups: Groups,
    order: Sequence[PodClass],
    closed: Closed,
    banned: Collection[str],
) -> Mapping[int, str] | bool:
    """Return slot -> node, and take that room.

    Returns False if the search reached its limit, True if there is no placement.

    Pods are placed in any order of the classes, because affinity may require one pod before another. Combinations
    of pods and nodes that failed are not tried again.
    """
    return _Search(matcher, groups, order, closed, banned).run(ledger)


class _Search:
    def __init__(
        self,
        matcher: Matcher,
        groups: Groups,
        order: Sequence[PodClass],
        closed: Closed,
        banned: Collection[str],
    ) -> None:
        self._matcher = matcher
        self._order = order
        self._slots = {cls: sorted(slots) for cls, slots in groups.items()}
        self._closed, self._banned = closed, frozenset(banned)
        self._left = STEPS
        self._failed: set[frozenset[tuple[PodClass, tuple[str, ...]]]] = set()

    def run(self, ledger: Ledger) -> Mapping[int, str] | bool:
        found = self._place(ledger, {cls: [] for cls in self._order}, self._banned)
        if found is None:
            return self._left > 0
        trial, names = found
        ledger.adopt(trial)
        return {slot: name for cls, slots in self._slots.items() for slot, name in zip(slots, names[cls], strict=True)}

    def _place(
        self, ledger: Ledger, names: dict[PodClass, list[str]], banned: frozenset[str]
    ) -> tuple[Ledger, dict[PodClass, list[str]]] | None:
        missing = [cls for cls in self._order if len(names[cls]) < len(self._slots[cls])]
        if not missing:
            return (ledger, names) if ends_even(names, ledger.layer, self._matcher) else None
        state = frozenset((cls, tuple(sorted(taken))) for cls, taken in names.items())
        if state in self._failed:
            return None
        for cls in missing:
            rules = Rules(cls, ledger.layer, self._matcher)
            for candidate in candidates(ledger, self._matcher, cls, self._closed, banned):
                for name in candidate.names if candidate.names is not None else ledger.names(candidate.bucket):
                    self._left -= 1
                    if self._left <= 0:
                        return None
                    if rules.why_not(name) is not None:
                        continue
                    trial = ledger.fork()
                    bucket = trial.bucket_of(name, candidate.bucket)
                    trial.take(bucket, [name], cls, 1)
                    others = banned | {name} if cls.alone else banned
                    found = self._place(trial, {**names, cls: [*names[cls], name]}, others)
                    if found is not None:
                        return found
        self._failed.add(state)
        return None
