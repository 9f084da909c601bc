"""Pods."""

from __future__ import annotations

from muster.embedded.apiserver.strategy import Strategy


class PodStrategy(Strategy):
    """Pods."""

    generation = True
    returns_deleted = True
