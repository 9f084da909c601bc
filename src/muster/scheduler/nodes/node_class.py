"""Node classes: a `NodeClass` groups nodes that are the same for all known pods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from muster.api.trust import Doubt
from muster.kube.objects.node import Taint
from muster.scheduler.nodes.pools import Pool
from muster.scheduler.pods.pod_class import HostPort

BucketKey = tuple[int, tuple[tuple[str, int], ...], frozenset[HostPort]]
NEEDS_NONE: Final = -1
"""Value in place of hours since the test: the node has no GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeClass:
    """Properties that the nodes of a class share.

    Attributes:
        labels: only the labels that some pod class reads, and the pool's name.
        leaving: the node will change teams soon, so no new pods start there.
        doubt: why the node is not trusted.
        tested_within_h: the smallest requested number of hours within which it was tested (trust.py).
        whole: bucket key of its empty nodes.
    """

    number: int
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    problem: str
    allocatable: dict[str, int]
    pool: Pool = Pool.NONE
    leaving: bool = False
    doubt: Doubt = Doubt.NONE
    tested_within_h: int = NEEDS_NONE
    whole: BucketKey = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", bucket_key(self.number, self.allocatable, ()))


def bucket_key(class_number: int, free: dict[str, int], ports: Iterable[HostPort]) -> BucketKey:
    """Return the bucket key for a node class, its free room and used host ports."""
    return (class_number, tuple(sorted(free.items())), frozenset(ports))
