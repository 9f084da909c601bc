"""The agent's connection to the hub: sends measured demand, receives rates, reconnects.

The connection never decides what the node enforces. It reports the newest rates and when their lease ends; the
enforcer applies them, and decays them after the lease (`decay.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from muster.kube.frames import FrameTooLong
from muster.network.uplink.streams import BadFrame, encode, receive_from_hub
from muster.network.uplink.wire import (
    HELLO_TIMEOUT_S,
    PODS_MAX,
    PROTOCOL,
    Applied,
    Hello,
    Pair,
    PodDemand,
    Rates,
    Refused,
    Renewal,
    Report,
    Welcome,
)

log = logging.getLogger(__name__)

REPORT_S: Final = 1.0
"""The mean time between two reports is at least this long."""
CHANGE: Final = 0.02
"""A demand that changed by less than this part is reported with the next heartbeat."""
URGENT: Final = 1 / 16
"""A report is sent ahead of time if this part of the node's limits became idle, or is needed."""
URGENT_S: Final = 0.25
"""The shortest time between two reports."""
AHEAD_S: Final = 2.0
"""How far ahead of time urgent reports may be. Later ones then wait, so that the mean time holds."""
FIRST_SPREAD_S: Final = 2.0
"""The wait before the first connection is a random part of this time."""
RETRY_MAX_S: Final = 15.0
"""A new leader shares the whole budget only when it has heard all agents, so none waits long."""
_SILENCE: Final = 3
"""The connection is closed after this many heartbeats without a frame from the hub."""
_UNANSWERED_MAX: Final = 64
_WRITE_TIMEOUT_S: Final = 10.0


class Writer(Protocol):
    """The part of asyncio.StreamWriter that the connection uses."""

    def write(self, data: bytes) -> None:
        """Send bytes, later."""

    async def drain(self) -> None:
        """Wait until the peer takes bytes. Raises OSError."""

    def close(self) -> None:
        """Close the connection."""


Streams = tuple[asyncio.StreamReader, Writer]
Dial = Callable[[], Awaitable[Streams]]


class Unaccepted(Exception):
    """The hub refused this agent. `retry_s` is the shortest wait before the next attempt."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"{refused.reason}: {refused.message}")
        self.reason = refused.reason
        self.retry_s = refused.retry_s


class Link:
    """The connection of a node's agent to the hub.

    Args:
        node: the node's name.
        dial: opens a connection, such as `tls_dial`. Raises OSError, ssl.SSLError or ValueError.
        token: returns a service account token of audience `wire.AUDIENCE`. It is called for each connection, because
            the kubelet renews the file. Raises OSError.
        clock: monotonic seconds.
        rng: source of jitter.
    """

    def __init__(
        self,
        node: str,
        dial: Dial,
        token: Callable[[], str],
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._node, self._dial, self._token = node, dial, token
        self._clock, self._rng = clock, rng or random.Random()
        self.rates: Rates | None = None
        """The newest rates. They stay after the connection breaks."""
        self.lease_end_s = float("-inf")
        """When the lease of `rates` ends, by `clock`."""
        self.changed = asyncio.Event()
        """Set when `rates` changed. The enforcer clears it."""
        self.connected = False
        self.problem = "not connected yet"
        """Why there is no connection; "" while there is one."""
        self._line = Pair(0, 0)
        self._pods: Mapping[str, PodDemand] = {}
        self._reported: Mapping[str, PodDemand] | None = None
        self._applied = Applied("", 0, Pair(0, 0))
        self._applied_sent: Applied | None = None
        self._wake = asyncio.Event()
        self._seq = 0
        self._sent_s: OrderedDict[int, float] = OrderedDict()
        self._spread_s = FIRST_SPREAD_S
        self._welcomed = False
        self._epoch = ""

    def report(self, line: Pair, pods: Mapping[str, PodDemand]) -> None:
        """Set the newest measurement. It is sent if it differs from the reported one, on average once a second at most.

        If there are more than PODS_MAX subjects, those that use most are reported.
        """
        if len(pods) > PODS_MAX:
            pods = dict(sorted(pods.items(), key=lambda item: sum(item[1]), reverse=True)[:PODS_MAX])
        self._line, self._pods = line, pods
        self._wake.set()

    def applied(self, rates: Rates | None, total: Pair) -> None:
        """Set what the node enforces now: `rates`, or None without a lease, and the sum of all its limits.

        Call it after each change, because the hub gives room that the node freed to others only then.
        """
        self._applied = Applied(rates.epoch, rates.seq, total) if rates is not None else Applied("", 0, total)
        self._wake.set()

    async def run(self) -> None:
        """Stay connected until cancelled."""
        failures = 0
        await asyncio.sleep(self._rng.random() * FIRST_SPREAD_S)
        while True:
            retry_s = 0.0
            try:
                await self._session()
            except Unaccepted as refusal:
                self._lost(str(refusal))
                retry_s = refusal.retry_s
            except TimeoutError:
                self._lost("the hub does not answer")
            except asyncio.IncompleteReadError:
                self._lost("the hub closed the connection")
            except (OSError, ssl.SSLError, ValueError, BadFrame, FrameTooLong) as error:
                self._lost(str(error) or type(error).__name__)
            failures = 0 if self._welcomed else failures + 1
            backoff_s = min(RETRY_MAX_S, 2.0 ** min(failures, 10) / 2)
            await asyncio.sleep(max(retry_s, self._spread_s, backoff_s) * (0.5 + self._rng.random()))

    async def _session(self) -> None:
        self._welcomed = False
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            reader, writer = await self._dial()
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await self._write(writer, encode(Hello(PROTOCOL, self._node, self._token())))
                answer = await receive_from_hub(reader)
            if isinstance(answer, Refused):
                raise Unaccepted(answer)
            if not isinstance(answer, Welcome):
                raise BadFrame(f"the hub began with {type(answer).__name__}")
            self._begin(answer)
            works = (self._send(writer, answer.heartbeat_s), self._receive(reader, answer.heartbeat_s))
            tasks = [asyncio.create_task(work) for work in works]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                done.pop().result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self.connected = False
            writer.close()

    def _begin(self, welcome: Welcome) -> None:
        self._welcomed = self.connected = True
        self._epoch, self._spread_s = welcome.epoch, welcome.spread_s
        self._reported = self._applied_sent = None
        self._seq = 0
        self._sent_s.clear()
        if self.problem:
            log.info("uplink: connected to the hub, epoch %s", welcome.epoch)
        self.problem = ""

    async def _send(self, writer: Writer, heartbeat_s: float) -> None:
        """Send what changed. A task of its own, so that a slow hub does not stop the receiving of rates."""
        last_s, next_s = float("-inf"), self._clock()
        while True:
            now = self._clock()
            if self._applied != self._applied_sent:
                self._applied_sent = self._applied
                await self._write(writer, encode(self._applied_sent))
            due_s = self._due_s(last_s, next_s, heartbeat_s)
            if now >= due_s:
                self._seq += 1
                self._sent_s[self._seq] = now
                if len(self._sent_s) > _UNANSWERED_MAX:
                    self._sent_s.popitem(last=False)
                self._reported = self._pods
                await self._write(writer, encode(Report(self._seq, self._line, dict(self._pods))))
                last_s, next_s = now, max(now, next_s) + REPORT_S
                due_s = last_s + URGENT_S
            self._wake.clear()
            try:
                async with asyncio.timeout(max(0.01, due_s - now)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _due_s(self, last_s: float, next_s: float, heartbeat_s: float) -> float:
        """Return when the newest measurement is to be sent.

        Args:
            last_s: when the last report was sent.
            next_s: when the next one is due, so that the mean time between reports is REPORT_S.
            heartbeat_s: the longest time between reports.
        """
        if self._reported is None:
            return next_s
        if self.rates is not None and _is_urgent(self._reported, self._pods, self.rates):
            return max(last_s + URGENT_S, next_s - AHEAD_S)
        if _differs(self._reported, self._pods):
            return min(next_s, last_s + heartbeat_s)
        return last_s + heartbeat_s

    async def _receive(self, reader: asyncio.StreamReader, heartbeat_s: float) -> None:
        while True:
            async with asyncio.timeout(_SILENCE * heartbeat_s):
                message = await receive_from_hub(reader)
            if isinstance(message, Rates):
                self.rates = message
                self._renew(message, message.answers)
                self.changed.set()
            elif isinstance(message, Renewal):
                if self.rates is not None and (self.rates.epoch, self.rates.seq) == (self._epoch, message.seq):
                    self._renew(self.rates, message.answers)
            elif isinstance(message, Refused):
                raise Unaccepted(message)
            else:
                raise BadFrame("the hub sent a second welcome")

    def _renew(self, rates: Rates, answers: int) -> None:
        """Extend the lease, from when the answered report was sent."""
        sent_s = self._sent_s.get(answers)
        if sent_s is None:
            return
        while self._sent_s and next(iter(self._sent_s)) < answers:
            self._sent_s.popitem(last=False)
        self.lease_end_s = sent_s + rates.valid_s

    async def _write(self, writer: Writer, data: bytes) -> None:
        writer.write(data)
        async with asyncio.timeout(_WRITE_TIMEOUT_S):
            await writer.drain()

    def _lost(self, problem: str) -> None:
        if problem != self.problem:
            log.warning(
                "uplink: no connection to the hub: %s; the last rates stay, then the static share applies", problem
            )
        self.problem = problem


def _differs(before: Mapping[str, PodDemand], now: Mapping[str, PodDemand]) -> bool:
    """Returns whether a subject came or went, or a number changed by more than CHANGE."""
    if before.keys() != now.keys():
        return True
    return any(
        abs(new - old) > CHANGE * max(old, new)
        for subject, demand in now.items()
        for new, old in zip(demand, before[subject], strict=True)
    )


def _is_urgent(before: Mapping[str, PodDemand], now: Mapping[str, PodDemand], rates: Rates) -> bool:
    """Returns whether the demands within the limits changed by more than URGENT of the node's sum of limits."""
    for way, total in enumerate(rates.total):
        moved = 0
        for name in before.keys() | now.keys():
            most = rates.pods[name][way] if name in rates.pods else total
            old, new = (pods[name][2 + way] if name in pods else 0 for pods in (before, now))
            moved += abs(min(new, most) - min(old, most))
        if moved > URGENT * total:
            return True
    return False


def tls_dial(address: tuple[str, int], server_name: str, authorities: Path) -> Dial:
    """Return a function that connects to the hub by TLS.

    Args:
        address: host and port of the hub.
        server_name: the name that the hub's certificate must have.
        authorities: a PEM file with the authorities of the hub's certificate. It is read for each connection, because
            the controller may publish new ones.
    """

    async def dial() -> Streams:
        context = ssl.create_default_context(cafile=str(authorities))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return await asyncio.open_connection(*address, ssl=context, server_hostname=server_name)

    return dial


def token_file(path: Path) -> Callable[[], str]:
    """Return a function that reads a projected service account token."""
    return lambda: path.read_text().strip()
