"""The addresses of this node in memory: free, assigned, cooling down. It does no I/O.

The address that has been free for the longest time is given out first. An address that was released stays unused for a
time, because other nodes, load balancers and DNS caches still send to the pod that had it (amazon-vpc-cni-k8s: 30 s).
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from muster.network.addresses.attachment import Address, Assigned, AttachmentKey
from muster.network.addresses.block import Block, BlockState, Family

COOLDOWN_S: Final = 30.0


class FamilyCount(msgspec.Struct, frozen=True, rename="camel"):
    """How many addresses of one family there are.

    Attributes:
        free: can be given out now.
        assigned: of attachments, including those that DEL has not finished.
        cooling: were released a short time ago.
        held: are in use on the node by something that the store does not know.
        unused: free or cooling, but of a block from which pods get none.
    """

    free: int = 0
    assigned: int = 0
    cooling: int = 0
    held: int = 0
    unused: int = 0

    @property
    def total(self) -> int:
        """All addresses of the node."""
        return self.free + self.assigned + self.cooling + self.held + self.unused


class Pool:
    """Blocks and attachments. Times are seconds since the boot."""

    def __init__(self, cooldown_s: float = COOLDOWN_S) -> None:
        self._cooldown_s = cooldown_s
        self._blocks: dict[str, Block] = {}
        self._of: dict[str, Block] = {}
        self._free: dict[Family, deque[str]] = {family: deque() for family in Family}
        self._attachments: dict[AttachmentKey, Assigned] = {}
        self._owner: dict[str, AttachmentKey] = {}
        self._used: dict[str, set[str]] = {}  # by block; settings of a block may exclude an address that a pod has
        self._cooling: dict[str, float] = {}  # the ends, in order of the releases
        self._held: frozenset[str] = frozenset()

    @property
    def blocks(self) -> Mapping[str, Block]:
        """The blocks by CIDR."""
        return self._blocks

    @property
    def attachments(self) -> Mapping[AttachmentKey, Assigned]:
        """The attachments."""
        return self._attachments

    @property
    def cooling(self) -> Mapping[str, float]:
        """When each released address may be given out again."""
        return self._cooling

    def owner(self, ip: str) -> AttachmentKey | None:
        """The attachment that holds an address."""
        return self._owner.get(ip)

    def check_block(self, block: Block) -> None:
        """Raise ValueError if a block is not a network or overlaps another one."""
        next(block.usable(), None)  # what cannot be read back must not reach the store
        if not 0 <= block.prefix <= block.network.max_prefixlen:
            raise ValueError(f"block {block.cidr} has the prefix {block.prefix}, which does not exist")
        for other in self._blocks.values():
            if other.cidr != block.cidr and other.family is block.family and other.network.overlaps(block.network):
                raise ValueError(f"block {block.cidr} overlaps block {other.cidr} of this node")

    def check_unused(self, block: Block) -> None:
        """Raise ValueError if an attachment has an address of a block."""
        taken = self.taken(block)
        if taken:
            raise ValueError(f"block {block.cidr} has addresses of pods: {', '.join(taken[:3])}")

    def put_block(self, block: Block) -> None:
        """Add or change a block. Raises ValueError as `check_block`."""
        self.check_block(block)
        known = self._blocks.get(block.cidr)
        self._blocks[block.cidr] = block
        for ip in known.usable() if known is not None else ():
            self._of.pop(ip, None)
        for ip in block.usable():
            self._of[ip] = block
        self._refill()

    def remove_block(self, cidr: str) -> None:
        """Forget a block. Raises ValueError as `check_unused`."""
        block = self._blocks[cidr]
        self.check_unused(block)
        del self._blocks[cidr]
        self._used.pop(cidr, None)
        for ip in block.usable():
            self._of.pop(ip, None)
            self._cooling.pop(ip, None)
        self._refill()

    def taken(self, block: Block) -> list[str]:
        """The addresses of a block that attachments hold, or that are in use on the node."""
        held = (ip for ip in block.usable() if ip in self._held) if self._held else ()
        return [*self._used.get(block.cidr, ()), *held]

    def is_idle(self, block: Block) -> bool:
        """Whether all addresses of a block are free, and none cools down."""
        return not self.taken(block) and not any(ip in self._cooling for ip in block.usable())

    def choose(self, families: Sequence[Family], now_s: float) -> tuple[Address, ...] | None:
        """Return a free address of each family, or None if a family has none. Nothing changes."""
        self.warm_up(now_s)
        chosen = []
        for family in families:
            queue = self._free[family]
            if not queue:
                return None
            block = self._of[queue[0]]
            chosen.append(Address(queue[0], block.pod_prefix, block.gateway))
        return tuple(chosen)

    def put(self, assigned: Assigned) -> None:
        """Add or change an attachment. Its addresses are not free then."""
        self._attachments[assigned.key] = assigned
        for address in assigned.addresses:
            if self._owner.get(address.ip) == assigned.key:
                continue
            self._owner[address.ip] = assigned.key
            self._used.setdefault(self._block_of(address.ip), set()).add(address.ip)
            self._cooling.pop(address.ip, None)
            self._remove_free(address.ip)

    def release(self, key: AttachmentKey, until_s: float) -> None:
        """End an attachment. Its addresses cool down until then."""
        for address in self._attachments.pop(key).addresses:
            del self._owner[address.ip]
            for used in self._used.values():
                used.discard(address.ip)
            self.cool(address.ip, until_s)

    def cool(self, ip: str, until_s: float) -> None:
        """Keep an address unused until then."""
        self._cooling.pop(ip, None)
        self._cooling[ip] = until_s
        self._remove_free(ip)

    def hold(self, ips: Iterable[str]) -> None:
        """Set which addresses are in use on the node without an attachment. Pods do not get them."""
        held = frozenset(ips) - self._owner.keys()
        if held != self._held:
            self._held = held
            self._refill()

    def warm_up(self, now_s: float) -> None:
        """Free the addresses whose cooldown is over."""
        ended = [ip for ip, until_s in self._cooling.items() if until_s <= now_s]
        for ip in ended:
            del self._cooling[ip]
            block = self._of.get(ip)
            if block is not None and block.state is BlockState.ACTIVE and ip not in self._held:
                self._free[block.family].append(ip)

    def count(self, family: Family) -> FamilyCount:
        """Return how many addresses of a family there are."""
        free = len(self._free[family])
        assigned = cooling = held = unused = 0
        for ip, block in self._of.items():
            if block.family is not family:
                continue
            if ip in self._owner:
                assigned += 1
            elif ip in self._held:
                held += 1
            elif block.state is not BlockState.ACTIVE:
                unused += 1
            elif ip in self._cooling:
                cooling += 1
        return FamilyCount(free, assigned, cooling, held, unused)

    @property
    def cooldown_s(self) -> float:
        """How long a released address stays unused."""
        return self._cooldown_s

    def _block_of(self, ip: str) -> str:
        block = self._of.get(ip)
        if block is not None:
            return block.cidr
        address = ipaddress.ip_address(ip)
        return next((each.cidr for each in self._blocks.values() if address in each.network), "")

    def _remove_free(self, ip: str) -> None:
        block = self._of.get(ip)
        if block is not None:
            queue = self._free[block.family]
            if queue and queue[0] == ip:
                queue.popleft()
            elif ip in queue:
                queue.remove(ip)

    def _refill(self) -> None:
        """Bring the queues in line with the blocks; the order of addresses that stay free is kept."""

        def is_free(ip: str) -> bool:
            block = self._of.get(ip)
            usable = block is not None and block.state is BlockState.ACTIVE
            return usable and ip not in self._owner and ip not in self._cooling and ip not in self._held

        for family, queue in self._free.items():
            known = set(queue)
            kept = [ip for ip in queue if is_free(ip)]
            added = (ip for ip, block in self._of.items() if block.family is family and ip not in known and is_free(ip))
            self._free[family] = deque((*kept, *added))
