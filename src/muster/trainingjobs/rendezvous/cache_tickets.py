"""The part of a run directive with which a node uses the caches of its gang: ticket, key, and addresses of peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from muster.api.cache_ticket import (
    LIFETIME_S,
    RENEW_S,
    Peer,
    PeerList,
    Ticket,
    TicketSigner,
    gang_key,
    group_digest,
    key_digest,
)
from muster.trainingjobs.attempts.copy_partners import near, partner_of
from muster.trainingjobs.plan import Host, RunPlan
from muster.trainingjobs.rendezvous.secrets import attempt_key

GROUP_NODES: Final = 256
"""Nodes that share blocks. A larger gang has several groups, each with its own downloads."""
_GROUPS_MAX: Final = 512


class _Group(msgspec.Struct, frozen=True):
    """The caches of a group, encoded once for all of its nodes.

    Attributes:
        hosts: of the plan for which this was built; another attempt has others.
    """

    hosts: tuple[Host, ...]
    peers: tuple[Peer, ...]
    encoded: msgspec.Raw
    digest: str


class CacheTickets:
    """Builds the part for each node. It has no state besides a memo, so each leader builds the same.

    Args:
        secret: the cluster's secret.
        now: seconds since the epoch.
    """

    def __init__(self, secret: bytes, now: Callable[[], float]) -> None:
        self._secret = secret
        self._signer = TicketSigner(secret)
        self._now = now
        self._groups: dict[tuple[str, int], _Group] = {}

    def part(
        self, key: str, job_uid: str, attempt: int, run: RunPlan, rank: int, expires: int
    ) -> Mapping[str, Any] | None:
        """Return {ticket, key, peers, expires} for a node rank.

        None if its node has no cache, or if its ticket, which expires then, is good for long. So the long list of peers
        is not sent with each poll.
        """
        host = run.hosts[rank]
        if not host.cache_address or expires - self._now() > RENEW_S:
            return None
        group = self._group(job_uid, run, rank // GROUP_NODES)
        partner, others = self._others(run, rank)
        peers = PeerList(group=group.peers, partner=partner, near=others)
        namespace, _, name = key.partition("/")
        gang = gang_key(attempt_key(self._secret, job_uid, attempt))
        ticket = Ticket(
            uid=job_uid,
            namespace=namespace,
            job=name,
            attempt=attempt,
            slot=host.slot,
            expires=int(self._now() + LIFETIME_S),
            key=key_digest(gang),
            peers=peers.digest(group.digest),
        )
        listed = {
            "group": group.encoded,
            "partner": msgspec.to_builtins(partner),
            "near": [msgspec.to_builtins(each) for each in others],
        }
        return {"ticket": self._signer.sign(ticket), "key": gang, "peers": listed, "expires": ticket.expires}

    def _group(self, job_uid: str, run: RunPlan, number: int) -> _Group:
        known = self._groups.get((job_uid, number))
        if known is not None and known.hosts is run.hosts:
            return known
        peers = tuple(
            Peer(host.slot, host.cache_address)
            for host in run.hosts[number * GROUP_NODES : (number + 1) * GROUP_NODES]
            if host.cache_address
        )
        if len(self._groups) >= _GROUPS_MAX:
            self._groups.clear()
        group = _Group(run.hosts, peers, msgspec.Raw(msgspec.json.encode(peers)), group_digest(peers))
        self._groups[(job_uid, number)] = group
        return group

    def _others(self, run: RunPlan, rank: int) -> tuple[Peer | None, tuple[Peer, ...]]:
        """Return the partner, and the nodes outside the group that may hold this node's shards."""
        if run.partners is None:
            return None, ()
        count, start = len(run.hosts), rank // GROUP_NODES * GROUP_NODES
        partner = _peer(run.hosts[partner_of(run.partners, rank, count)])
        outside = [each for each in near(run.partners, rank, count) if not start <= each < start + GROUP_NODES]
        peers = (_peer(run.hosts[each]) for each in outside)
        return partner, tuple(peer for peer in peers if peer is not None)


def _peer(host: Host) -> Peer | None:
    return Peer(host.slot, host.cache_address) if host.cache_address else None
