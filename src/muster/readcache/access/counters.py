"""Counts of questions about access."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class AccessCounters:
    """Counts since the process started.

    Attributes:
        reviews: reviews by the API server, by (`token` or `access`, `allowed`, `denied` or `failed`).
        kept: questions that a kept answer decided, by `token` or `access`.
        limited: requests that were refused because there were too many invalid tokens.
    """

    reviews: Counter[tuple[str, str]] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    limited: int = 0
