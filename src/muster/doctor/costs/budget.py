"""What one workload may cost the control plane per second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from muster.doctor.costs.cost import UNITS, Cost
from muster.kube.objects.quantity import QuantityError, parse_quantity

DEFAULT: Final = Cost(
    requests=500,
    objects=50_000,
    list_bytes=100 << 20,
    watches=50_000,
    events=50_000,
    event_bytes=100 << 20,
    etcd_reads=500,
    writes=250,
)
"""The default budget. Kubernetes is tested with 5,000 nodes and about 1,000 pod starts per second in all (GKE with
130,000 nodes), so a workload that takes half of such a rate leaves too little for the others.
"""
NAMES: Final[Mapping[str, str]] = {
    "requests": "requests",
    "objects": "objects",
    "listBytes": "list_bytes",
    "watches": "watches",
    "events": "events",
    "eventBytes": "event_bytes",
    "etcdReads": "etcd_reads",
    "writes": "writes",
}
"""Names on the command line and in JSON, with the field of Cost."""


class BudgetError(ValueError):
    """A budget cannot be read; the message says why."""


class Excess(NamedTuple):
    """A part of a cost that is above the budget."""

    part: str
    cost: float
    limit: float

    @property
    def words(self) -> str:
        """The title of the part."""
        return UNITS[self.part][0]


def excesses(cost: Cost, budget: Cost = DEFAULT) -> list[Excess]:
    """Parts of a cost that are above the budget, the largest ratio first."""
    over = [
        Excess(part, value, limit)
        for part, value, limit in zip(Cost._fields, cost, budget, strict=True)
        if value > limit
    ]
    return sorted(over, key=lambda each: -each.cost / max(each.limit, 1e-9))


def parse_budget(entries: tuple[str, ...], base: Cost = DEFAULT) -> Cost:
    """Read limits such as `requests=100` or `listBytes=10Mi`; other parts keep the limits of `base`.

    Raises:
        BudgetError: an entry is not NAME=QUANTITY, or has an unknown name.
    """
    changes: dict[str, float] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or name not in NAMES:
            raise BudgetError(f"{entry!r} is not a limit; write NAME=QUANTITY, NAME one of {', '.join(NAMES)}")
        try:
            limit = float(parse_quantity(value))
        except QuantityError as error:
            raise BudgetError(f"{entry!r}: {error}") from error
        if limit < 0:
            raise BudgetError(f"{entry!r}: a limit cannot be negative")
        changes[NAMES[name]] = limit
    return base._replace(**changes)
