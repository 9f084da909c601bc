"""The addresses of this node's pods: what the CNI daemon calls. Calls are synchronous and use no network.

An address is recorded before ADD creates an interface, and is held until DEL removed the interface. So a kill at any
step leaves a record that DEL, CNI's GC or the reconciler finds. All methods may be called by several threads.

Records of attachments are not flushed to the disk: a kill of the agent does not lose what is written, and a power loss
also ends all interfaces. Records of blocks are flushed, because the provider's side outlives the node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from muster.network.addresses.attachment import Assigned, AttachmentKey, PodRef, State
from muster.network.addresses.block import Block, BlockState, Family
from muster.network.addresses.errors import Exhausted, Reason, StoreError
from muster.network.addresses.journal import Cool, Journal, PutAssigned, PutBlock, Record, Release, RemoveBlock
from muster.network.addresses.pool import COOLDOWN_S, FamilyCount, Pool

_WAITING_S: Final = 60.0
"""How long a pod that got no address counts as waiting. The kubelet tries again well within this time."""
_WAITING_MAX: Final = 1024
_TEXT_MAX: Final = 512
"""Longest text of a record. Names of CNI and of Kubernetes, and paths of network namespaces, are shorter."""


class Clock(Protocol):
    """Seconds since the boot, and which boot (`bootclock.BootClock`)."""

    boot_id: str

    def now_s(self) -> float:
        """Seconds since the boot."""
        ...


class PoolStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The pool for STATUS, metrics and people.

    Attributes:
        free: addresses that can be given out now, of the family that has the fewest.
        warm: how many should be free.
        assigned: addresses of attachments, of all families.
        cooling: addresses released a short time ago, of all families.
        reason: why there are fewer free addresses than there should be, if the provider said so.
        message: the same for people.
        families: the same by family.
    """

    free: int
    warm: int
    assigned: int
    cooling: int
    reason: Reason | None
    message: str
    families: dict[Family, FamilyCount]

    @property
    def can_add(self) -> bool:
        """Whether ADD would succeed."""
        return self.free > 0


class Addresses:
    """The store and the pool.

    Args:
        folder: the store's folder; created if missing.
        clock: the node's clock.
        families: which addresses each pod gets.
        cooldown_s: how long a released address stays unused.
        warm: how many addresses should be free; for `status` only.

    Raises:
        StoreInUse: another process holds the store.
        StoreError: the store cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        families: Sequence[Family] = (Family.IPV4,),
        cooldown_s: float = COOLDOWN_S,
        warm: int = 0,
    ) -> None:
        self._clock = clock
        self._families = tuple(families)
        self._warm = warm
        self._reason: Reason | None = None
        self._message = ""
        self._waiting: dict[str, float] = {}
        self._changed: Callable[[], object] = _nothing
        self._lock = threading.RLock()
        self._pool = Pool(cooldown_s)
        self._journal = Journal(folder, clock.boot_id)
        try:
            for record in self._journal.records:
                self._apply(record)
            self._journal.records.clear()
            self._pool.warm_up(clock.now_s())
        except (KeyError, ValueError) as error:
            self._journal.close()
            raise StoreError(f"{folder}: {error}; drain the node, delete the folder, and reboot the node") from None

    def close(self) -> None:
        """Release the store."""
        with self._lock:
            self._journal.close()

    def reserve(self, key: AttachmentKey, pod: PodRef, netns: str, network: str = "") -> Assigned:
        """Hold an address of each family for an attachment. The same key gets the same addresses again.

        Raises:
            Exhausted: a family has no free address.
            StoreError: the address could not be recorded, so it is not given out.
            ValueError: a text is too long.
        """
        _check_texts(key.container_id, key.ifname, pod.namespace, pod.name, pod.uid, netns, network)
        with self._lock:
            now_s = self._clock.now_s()
            known = self._pool.attachments.get(key)
            if known is not None:
                since = {"boot_id": self._clock.boot_id, "since_s": now_s}
                again = {"state": State.RESERVED, "netns": netns, "pod": pod, "network": network, **since}
                return self._put(msgspec.structs.replace(known, **again))
            chosen = self._pool.choose(self._families, now_s)
            if chosen is None:
                self._wait(pod.uid or f"{pod.namespace}/{pod.name}", now_s)
                raise self._exhausted()
            self._waiting.pop(pod.uid or f"{pod.namespace}/{pod.name}", None)
            assigned = Assigned(
                key=key,
                addresses=chosen,
                state=State.RESERVED,
                netns=netns,
                pod=pod,
                network=network,
                boot_id=self._clock.boot_id,
                since_s=now_s,
            )
            self._record(PutAssigned(assigned))
        self._changed()
        return assigned

    def attached(self, key: AttachmentKey, host_interface: str, mac: str) -> Assigned:
        """Record that ADD finished. It survives a kill; a power loss ends the interface too, so nothing is flushed.

        Raises:
            KeyError: the address was released in the meantime, so the interface must not stay.
            StoreError: it could not be recorded.
        """
        _check_texts(host_interface, mac)
        with self._lock:
            known = self._pool.attachments[key]
            if known.state is State.RELEASING:
                raise KeyError(key)
            return self._put(
                msgspec.structs.replace(known, state=State.ATTACHED, host_interface=host_interface, mac=mac)
            )

    def releasing(self, key: AttachmentKey) -> Assigned | None:
        """Record that DEL began, and return what it has to remove; None if nothing is known. The address stays held.

        Raises:
            StoreError: it could not be recorded.
        """
        with self._lock:
            known = self._pool.attachments.get(key)
            if known is None or known.state is State.RELEASING:
                return known
            return self._put(msgspec.structs.replace(known, state=State.RELEASING))

    def release(self, key: AttachmentKey) -> None:
        """Begin the cooldown of an attachment's addresses. Call it once the interface is gone. Repeatable.

        Raises:
            StoreError: it could not be recorded, so the addresses stay held.
        """
        with self._lock:
            if key not in self._pool.attachments:
                return
            self._record(Release(key, self._clock.boot_id, self._clock.now_s()))
        self._changed()

    def find(self, key: AttachmentKey) -> Assigned | None:
        """The attachment with this key."""
        with self._lock:
            return self._pool.attachments.get(key)

    def all(self) -> tuple[Assigned, ...]:
        """All attachments."""
        with self._lock:
            return tuple(self._pool.attachments.values())

    def blocks(self) -> tuple[Block, ...]:
        """All blocks of the node."""
        with self._lock:
            return tuple(self._pool.blocks.values())

    def idle_blocks(self) -> tuple[Block, ...]:
        """The active blocks all of whose addresses are free."""
        with self._lock:
            self._pool.warm_up(self._clock.now_s())
            blocks = self._pool.blocks.values()
            return tuple(each for each in blocks if each.state is BlockState.ACTIVE and self._pool.is_idle(each))

    def put_block(self, block: Block) -> None:
        """Add or change a block. Raises StoreError; ValueError if it is not a network or overlaps another one."""
        with self._lock:
            if self._pool.blocks.get(block.cidr) == block:
                return
            self._pool.check_block(block)
            place = self._record(PutBlock(block))
        self._journal.flush(place)

    def retire_block(self, cidr: str) -> bool:
        """Give out no more addresses of a block, if all are free. Returns whether they are. Raises StoreError."""
        with self._lock:
            self._pool.warm_up(self._clock.now_s())
            block = self._pool.blocks.get(cidr)
            if block is None or not self._pool.is_idle(block):
                return False
            place = self._record(PutBlock(msgspec.structs.replace(block, state=BlockState.RETURNING)))
        self._journal.flush(place)
        return True

    def remove_block(self, cidr: str) -> None:
        """Forget a block. Raises StoreError; ValueError if pods have addresses of it."""
        with self._lock:
            block = self._pool.blocks.get(cidr)
            if block is None:
                return
            self._pool.check_unused(block)
            place = self._record(RemoveBlock(cidr))
        self._journal.flush(place)

    def hold(self, ips: Iterable[str]) -> None:
        """Set which addresses are in use on the node without a record here. Pods do not get them.

        The kernel is asked at each start, so this is not stored.
        """
        with self._lock:
            self._pool.hold(ips)

    def note(self, reason: Reason | None, message: str = "") -> None:
        """Set why there are not enough free addresses, as the provider said; None if there are."""
        with self._lock:
            self._reason, self._message = reason, message

    def waiting(self) -> int:
        """How many pods got no address a short time ago, and have none yet."""
        with self._lock:
            oldest_s = self._clock.now_s() - _WAITING_S
            self._waiting = {pod: at_s for pod, at_s in self._waiting.items() if at_s > oldest_s}
            return len(self._waiting)

    def watch(self, changed: Callable[[], object]) -> None:
        """Set what is called after each change of free addresses, and when there is none. Any thread may call it."""
        self._changed = changed

    def status(self) -> PoolStatus:
        """Return how many addresses there are, and why there are not more."""
        with self._lock:
            self._pool.warm_up(self._clock.now_s())
            families = {family: self._pool.count(family) for family in self._families}
            return PoolStatus(
                free=min((count.free for count in families.values()), default=0),
                warm=self._warm,
                assigned=sum(count.assigned for count in families.values()),
                cooling=sum(count.cooling for count in families.values()),
                reason=self._reason,
                message=self._message,
                families=families,
            )

    def _exhausted(self) -> Exhausted:
        counts = {family: self._pool.count(family) for family in self._families}
        family, count = next((family, count) for family, count in counts.items() if not count.free)
        numbers = f"{count.assigned} assigned, {count.cooling} cooling down, {count.total} on the node"
        if self._reason is not None:
            reason, why = self._reason, self._message
        elif count.cooling:
            reason, why = Reason.COOLING, f"released addresses stay unused for {self._pool.cooldown_s:g} s"
        else:
            reason, why = Reason.WARMING, "the provider has not given any yet"
        return Exhausted(reason, f"no free {family} address ({numbers}): {why}")

    def _wait(self, pod: str, now_s: float) -> None:
        self._waiting.pop(pod, None)
        self._waiting[pod] = now_s
        if len(self._waiting) > _WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
        self._changed()

    def _put(self, assigned: Assigned) -> Assigned:
        if self._pool.attachments.get(assigned.key) != assigned:
            self._record(PutAssigned(assigned))
        return assigned

    def _record(self, record: Record) -> tuple[int, int]:
        """Write, then apply: what is not in the file has not happened."""
        place = self._journal.append(record)
        self._apply(record)
        if self._journal.is_large:
            self._journal.compact(self._snapshot())
        return place

    def _apply(self, record: Record) -> None:
        match record:
            case PutBlock(block):
                self._pool.put_block(block)
            case RemoveBlock(cidr):
                self._pool.remove_block(cidr)
            case PutAssigned(assigned):
                self._pool.put(assigned)
            case Release(key, boot_id, at_s):
                self._pool.release(key, self._cooled_s(boot_id, at_s))
            case Cool(ip, boot_id, at_s):
                self._pool.cool(ip, self._cooled_s(boot_id, at_s))

    def _cooled_s(self, boot_id: str, at_s: float) -> float:
        """When a cooldown ends. One that began before this boot began at an unknown time, so it begins now."""
        began_s = at_s if boot_id == self._clock.boot_id else self._clock.now_s()
        return began_s + self._pool.cooldown_s

    def _snapshot(self) -> list[Record]:
        cooldown_s, boot_id = self._pool.cooldown_s, self._clock.boot_id
        self._pool.warm_up(self._clock.now_s())
        return [
            *(PutBlock(block) for block in self._pool.blocks.values()),
            *(Cool(ip, boot_id, until_s - cooldown_s) for ip, until_s in self._pool.cooling.items()),
            *(PutAssigned(assigned) for assigned in self._pool.attachments.values()),
        ]


def _nothing() -> None:
    """The default of `watch`."""


def _check_texts(*texts: str) -> None:
    for text in texts:
        if len(text) > _TEXT_MAX:
            raise ValueError(f"a text of {len(text)} characters is too long; at most {_TEXT_MAX} are stored")
