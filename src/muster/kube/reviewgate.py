"""Limits how many invalid tokens the API server must review, per peer and in all."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_LEAST_WAIT_S: Final = 0.001
"""What is missing by rounding alone may be less than a clock can show: a timer without a wait would never end it."""


class TooManyInvalidTokens(Exception):
    """A peer, or all peers together, presented too many invalid tokens.

    Attributes:
        whose: "this address" or "all addresses".
    """

    def __init__(self, whose: str) -> None:
        super().__init__(f"too many invalid tokens from {whose}; check the token and try again")
        self.whose = whose


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """Limits of invalid tokens.

    Attributes:
        peers_max: limit of peers whose failures are counted.
        peer_rejections_per_s: invalid tokens that one peer may present, per second.
        peer_rejections_burst: the same, at once.
        rejections_per_s: invalid tokens that all peers together may present, per second.
        rejections_burst: the same, at once.
        admission_wait_s: longest wait of an unknown token for its review.
        waiting_max: limit of unknown tokens that wait.
    """

    peers_max: int = 10_000
    peer_rejections_per_s: float = 5.0
    peer_rejections_burst: int = 50
    rejections_per_s: float = 50.0
    rejections_burst: int = 200
    admission_wait_s: float = 5.0
    waiting_max: int = 10_000


class Budget:
    """A token bucket with a queue: `burst` at once, refilled at `per_s`.

    Args:
        per_s: refill rate.
        burst: what a full bucket holds.
        waiting_max: limit of callers in the queue.
    """

    __slots__ = ("_at", "_burst", "_left", "_loop", "_per_s", "_timer", "_waiting", "_waiting_max")

    def __init__(self, per_s: float, burst: int, waiting_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._per_s, self._burst, self._left, self._at = per_s, burst, float(burst), self._loop.time()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._waiting_max = waiting_max
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, wait_s: float) -> bool:
        """Take one. Returns False if none was left within `wait_s` seconds, or the queue is full."""
        if not self._waiting and self._refilled() >= 1:
            self._left -= 1
            return True
        if len(self._waiting) >= self._waiting_max:
            return False
        place = self._loop.create_future()
        self._waiting.append(place)
        self._serve()
        try:
            await asyncio.wait_for(place, wait_s)
        except BaseException as error:
            if place.done() and not place.cancelled():
                self.give_back()
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def give_back(self) -> None:
        """Return one that was taken."""
        self._left = min(self._burst, self._refilled() + 1)
        self._serve()

    def _refilled(self) -> float:
        now = self._loop.time()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        return self._left

    def _serve(self) -> None:
        """Serve the queue in order, and again as soon as the bucket has refilled by one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
            elif self._refilled() >= 1:
                self._left -= 1
                self._waiting.popleft().set_result(None)
            else:
                wait_s = max((1 - self._left) / self._per_s, _LEAST_WAIT_S)
                self._timer = self._loop.call_later(wait_s, self._serve)
                return


class Gate:
    """Admits reviews of unknown tokens. Each takes from two budgets, and gives back if the token is valid.

    So valid tokens are limited only by how fast the API server answers, and invalid ones by the rates in the limits.
    Create it on the event loop that uses it.
    """

    def __init__(self, limits: GateLimits) -> None:
        self._limits = limits
        self._all = Budget(limits.rejections_per_s, limits.rejections_burst, limits.waiting_max)
        self._peers: OrderedDict[str, Budget] = OrderedDict()

    async def enter(self, peer: str) -> Callable[[], None]:
        """Wait until an unknown token of this peer may be reviewed. Call the result unless the token was invalid.

        Raises:
            TooManyInvalidTokens: this peer, or all peers together, presented too many invalid tokens.
        """
        own = self._of(_network(peer))
        if not await own.take(self._limits.admission_wait_s):
            raise TooManyInvalidTokens("this address")
        try:
            admitted = await self._all.take(self._limits.admission_wait_s)
        except BaseException:
            own.give_back()
            raise
        if not admitted:
            own.give_back()
            raise TooManyInvalidTokens("all addresses")

        def give_back() -> None:
            own.give_back()
            self._all.give_back()

        return give_back

    def _of(self, network: str) -> Budget:
        budget = self._peers.get(network)
        if budget is None:
            limits = self._limits
            budget = Budget(limits.peer_rejections_per_s, limits.peer_rejections_burst, limits.waiting_max)
            self._peers[network] = budget
            if len(self._peers) > limits.peers_max:
                self._peers.popitem(last=False)
        self._peers.move_to_end(network)
        return budget


def _network(peer: str) -> str:
    """Return what one host can choose addresses in: the address itself, or with IPv6 its /64."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address.packed, 64), strict=False))
    return peer
