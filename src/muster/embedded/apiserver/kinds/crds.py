"""CustomResourceDefinitions: validated, established at once, and served."""

from __future__ import annotations

from muster.embedded.apiserver.strategy import Strategy


class CrdStrategy(Strategy):
    """CustomResourceDefinitions."""

    generation = True
