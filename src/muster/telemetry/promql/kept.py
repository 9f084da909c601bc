"""Which labels of a series remain in a result."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Kept(msgspec.Struct, frozen=True):
    """Labels that remain.

    Attributes:
        only: whether only `labels` remain; otherwise all but them.
        labels: sorted, each once.
    """

    only: bool
    labels: tuple[str, ...]

    def __contains__(self, label: str) -> bool:
        return (label in self.labels) == self.only

    def then(self, other: Kept) -> Kept:
        """Return what remains after both."""
        mine, others = set(self.labels), set(other.labels)
        match self.only, other.only:
            case True, True:
                return kept_only(mine & others)
            case True, False:
                return kept_only(mine - others)
            case False, True:
                return kept_only(others - mine)
        return kept_without(mine | others)

    def before_writing(self, label: str, sources: Iterable[str] | None) -> Kept:
        """Return labels that decide these ones, before a function made `label` from the sources and from itself.

        Sources that are unknown (None) may be anything, so then all labels decide.
        """
        if label not in self:
            return self
        if sources is None:
            return ALL
        if self.only:
            return kept_only({*self.labels, *sources})
        return kept_without(set(self.labels) - set(sources))


def kept_only(labels: Iterable[str]) -> Kept:
    """Return that only these labels remain."""
    return Kept(True, tuple(sorted(set(labels))))


def kept_without(labels: Iterable[str]) -> Kept:
    """Return that all labels but these remain."""
    return Kept(False, tuple(sorted(set(labels))))


ALL = kept_without(())
NOTHING = kept_only(())
