"""Totals per job from counters of the kernel.

A counter's increase is added to an account, and the counter's value becomes its baseline. Both are in one file, which
is replaced in one step. So a process that is killed at any moment counts each byte once: what it had added and not
written, its successor adds again from the old baseline. Only committed totals are published, so they never decrease.

If the kernel's counters vanish, only the bytes since the last commit are lost. This happens in a power loss, or when
another program deletes them.
"""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from muster.network.traffic.backend import Count, CounterKey
from muster.network.traffic.ledger.charges import Owner, Shares, split
from muster.network.traffic.ledger.state import (
    Baseline,
    DamagedLedger,
    Interface,
    LedgerState,
    PodRow,
    read_state,
    write_state,
)
from muster.network.traffic.report import ENDED_JOB, RDMA_CLASS, UNKNOWN_JOB, Nic, Row

log = logging.getLogger(__name__)

FILE: Final = "ledger.json"
DAMAGED: Final = "ledger.damaged"
_ZERO: Final = Count(packets=0, bytes=0)
_ENDED: Final = Owner("", ENDED_JOB, "")
_UNKNOWN: Final = Owner("", UNKNOWN_JOB, "")


def _zeros() -> Count:
    return _ZERO


class Limits(NamedTuple):
    """How long, and how many, accounts without a pod on this node are kept before they are summed in one row."""

    keep_s: float = 7 * 86400.0
    accounts_max: int = 500


_LIMITS: Final = Limits()


class _Account(NamedTuple):
    owner: Owner
    cls: str
    direction: str


class Ledger:
    """The ledger of a node. All methods block for a moment; one thread uses it at a time.

    Args:
        folder: holds its file, and nothing of others. It exists.
        limits: of accounts.

    Raises:
        OSError: the file cannot be read. It is not replaced then: it may be readable later.
    """

    def __init__(self, folder: Path, limits: Limits = _LIMITS) -> None:
        self._file = folder / FILE
        self._limits = limits
        self.damage = ""
        """Why an older ledger was put aside at the start; "" if it was not."""
        self.resets = 0
        """Counters that were lower than before without a new instance."""
        try:
            state = read_state(self._file)
        except DamagedLedger as error:
            self.damage = str(error)
            self._file.replace(folder / DAMAGED)
            log.error("%s is damaged (%s); it is now %s, and a new ledger begins", self._file, error, DAMAGED)
            state = None
        self._changed = state is None
        state = state or LedgerState(ledger_id=secrets.token_hex(8))
        self._begun = bool(state.instance)
        self.committed = state
        """The state in the file: what may be published."""
        self._id = state.ledger_id
        self._instance = state.instance
        self._baselines: dict[CounterKey, Count] = {
            CounterKey(each.subject, each.cls, each.direction): Count(packets=each.packets, bytes=each.bytes)
            for each in state.baselines
        }
        self._owners = dict(state.owners)
        self._rows: defaultdict[_Account, Count] = defaultdict(_zeros)
        for row in state.rows:
            owner = Owner(row.namespace, row.job, row.team)
            self._rows[_Account(owner, row.cls, row.direction)] = Count(packets=row.packets, bytes=row.bytes)
        self._pods: defaultdict[CounterKey, Count] = defaultdict(_zeros)
        for each in state.pods:
            self._pods[CounterKey(each.subject, each.cls, each.direction)] = Count(
                packets=each.packets, bytes=each.bytes
            )
        self._seen = dict(state.seen_s)
        self._boot: str = state.boot
        self._interfaces: dict[str, Interface] = {each.name: each for each in state.interfaces}
        self._nic: tuple[int, int, int, int] = state.nic
        self._ports: dict[str, Interface] = {each.name: each for each in state.ports}
        self._taken_s = state.taken_s

    @property
    def owners(self) -> Mapping[str, Owner]:
        """By subject, of all subjects that the kernel may be counting."""
        return self._owners

    def adopt(self, owners: Mapping[str, Owner], now_s: float) -> None:
        """Record owners of subjects. Commit before the kernel counts them: a successor must know whose they are."""
        for subject, owner in owners.items():
            self._seen[owner.account] = now_s
            if self._owners.get(subject) != owner:
                self._owners[subject] = owner
                self._changed = True

    def absorb(self, instance: str, counts: Mapping[CounterKey, Count], shares: Shares, now_s: float) -> None:
        """Add the increase of all counters.

        The counters that a damaged or lost ledger had added are not known. So a new ledger begins at their value.

        Args:
            instance: of the counters. Another one than before: they began at 0.
            counts: every counter that the kernel has. One that is absent begins at 0 when it comes back.
            shares: who is charged instead of a subject's owner.
            now_s: seconds since 1970.
        """
        if not self._begun:
            self._baselines = dict(counts)
        elif instance != self._instance:
            self._baselines = {}
        self._begun, self._taken_s = True, now_s
        self._changed = self._changed or instance != self._instance or counts.keys() != self._baselines.keys()
        self._instance = instance
        for key, count in counts.items():
            self._add(key, count, shares)
        self._baselines = dict(counts)

    def settle(self, finals: Mapping[CounterKey, Count], gone: Collection[str], shares: Shares) -> None:
        """Add the last values of counters that the kernel has ended, and forget the subjects that have gone."""
        for key, count in finals.items():
            self._add(key, count, shares)
        left = set(gone)
        self._baselines = {
            key: count for key, count in self._baselines.items() if key.subject not in left and key not in finals
        }
        for key in [each for each in self._pods if each.subject in left]:
            del self._pods[key]
        for subject in left & self._owners.keys():
            del self._owners[subject]
        self._changed = self._changed or bool(left)

    def absorb_ports(self, boot: str, ports: Iterable[Interface], owners: Mapping[str, Owner]) -> None:
        """Add the increase of the counters of RDMA ports. A new port counts from its value now.

        Args:
            boot: ID of this boot, as for `absorb_interfaces`, which is called after this.
            ports: by their names.
            owners: who is charged, by the name of the port.
        """
        now = {each.name: each for each in ports}
        for name, each in now.items():
            before = _since(name, each, self._ports, same_boot=boot == self._boot)
            for direction, size, packets in (
                ("in", each.in_bytes - before.in_bytes, each.in_packets - before.in_packets),
                ("out", each.out_bytes - before.out_bytes, each.out_packets - before.out_packets),
            ):
                if size > 0:
                    account = _Account(owners.get(name, _UNKNOWN).account, RDMA_CLASS, direction)
                    more = Count(packets=max(0, packets), bytes=size)
                    self._rows[account] = _sum(self._rows[account], more)
                    self._seen[account.owner] = self._taken_s
        self._changed = self._changed or now != self._ports
        self._ports = now

    def absorb_interfaces(self, boot: str, interfaces: Iterable[Interface]) -> None:
        """Add the increase of the counters of the uplink's interfaces. A new one counts from its value now."""
        now = {each.name: each for each in interfaces}
        total = list(self._nic)
        for name, each in now.items():
            before = _since(name, each, self._interfaces, same_boot=boot == self._boot)
            total[0] += each.in_bytes - before.in_bytes
            total[1] += each.out_bytes - before.out_bytes
            total[2] += max(0, each.in_packets - before.in_packets)
            total[3] += max(0, each.out_packets - before.out_packets)
        self._changed = self._changed or now != self._interfaces or boot != self._boot
        self._boot, self._interfaces = boot, now
        self._nic = (total[0], total[1], total[2], total[3])

    def commit(self, now_s: float) -> None:
        """Write the ledger, if it changed. What it holds is published from then on.

        Raises:
            OSError: it is not written. Nothing is lost: the next commit holds it all.
        """
        self._fold(now_s)
        state = self._state()
        if self._changed:
            write_state(self._file, state)
            self._changed = False
        self.committed = state

    def _add(self, key: CounterKey, count: Count, shares: Shares) -> None:
        before = self._baselines.get(key, _ZERO)
        if count.bytes < before.bytes or count.packets < before.packets:
            self.resets += 1
            before = _ZERO
        owner = self._owners.get(key.subject, _UNKNOWN)
        packets, size = count.packets - before.packets, count.bytes - before.bytes
        if not packets and not size:
            self._begin(key, owner)
            return
        self._changed = True
        more = Count(packets=packets, bytes=size)
        self._pods[key] = _sum(self._pods[key], more)
        given = shares.get(key.subject)
        for each, part in split(more, given) if given else [(owner, more)]:
            account = _Account(each.account, key.cls, key.direction)
            self._rows[account] = _sum(self._rows[account], part)
            self._seen[each.account] = self._taken_s

    def _begin(self, key: CounterKey, owner: Owner) -> None:
        """Show a counter that is 0: programs that compute rates then see the first increase."""
        account = _Account(owner.account, key.cls, key.direction)
        if key not in self._pods or account not in self._rows:
            self._pods.setdefault(key, _ZERO)
            self._rows.setdefault(account, _ZERO)
            self._seen.setdefault(account.owner, self._taken_s)
            self._changed = True

    def _fold(self, now_s: float) -> None:
        """Sum the rows of accounts that have had no pod here for long."""
        live = {each.account for each in self._owners.values()} | {_ENDED, _UNKNOWN}
        for owner in live & self._seen.keys():
            self._seen[owner] = now_s
        idle = sorted((seen_s, owner) for owner, seen_s in self._seen.items() if owner not in live)
        over = len(idle) - max(0, self._limits.accounts_max)
        oldest_s = now_s - self._limits.keep_s
        leaving = {owner for at, (seen_s, owner) in enumerate(idle) if at < over or seen_s < oldest_s}
        if not leaving:
            return
        self._changed = True
        for account in [each for each in self._rows if each.owner in leaving]:
            end = _Account(_ENDED, account.cls, account.direction)
            self._rows[end] = _sum(self._rows[end], self._rows.pop(account))
        for owner in leaving:
            del self._seen[owner]

    def _state(self) -> LedgerState:
        return LedgerState(
            ledger_id=self._id,
            instance=self._instance,
            baselines=tuple(
                Baseline(key.subject, key.cls, key.direction, each.packets, each.bytes)
                for key, each in self._baselines.items()
            ),
            owners=dict(self._owners),
            rows=tuple(
                Row(
                    each.owner.namespace,
                    each.owner.job,
                    each.owner.team,
                    each.cls,
                    each.direction,
                    count.bytes,
                    count.packets,
                )
                for each, count in sorted(self._rows.items())
            ),
            pods=tuple(
                PodRow(key.subject, key.cls, key.direction, each.packets, each.bytes)
                for key, each in self._pods.items()
            ),
            seen_s=tuple(sorted(self._seen.items())),
            boot=self._boot,
            interfaces=tuple(self._interfaces.values()),
            nic=self._nic,
            ports=tuple(self._ports.values()),
            taken_s=self._taken_s,
        )


def _since(name: str, now: Interface, known: Mapping[str, Interface], *, same_boot: bool) -> Interface:
    """The counters from which an increase is counted: those before, those now of a new one, 0 of one made again."""
    before = known.get(name)
    if before is None:
        return now
    made_again = before.in_bytes > now.in_bytes or before.out_bytes > now.out_bytes
    return before if same_boot and not made_again else Interface(name, 0, 0, 0, 0)


def nic_of(state: LedgerState) -> Nic:
    """Return the totals of the uplink's interfaces."""
    return Nic(*state.nic)


def _sum(one: Count, other: Count) -> Count:
    return Count(packets=one.packets + other.packets, bytes=one.bytes + other.bytes)
