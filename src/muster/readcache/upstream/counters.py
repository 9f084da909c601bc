"""Counters of a follower. The program exports them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """What happened to one kind in one media type.

    Attributes:
        lists: complete states that were loaded, by WatchList or in pages.
        watches: watches that the server accepted.
        events: changes received.
        bookmarks: bookmarks received.
        breaks: watches and lists that failed, by reason.
        resets: times that the server's versions went back.
        proofs: proofs of freshness, by how they were had.
        probes: short watches for such proofs.
        not_fresh: requests for a proof that got none.
        checks: comparisons with the API server, by outcome.
    """

    lists: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    breaks: Counter[str] = field(default_factory=Counter)
    resets: int = 0
    proofs: Counter[str] = field(default_factory=Counter)
    probes: int = 0
    not_fresh: int = 0
    checks: Counter[str] = field(default_factory=Counter)
