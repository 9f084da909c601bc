"""Describes a gang by what gangs with similar run times have in common: team, user, name, image and shape."""

from __future__ import annotations

from functools import lru_cache

import msgspec

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
