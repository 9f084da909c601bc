"""The check `reach` as a plug-in that waits less: a network of one machine answers at once or not at all."""

from __future__ import annotations

from muster.agent.check import Setup
from muster.agent.checks import reach


def make(setup: Setup) -> reach.ReachCheck | None:
    """Make it where the nodes are known."""
    reach._CONNECT_S = 1.5  # type: ignore[misc]
    return reach.make(setup)
