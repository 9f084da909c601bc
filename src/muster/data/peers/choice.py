"""Chooses which cache of a gang downloads a block: rendezvous hashing, so each member computes the same order.

If a member leaves, only its own blocks get another owner (Thaler and Ravishankar, "A Name-Based Mapping Scheme for
Rendezvous", 1996).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from muster.api.cache_ticket import Peer
from muster.data.peers.holder import Wanted

CHOICES = 2
"""Peers that a node asks for a block before it goes to the bucket."""


def ordered(wanted: Wanted, group: Iterable[Peer]) -> list[Peer]:
    """Return the group's members, the block's owner first. Members with the same address count once."""
    name = "\0".join(map(str, wanted)).encode()
    by_address = {peer.address: peer for peer in sorted(group, key=lambda peer: -peer.slot)}
    return sorted(by_address.values(), key=lambda peer: (_weight(name, peer.slot), peer.slot), reverse=True)


def asked(wanted: Wanted, group: Iterable[Peer], own_address: str, usable: Callable[[Peer], bool]) -> list[Peer]:
    """Return the peers to ask, in order; none if this node is to download the block itself.

    A peer that is not usable is passed over, by all nodes that know about it. So the next one becomes the owner.
    """
    chosen: list[Peer] = []
    for peer in ordered(wanted, group):
        if peer.address == own_address or len(chosen) == CHOICES:
            break
        if usable(peer):
            chosen.append(peer)
    return chosen


def _weight(name: bytes, slot: int) -> bytes:
    return hashlib.blake2b(name, digest_size=8, salt=slot.to_bytes(8, "big")).digest()
