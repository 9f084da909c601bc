"""The interface between the warm pool and the providers of blocks.

A provider decides nothing, and remembers nothing that the cloud does not hold. Every call may come from a new agent, or
after a call whose answer was lost.

    look       the blocks that the provider says this node has
    add        more blocks; those that were added before an error are found by the next `look`
    give_back  a block that no pod uses

A provider does not retry. The warm pool waits instead, longer each time and at random, so that nodes that started
together do not ask together. Without that, addresses for 150 nodes took 15 minutes (amazon-vpc-cni-k8s#405).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from muster.network.addresses.block import Block, Family
from muster.network.addresses.errors import Reason


class ProviderError(Exception):
    """A request failed. It may still have taken effect, which `look` shows.

    Args:
        reason: the kind of failure.
        message: the provider's message, and what to do, for people.
        wait_s: how long the provider asked us to wait; 0 if it did not.
    """

    def __init__(self, reason: Reason, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.wait_s = wait_s


class Added(NamedTuple):
    """Blocks that `add` got, and why there are not more of them; None if there are as many as wanted."""

    blocks: tuple[Block, ...]
    short: ProviderError | None = None


class Provider(Protocol):
    """Gives blocks to this node. Methods raise ProviderError, and each call ends within its deadline.

    Attributes:
        confirm_s: how long `look` may lag behind changes. A view counts only if another one this much later agrees.
    """

    confirm_s: float

    @property
    def notice(self) -> str:
        """Text about a state that an operator should change although pods get addresses; empty if there is none."""
        ...

    async def look(self, known: Sequence[Block]) -> Sequence[Block]:
        """Return the blocks of this node.

        Args:
            known: the blocks that the store holds, except those that are being given back.
        """
        ...

    async def add(self, family: Family, count: int, known: Sequence[Block]) -> Added:
        """Add blocks with at least `count` addresses, if there are as many.

        Args:
            family: of the addresses.
            count: how many addresses are wanted.
            known: all blocks that the store holds.
        """
        ...

    async def give_back(self, block: Block) -> None:
        """Give a block back. One that the node does not have any more is not an error."""
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...
