"""A view of nodes if tests are required: an untested node counts as tainted, even if the taint is missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from copy import copy

from fuzz.view import NodeFacts, PodFacts, View
from muster.api.names import TAINT_PREFLIGHT
from muster.embedded.item import Item
from muster.embedded.objects import Obj
from muster.embedded.store import Store

UNTESTED = {"key": TAINT_PREFLIGHT, "value": "untested", "effect": "NoSchedule"}
"""Only pods that tolerate the real taint tolerate it: the pods that run tests."""


def is_trusted(node: NodeFacts, record: Obj | None) -> bool:
    """Returns whether the node's newest test was passed, was of this node in this boot, and is not revoked."""
    if record is None or "revokedTime" in record["spec"]:
        return False
    spec = record["spec"]
    return bool(spec["passed"]) and spec["nodeUID"] == node.uid and spec["bootID"] == node.boot_id


class TrustView(View):
    """A view in which a node also gets a new version if its test record changes."""

    def __init__(self, store: Store, clock: Callable[[], float], fail: Callable[[BaseException], None]) -> None:
        super().__init__(store, clock, fail)
        self._stored: dict[str, Obj] = {}
        self._records: dict[str, Obj] = {}
        self._replaced: defaultdict[str, list[tuple[float, Obj]]] = defaultdict(list)
        """Earlier versions of the records, and until when each was the present one."""

    def _node(self, old: Item | None, new: Item | None) -> None:
        super()._node(old, new)
        if new is not None:
            self._stored[new.name] = new.object()
            self._mark(new.name)
        elif old is not None:
            self._stored.pop(old.name, None)

    def _changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        super()._changed(resource, old, new)
        if resource != "preflights.muster.dev":
            return
        item = new or old
        assert item is not None
        before = self._records.pop(item.name, None)
        if before is not None:
            self._replaced[item.name].append((self.now, before))
        if new is not None:
            self._records[new.name] = new.object()
        known = self.node(item.name)
        if known is not None:
            known.until = self.now
            self.nodes[item.name].append(NodeFacts(self._stored[item.name], self.now))
            self._mark(item.name)
            for checker in self.checkers:
                checker.node(item.name)

    def is_trusted(self, name: str) -> bool:
        """Returns whether work may come to the node."""
        node = self.node(name)
        return node is not None and is_trusted(node, self._records.get(name))

    def _why_not(self, version: NodeFacts, pod: PodFacts, within_s: float) -> str:
        """As for all; nodes and records have a watch each, so a leader may know a new record and an old node."""
        why = version.takes(pod)
        if not why or UNTESTED not in version.taints:
            return why
        since, name = self.now - within_s, version.name
        known = [self._records.get(name), *(record for until, record in self._replaced[name] if until >= since)]
        if not any(is_trusted(version, record) for record in known):
            return why
        tested = copy(version)
        tested.taints = [taint for taint in version.taints if taint != UNTESTED]
        return tested.takes(pod)

    def _mark(self, name: str) -> None:
        if not self.is_trusted(name):
            version = self.nodes[name][-1]
            version.taints = [*version.taints, UNTESTED]
