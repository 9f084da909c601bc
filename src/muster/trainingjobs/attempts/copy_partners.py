"""Chooses for each node the one that keeps copies of its checkpoint shards, outside its failure domain.

The choice is one offset in the order of node ranks, and a few exchanges: node rank r has the partner r + offset. So
each node keeps the copies of one other node, and the record of 7,500 nodes is as small as that of two.

Ranks are ordered by zone and rack (`run_record.rank_order`). So an offset of the size of the largest domain leads out
of every domain, unless one holds more than half of the nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from muster.api.names import LABEL_RACK, LABEL_ZONE
from muster.api.run_record import SWAPS_MAX, CopyPartners, RunRecord
from muster.api.store_url import is_remote
from muster.api.training_job import TrainingJob
from muster.trainingjobs.plan import RecordEvent

_TRIES: Final = 50_000
"""Most pairs that are compared for exchanges: if most nodes are in one domain, hardly any exchange helps."""
_SPREAD: Final = 8
"""Offsets that are tried besides the sizes of domains, for orders that mix the domains."""
NEAR: Final = 2
"""A replaced node may move the ranks of others, and the offset, by one. A shard's node and its partner are then still
among the near ones."""


class Domain(NamedTuple):
    """Where a node is; "" if its labels do not say it."""

    zone: str
    rack: str


def choose(domains: Sequence[Domain]) -> CopyPartners | None:
    """Return the partners of an attempt; None for a single node. `domains`: of the nodes, by node rank."""
    count = len(domains)
    if count < 2:
        return None
    best = _best(domains)
    offset = _best_offset(domains, best)
    partners = [(rank + offset) % count for rank in range(count)]
    swaps = _exchange(domains, partners, best)
    costs = [_cost(domains[rank], domains[partner]) for rank, partner in enumerate(partners)]
    levels: tuple[Literal["Zone", "Rack", "Node"], ...] = ("Zone", "Rack", "Node")
    return CopyPartners(
        offset=offset,
        swaps=tuple(swaps),
        outside=levels[max(costs)],
        same_domain=sum(cost > best for cost in costs) if best < 2 else count,
    )


def partner_of(partners: CopyPartners, rank: int, nodes: int) -> int:
    """Return the node rank that keeps copies for a node rank."""
    for first, second in zip(partners.swaps[::2], partners.swaps[1::2], strict=False):
        if rank in (first, second):
            rank = first + second - rank
            break
    return (rank + partners.offset) % nodes


def near(partners: CopyPartners, rank: int, nodes: int) -> list[int]:
    """Return the node ranks around a node and its partner, without both."""
    partner = partner_of(partners, rank, nodes)
    steps = [step for distance in range(1, NEAR + 1) for step in (distance, -distance)]
    around = dict.fromkeys((base + step) % nodes for base in (partner, rank) for step in steps)
    return [each for each in around if each not in (rank, partner)]


def copy_warning(job: TrainingJob, record: RunRecord | None, domains: Sequence[Domain]) -> RecordEvent | None:
    """Return an Event, in a job's first attempt, about copies that do not leave their failure domain.

    There is none if no node has such labels, as in an embedded cluster: its domains are not known.
    """
    if not any(each.zone or each.rack for each in domains):
        return None
    partners = record.partners if record is not None and record.attempt <= 1 else None
    if record is None or partners is None or not partners.same_domain or not in_object_store(job):
        return None
    what = "zone" if partners.outside == "Rack" else "rack"
    text = (
        f"{partners.same_domain} of {record.nodes} nodes have their partner for copies of checkpoint shards in their "
        f"own {what}: if the {what} fails, their ranks restore from the bucket. Label nodes with {LABEL_ZONE} or "
        f"{LABEL_RACK}, or let no domain have more than half of the job's nodes"
    )
    return RecordEvent("CopiesInOneDomain", text, warning=True)


def in_object_store(job: TrainingJob) -> bool:
    """Returns whether the job's checkpoints are in an object store: only their shards have copies on nodes."""
    path = job.spec.checkpoint.path if job.spec.checkpoint is not None else ""
    return is_remote(path)


def _best_offset(domains: Sequence[Domain], best: int) -> int:
    """Return the first candidate that suits all nodes, else the one that suits most."""
    found: list[tuple[tuple[int, int], int]] = []
    for offset in _candidates(domains):
        near_ones, same_zone = _costs(domains, offset)
        if best == 2 or (near_ones == 0 and (best == 1 or same_zone == 0)):
            return offset
        found.append(((near_ones, same_zone), offset))
    return min(found, key=lambda each: each[0])[1]


def _best(domains: Sequence[Domain]) -> int:
    """Return the least cost that a pair of these nodes can have: 0 for two zones, 1 for two racks, else 2."""
    if len({domain.zone for domain in domains if domain.zone}) > 1:
        return 0
    return 1 if len({domain.rack for domain in domains if domain.rack}) > 1 else 2


def _cost(one: Domain, other: Domain) -> int:
    if one.zone and other.zone and one.zone != other.zone:
        return 0
    return 1 if one.rack and other.rack and one.rack != other.rack else 2


def _costs(domains: Sequence[Domain], offset: int) -> tuple[int, int]:
    """Return the number of pairs without another rack, and of pairs without another zone."""
    count = len(domains)
    costs = Counter(_cost(domain, domains[(rank + offset) % count]) for rank, domain in enumerate(domains))
    return costs[2], costs[1]


def _candidates(domains: Sequence[Domain]) -> list[int]:
    count = len(domains)
    zones, racks = Counter(domain.zone for domain in domains), Counter(domains)
    sizes = [max(zones.values()), max(racks.values()), count // 2, 1]
    spread = [1 + number * (count - 1) // _SPREAD for number in range(_SPREAD)]
    return [each for each in dict.fromkeys([*sizes, *spread]) if 0 < each < count]


def _exchange(domains: Sequence[Domain], partners: list[int], best: int) -> list[int]:
    """Exchange partners of nodes that would have theirs in their own domain, in place. Returns pairs of node ranks."""
    swaps: list[int] = []
    moved: set[int] = set()
    tries = iter(range(_TRIES))
    for rank, domain in enumerate(domains):
        if _cost(domain, domains[partners[rank]]) <= best or rank in moved:
            continue
        if len(swaps) == 2 * SWAPS_MAX:
            break
        others = (each for each, _ in zip(range(len(domains)), tries, strict=False) if each not in moved)
        other = next((each for each in others if _improves(domains, partners, rank, each, best)), None)
        if other is not None:
            partners[rank], partners[other] = partners[other], partners[rank]
            swaps += [rank, other]
            moved |= {rank, other}
    return swaps


def _improves(domains: Sequence[Domain], partners: Sequence[int], rank: int, other: int, best: int) -> bool:
    """Returns whether both have the best cost after the exchange."""
    if partners[other] == rank or partners[rank] == other:
        return False
    return max(_cost(domains[rank], domains[partners[other]]), _cost(domains[other], domains[partners[rank]])) <= best
