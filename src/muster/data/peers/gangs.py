"""The gangs that have readers on this node. The peer server serves these and no others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from muster.api.cache_ticket import PeerList, Ticket, TicketRefused, TicketVerifier, key_digest

GRACE_S: Final = 600.0
"""A gang is served this long after its last reader has left: peers may still restore from this node."""
GANGS_MAX: Final = 1024
"""Most gangs of a node. The one whose readers left first is dropped."""


class TicketFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file at MUSTER_CACHE_TICKET, which readers send with `hello`. Unknown fields are ignored."""

    ticket: str
    key: str
    peers: PeerList = PeerList()


class Gang:
    """One attempt of a job that has, or had lately, a reader on this node."""

    def __init__(self, ticket: Ticket, key: str, peers: PeerList) -> None:
        self.uid = ticket.uid
        self.attempt = ticket.attempt
        self.name = f"{ticket.namespace}/{ticket.job}"
        self.key = bytes.fromhex(key)
        self.group = peers.group
        self.addresses: set[str] = set()
        self.began_s = time.monotonic()
        self.reads_since_s = 0.0
        self.readers = 0
        self.idle_since_s = 0.0
        self.connections: set[asyncio.Task[None]] = set()

    def end(self) -> None:
        """Cut off the connections that serve this gang."""
        for task in list(self.connections):
            task.cancel()


class Membership:
    """A reader's place in its gang; ends with the reader's connection.

    Attributes:
        ticket: the verified content of its ticket.
        peers: the caches that its node may contact.
        gang: None if a newer attempt of the job has readers here: the reader is a leftover and gets nothing from peers.
    """

    def __init__(self, ticket: Ticket, peers: PeerList, gang: Gang | None, leave: Callable[[Gang], None]) -> None:
        self.ticket = ticket
        self.peers = peers
        self.gang = gang
        self._leave = leave

    @property
    def uid(self) -> str:
        """UID of its job."""
        return self.ticket.uid

    @property
    def name(self) -> str:
        """NAMESPACE/JOB."""
        return f"{self.ticket.namespace}/{self.ticket.job}"

    def end(self) -> None:
        """Record that the reader is gone. A second call does nothing."""
        gang, self.gang = self.gang, None
        if gang is not None:
            self._leave(gang)


class Gangs:
    """Registry of gangs, by job UID. Only the newest attempt of a job is in it.

    Args:
        verifier: returns the verifier with the current public keys.
        clock: monotonic seconds.
        now: seconds since the epoch, for the expiry of tickets.
    """

    def __init__(
        self, verifier: Callable[[], TicketVerifier], clock: Callable[[], float], now: Callable[[], float]
    ) -> None:
        self._verifier = verifier
        self._clock = clock
        self._now = now
        self._gangs: dict[str, Gang] = {}

    def join(self, file: object) -> Membership:
        """Verify what a reader sent and register it. Raises TicketRefused."""
        try:
            said = msgspec.convert(file, TicketFile)
        except msgspec.ValidationError as error:
            raise TicketRefused(f"the ticket file is malformed: {error}") from None
        ticket = self._verifier().verify(said.ticket, self._now())
        if key_digest(said.key) != ticket.key:
            raise TicketRefused("the gang's key is not the one of this ticket")
        if said.peers.digest() != ticket.peers:
            raise TicketRefused("the list of peers is not the one of this ticket")
        gang = self._gangs.get(ticket.uid)
        if gang is not None and gang.attempt > ticket.attempt:
            return Membership(ticket, said.peers, None, self._leave)
        if gang is None or gang.attempt < ticket.attempt:
            if gang is not None:
                gang.end()
            gang = self._gangs[ticket.uid] = Gang(ticket, said.key, said.peers)
            self._drop_surplus()
        gang.readers += 1
        gang.addresses.update(said.peers.addresses())
        return Membership(ticket, said.peers, gang, self._leave)

    def find(self, uid: str, attempt: int) -> Gang | None:
        """Return the gang if it has a reader here, or had one lately."""
        self.sweep()
        gang = self._gangs.get(uid)
        return gang if gang is not None and gang.attempt == attempt else None

    def ended(self, uid: str, attempt: int) -> bool:
        """Return whether a newer attempt of the job has begun here."""
        gang = self._gangs.get(uid)
        return gang is not None and gang.attempt > attempt

    def serves(self, gang: Gang) -> bool:
        """Return whether the gang is still served; false after a newer attempt has begun here."""
        return self._gangs.get(gang.uid) is gang

    def uids(self) -> set[str]:
        """UIDs of jobs that have readers here, or had some lately."""
        return set(self._gangs)

    def addresses(self) -> set[str]:
        """Addresses of the peers of all gangs."""
        return {address for gang in self._gangs.values() for address in gang.addresses}

    def sweep(self) -> None:
        """Drop gangs whose last reader left long ago."""
        now = self._clock()
        for gang in list(self._gangs.values()):
            if gang.readers == 0 and now - gang.idle_since_s > GRACE_S:
                self._drop(gang)

    def _leave(self, gang: Gang) -> None:
        gang.readers -= 1
        gang.idle_since_s = self._clock()

    def _drop_surplus(self) -> None:
        if len(self._gangs) > GANGS_MAX:
            idle = [gang for gang in self._gangs.values() if gang.readers == 0]
            if idle:
                self._drop(min(idle, key=lambda gang: gang.idle_since_s))

    def _drop(self, gang: Gang) -> None:
        if self._gangs.get(gang.uid) is gang:
            del self._gangs[gang.uid]
        gang.end()
