"""The page `addresses` of the network agent, which `muster network leaks` reads."""

from __future__ import annotations

import msgspec

from muster.network.addresses.addresses import PoolStatus
from muster.network.addresses.block import Block
from muster.network.addresses.reconcile.plan import Finding


class AddressesPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The addresses of a node.

    Attributes:
        node: its name.
        problem: why the store is not open; empty if it is.
        status: the pool; None while the store is not open.
        blocks: of the node.
        findings: what differs between the views.
        blind: views that did not answer; without them nothing is freed.
        freed: leaked attachments that were freed since the agent started.
    """

    node: str
    problem: str = ""
    status: PoolStatus | None = None
    blocks: tuple[Block, ...] = ()
    findings: tuple[Finding, ...] = ()
    blind: tuple[str, ...] = ()
    freed: int = 0
