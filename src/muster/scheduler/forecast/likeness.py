"""Describes a gang by what gangs with similar run times have in common: team, user, name, image and shape."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from muster.scheduler.pods.pod_class import PodClass

if TYPE_CHECKING:
    from muster.scheduler.gangs.gang import Gang

_SAFE = frozenset("bcdfghjklmnpqrstvwxz2456789")
"""The alphabet of names that Kubernetes generates (k8s.io/apimachinery, util/rand)."""
_HEX = frozenset("0123456789abcdef")


class Likeness(msgspec.Struct, frozen=True):
    """What two gangs with similar run times have in common.

    Attributes:
        namespace: namespace of the gang.
        team: team of the gang; "" without one.
        user: user who runs it; "" if unknown.
        pattern: its name without numbers and hashes; "" if nothing else is in the name.
        image: image of its first container; "" if unknown.
        nodes: number of members.
        gpus: number of GPUs of a member.
    """

    namespace: str = ""
    team: str = ""
    user: str = ""
    pattern: str = ""
    image: str = ""
    nodes: int = 1
    gpus: int = 0


def likeness_of(gang: Gang) -> Likeness:
    """Return the likeness of a gang. Facts of a TrainingJob have precedence over those of its pods."""
    job = gang.job
    name = gang.name
    if gang.workload is not None:
        name = gang.workload.name
    elif gang.single and gang.owner is not None:
        name = gang.owner.name
    return Likeness(
        namespace=gang.namespace,
        team=gang.team,
        user=(job.user if job is not None else "") or gang.user,
        pattern=pattern_of(name),
        image=(job.image if job is not None else "") or gang.image,
        nodes=gang.size,
        gpus=max((gpus_of(cls) for cls in set(gang.slot_class.values())), default=0),
    )


def gpus_of(cls: PodClass) -> int:
    """Return the number of GPUs of a pod: extended resources whose name ends in /gpu, and GPUs of a whole node."""
    if cls.whole is not None and cls.whole.gpus:
        return cls.whole.gpus
    return sum(amount for resource, amount in cls.request.items() if resource.endswith("/gpu"))


@lru_cache(maxsize=4096)
def pattern_of(name: str) -> str:
    """Return a name without the parts that differ between runs of the same work.

    These are numbers (dates, indexes, seeds), digits at the end of a word, and hashes such as the ends of generated
    names. Digits elsewhere stay, so `llama-7b-3` and `llama-70b-3` differ.
    """
    words = name.lower().replace("_", "-").replace(".", "-").split("-")
    kept = [_without_number(word) for at, word in enumerate(words) if not _is_hash(word, last=at == len(words) - 1)]
    return "-".join(word for word in kept if word)


def _without_number(word: str) -> str:
    return word.rstrip("0123456789")


def _is_hash(word: str, *, last: bool) -> bool:
    """Return whether a word is a generated suffix: random letters of Kubernetes, or 7 and more hexadecimal digits."""
    if last and len(word) in (5, 8, 9, 10) and _SAFE.issuperset(word):
        return True
    return len(word) >= 7 and _HEX.issuperset(word) and any(letter.isdigit() for letter in word)
