"""Computes how many nodes of a pool a gang needs: packs its pods into nodes that are coming, then into new ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from muster.fleet.scaling.snapshot import Amounts, GangDemand, Members, PoolSpec, Template
from muster.kube.objects.affinity import NodeSelectorTerm
from muster.kube.objects.selectors import node_term_matches
from muster.kube.objects.taints import find_untolerated_taint


@dataclass(slots=True)
class Bin:
    """A coming node: its pool, the free resources, the gangs with a pod there, and whether one pod takes all of it."""

    pool: PoolSpec
    free: dict[str, int] = field(init=False)
    gangs: set[str] = field(default_factory=set)
    whole: bool = False

    def __post_init__(self) -> None:
        self.free = dict(self.pool.template.capacity)


def serves(pool: PoolSpec, members: Members) -> bool:
    """Return whether an empty node of the pool takes such a pod (Kubernetes: node selection, taints, requests)."""
    template = pool.template
    if any(
        template.labels.get(key) != value for key, value in members.selector.items() if key not in template.assigned
    ):
        return False
    if members.terms is not None and not any(_may_match(term, template) for term in members.terms):
        return False
    if find_untolerated_taint(template.taints, members.tolerations) is not None:
        return False
    whole = members.whole
    if whole is not None and whole.resource and template.capacity.get(whole.resource, 0) != whole.gpus:
        return False
    return _fits(members.request, template.capacity)


def place(gang: GangDemand, bins: Iterable[Bin]) -> tuple[Members, ...]:
    """Put members into bins that take them, largest first. Returns those that do not fit."""
    bins = list(bins)
    rest = []
    for members in _largest_first(gang.members):
        left = members.count
        for bin_ in bins:
            if left == 0:
                break
            if serves(bin_.pool, members):
                left -= _fill(bin_, members, left, gang.key)
        if left:
            rest.append(msgspec.structs.replace(members, count=left))
    return tuple(rest)


def bins_for(gang: GangDemand, rest: Sequence[Members], pool: PoolSpec) -> list[Bin]:
    """Return new nodes of the pool, filled with the rest of the gang. The pool must serve these members."""
    made: list[Bin] = []
    for members in _largest_first(rest):
        left = members.count
        for bin_ in made:
            left -= _fill(bin_, members, left, gang.key)
        while left:
            made.append(Bin(pool))
            left -= _fill(made[-1], members, left, gang.key)
    return made


def _fill(bin_: Bin, members: Members, count: int, gang: str) -> int:
    """Put up to `count` members into the bin. Returns how many fit."""
    if bin_.whole or (members.whole is not None and bin_.gangs):
        return 0
    put = 0
    while put < count and _fits(members.request, bin_.free) and not (members.alone and gang in bin_.gangs):
        for resource, wanted in members.request.items():
            bin_.free[resource] -= wanted
        bin_.gangs.add(gang)
        put += 1
        if members.whole is not None:
            bin_.whole = True
            break
    return put


def _may_match(term: NodeSelectorTerm, template: Template) -> bool:
    """Return whether a new node may match. Its name is unknown: a term that requires a name never matches."""
    asked = tuple(each for each in term.match_expressions if each.key not in template.assigned)
    if not asked and not term.match_fields:
        return bool(term.match_expressions)
    return node_term_matches(msgspec.structs.replace(term, match_expressions=asked), template.labels, "")


def _fits(request: Amounts, free: Amounts) -> bool:
    return all(free.get(resource, 0) >= wanted for resource, wanted in request.items())


def _largest_first(members: Iterable[Members]) -> list[Members]:
    return sorted(members, key=lambda each: sorted(each.request.items(), key=lambda item: -item[1]), reverse=True)
