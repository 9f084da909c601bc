"""Keeps the pool warm: adds blocks before pods need them, gives idle ones back, and follows what the provider lists.

Views of a cloud lag behind: a block that was just added can be absent, and one that was given back can still be listed
(amazon-vpc-cni-k8s#3887, #1967). So a view that differs from the store counts only once a later one agrees, and a block
with pods is never removed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from muster.network.addresses.addresses import Addresses
from muster.network.addresses.block import Block, BlockState, Family
from muster.network.addresses.errors import Reason, StoreError
from muster.network.addresses.providers.base import Provider, ProviderError
from muster.network.addresses.targets import Targets, Want, decide

log = logging.getLogger(__name__)

LOOK_S: Final = 600.0
"""Between views of the provider. 7,500 nodes make 12.5 requests a second."""
GIVE_BACK_S: Final = 300.0
"""How long a block stays surplus before it is given back."""
BACKOFF_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
"""Shorter waits hardly shorten the start of many nodes, but send the cloud many more requests."""
WAIT_MAX_S: Final = 600.0
"""The longest wait that a provider can ask for."""
_MISSING: Final = "the provider does not list it; pods that have addresses of it may be unreachable"
STEP_S: Final = 15.0
"""Between steps at most, unless the provider asked to wait: cooldowns end, and pods stop waiting."""


class WarmPool:
    """The warm pool of a node. `step` does what is due; `run` calls it.

    Args:
        addresses: the store.
        provider: gives the blocks.
        targets: how many addresses to keep.
        spread: returns a random number between 0 and 1.
    """

    def __init__(
        self,
        addresses: Addresses,
        provider: Provider,
        targets: Targets,
        *,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._addresses = addresses
        self._provider = provider
        self._targets = targets
        self._spread = spread
        self._look_at_s: float | None = None
        self._not_before_s = 0.0
        self._failures = 0
        self._listed_since: dict[str, float] = {}
        self._absent_since: dict[str, float] = {}
        self._surplus_since: dict[str, float] = {}
        self._returned_at: dict[str, float] = {}
        self._unusable: dict[str, str] = {}

    async def run(self, now: Callable[[], float], mark: Callable[[], None]) -> None:
        """Work until cancelled. `now` returns seconds of a clock that does not jump; `mark` records progress."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        self._addresses.watch(lambda: loop.call_soon_threadsafe(changed.set))
        while True:
            mark()
            changed.clear()
            due_s = await self.step(now())
            try:
                async with asyncio.timeout(min(STEP_S, max(0.05, due_s - now()))):
                    await changed.wait()
            except TimeoutError:
                continue

    async def step(self, now_s: float) -> float:
        """Do what is due, and return when to step again, at the latest."""
        if now_s < self._not_before_s:
            return self._not_before_s
        try:
            if self._look_at_s is None:
                self._look_at_s = now_s + self._first_look_s()
            if now_s >= self._look_at_s:
                await self._look(now_s)
            await self._fill(now_s)
            self._failures = 0
        except ProviderError as error:
            self._failed(error, now_s)
            return self._not_before_s
        except StoreError as error:
            self._failed(ProviderError(Reason.DISK, str(error)), now_s)
            return self._not_before_s
        except Exception as error:  # an answer that no one foresaw must not end ADD and DEL with the agent
            log.exception("the provider's answer cannot be used")
            self._failed(ProviderError(Reason.UNREACHABLE, f"its answer cannot be used: {error!r}"), now_s)
            return self._not_before_s
        return min(self._look_at_s, now_s + STEP_S)

    @property
    def problems(self) -> Mapping[str, str]:
        """Blocks that differ between store and provider, and how; key "" has the provider's own notice."""
        missing = [each.cidr for each in self._addresses.blocks() if each.state is BlockState.MISSING]
        notice = self._provider.notice
        return self._unusable | dict.fromkeys(missing, _MISSING) | ({"": notice} if notice else {})

    def _first_look_s(self) -> float:
        """A node that has what it needs waits, so that a restart of all agents is not a burst of requests."""
        return LOOK_S * self._spread() if self._addresses.blocks() and not self._any_short() else 0.0

    def _any_short(self) -> bool:
        return any(want.add or want.limited for want in self._wants().values())

    def _wants(self) -> dict[Family, Want]:
        counts = self._addresses.status().families
        return decide(counts, self._addresses.idle_blocks(), self._addresses.waiting(), self._targets)

    async def _look(self, now_s: float) -> None:
        known = {block.cidr: block for block in self._addresses.blocks()}
        kept = [block for block in known.values() if block.state is not BlockState.RETURNING]
        listed = {block.cidr: block for block in await self._provider.look(kept)}
        self._unusable = {cidr: why for cidr, why in self._unusable.items() if cidr in listed}
        again_s = LOOK_S * (0.5 + self._spread())
        for cidr in self._confirmed(self._listed_since, listed.keys() - known.keys(), now_s):
            self._put(listed[cidr])
        for cidr in listed.keys() & known.keys():
            if known[cidr].state is BlockState.RETURNING:
                await self._give_back(known[cidr], now_s)
                again_s = min(again_s, self._provider.confirm_s + 1.0)
            else:
                self._put(listed[cidr])
        for cidr in self._confirmed(self._absent_since, known.keys() - listed.keys(), now_s):
            self._lose(known[cidr])
        if self._listed_since or self._absent_since:
            again_s = min(again_s, self._provider.confirm_s * (1.0 + 0.5 * self._spread()) + 0.05)
        self._look_at_s = now_s + again_s

    def _confirmed(self, since: dict[str, float], cidrs: set[str], now_s: float) -> list[str]:
        """Return those that an earlier view had as well, long enough ago; remember the others."""
        for cidr in since.keys() - cidrs:
            del since[cidr]
        ready = []
        for cidr in sorted(cidrs):
            if now_s - since.setdefault(cidr, now_s) >= self._provider.confirm_s:
                ready.append(cidr)
                del since[cidr]
        return ready

    def _put(self, block: Block) -> None:
        try:
            self._addresses.put_block(block)
            self._unusable.pop(block.cidr, None)
        except ValueError as error:
            self._unusable[block.cidr] = f"the provider lists it, but it cannot be used: {error}"

    def _lose(self, block: Block) -> None:
        """The provider does not list a block. Without pods it is forgotten; else it gives no address any more."""
        try:
            self._addresses.remove_block(block.cidr)
            self._returned_at.pop(block.cidr, None)
        except ValueError:
            self._addresses.put_block(msgspec.structs.replace(block, state=BlockState.MISSING))

    async def _fill(self, now_s: float) -> None:
        wants = self._wants()
        short: ProviderError | None = None
        for family, want in wants.items():
            if want.add:
                self._addresses.note(Reason.WARMING, "the provider was asked for more")
                added = await self._provider.add(family, want.add, self._addresses.blocks())
                for block in added.blocks:
                    self._put(block)
                    self._absent_since[block.cidr] = now_s  # the next views may not list it yet
                short = short or added.short
            elif want.limited:
                message = f"the node has {self._targets.maximum} addresses, its maximum: raise targets.maximum"
                self._addresses.note(Reason.NODE_LIMIT, message)
        if short is not None:
            raise short
        if not any(want.limited for want in wants.values()):
            self._addresses.note(None)
        await self._return_surplus(wants, now_s)

    async def _return_surplus(self, wants: Mapping[Family, Want], now_s: float) -> None:
        surplus = {want.give_back for want in wants.values() if want.give_back is not None}
        for cidr in self._surplus_since.keys() - surplus:
            del self._surplus_since[cidr]
        for block in self._addresses.blocks():
            if block.cidr not in surplus:
                continue
            if now_s - self._surplus_since.setdefault(block.cidr, now_s) < GIVE_BACK_S:
                continue
            # In the store first: after a kill no pod gets an address of a block that may be gone.
            if self._addresses.retire_block(block.cidr):
                del self._surplus_since[block.cidr]
                await self._give_back(block, now_s)
                self._look_at_s = now_s + self._provider.confirm_s + 1.0

    async def _give_back(self, block: Block, now_s: float) -> None:
        if now_s - self._returned_at.get(block.cidr, -LOOK_S) >= min(LOOK_S, self._provider.confirm_s + 30.0):
            await self._provider.give_back(block)
            self._returned_at[block.cidr] = now_s

    def _failed(self, error: ProviderError, now_s: float) -> None:
        self._failures += 1
        self._addresses.note(error.reason, error.message)
        longest_s = min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(self._failures, 10))
        # At random over the whole time, so that nodes that failed together do not try together.
        self._not_before_s = now_s + min(error.wait_s, WAIT_MAX_S) + longest_s * (0.1 + 0.9 * self._spread())
