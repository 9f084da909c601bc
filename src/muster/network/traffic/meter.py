"""One pass of the accounting: read the kernel's counters, write the ledger, change what is counted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from muster.network.traffic.backend import HOST, TUNNEL, Backend, Count, CounterKey, CountersGone, Subject
from muster.network.traffic.classes import Classes
from muster.network.traffic.ledger.charges import Shares
from muster.network.traffic.ledger.ledger import Ledger
from muster.network.traffic.ledger.state import Interface
from muster.network.traffic.wanted import Wanted

log = logging.getLogger(__name__)

_TRIES_MAX = 3


class Meter:
    """Keeps the ledger and the kernel's counters together.

    The order of the steps makes a kill at any moment harmless:
    1. The increase of all counters, and the owners of new subjects, are committed.
    2. In one atomic change the kernel begins to count new subjects, and drops the counters of those that have gone.
    3. The last increase of these is committed.

    A kill between 2 and 3 loses what those that have gone moved since 1, a few milliseconds earlier. A subject's ID
    contains its addresses, so a counter never begins again under the same key.

    Args:
        backend: of the kernel.
        classes: of addresses.
        ledger: of the node.
    """

    def __init__(self, backend: Backend, classes: Classes, ledger: Ledger) -> None:
        self._backend = backend
        self._classes = classes
        self._ledger = ledger
        self._counted: tuple[str, tuple[Subject, ...]] | None = None
        self.lost = 0
        """How often another program had removed the kernel's counters."""

    def setup(self) -> None:
        """Create the kernel's counters, if they are not there. Raises BackendError."""
        self._backend.setup(self._classes)

    def measure(self, wanted: Wanted, shares: Shares, boot: str, interfaces: Iterable[Interface], now_s: float) -> None:
        """Make one pass. Blocks.

        Args:
            wanted: what is to be counted from now on.
            shares: who is charged for shared subjects since the pass before.
            boot: ID of this boot.
            interfaces: of the uplink, read now.
            now_s: seconds since 1970.

        Raises:
            OSError: the ledger cannot be written. The kernel counts what is wanted, and what has gone, nevertheless.
            BackendError: the kernel refused.
        """
        instance, counts = self._read()
        self._ledger.adopt(wanted.owners, now_s)
        self._ledger.absorb(instance, counts, shares, now_s)
        self._ledger.absorb_interfaces(boot, interfaces)
        try:
            self._ledger.commit(now_s)
        except OSError:
            self._add(wanted, shares)
            raise
        if self._counted != (instance, wanted.subjects):
            self._replace(instance, counts, wanted, shares)
            self._ledger.commit(now_s)

    def _read(self) -> tuple[str, Mapping[CounterKey, Count]]:
        """Return the counters and the instance that they belong to."""
        for _ in range(_TRIES_MAX):
            try:
                before = self._backend.instance()
                counts = self._backend.read()
                if self._backend.instance() == before:
                    return before, counts
            except CountersGone as error:
                log.warning("the counters of traffic are gone, and begin at 0: %s", error)
                self._backend.setup(self._classes)
            self.lost += 1
        raise CountersGone("another program removes the counters of traffic again and again; find and stop it")

    def _replace(self, instance: str, counts: Mapping[CounterKey, Count], wanted: Wanted, shares: Shares) -> None:
        finals = self._backend.put(wanted.subjects)
        self._counted = (instance, wanted.subjects)
        kept = {each.id for each in wanted.subjects} | {HOST, TUNNEL}
        gone = ({key.subject for key in counts} | self._ledger.owners.keys()) - kept
        self._ledger.settle(finals, gone, shares)

    def _add(self, wanted: Wanted, shares: Shares) -> None:
        """Count new subjects, and keep the counters of those that have gone: nothing else holds their bytes yet."""
        wanted_ids = {each.id for each in wanted.subjects}
        counted = self._counted[1] if self._counted is not None else ()
        subjects = (*(each for each in counted if each.id not in wanted_ids), *wanted.subjects)
        self._ledger.settle(self._backend.put(subjects), (), shares)
        self._counted = ("", subjects)
