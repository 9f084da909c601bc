"""Nodes as work may come to them where tests are required: an untested one has a taint, whether it is there or not."""

from __future__ import annotations

from collections.abc import Callable

from muster.api.names import TAINT_PREFLIGHT
from muster.embedded.objects import Obj, section
from muster.embedded.store import Store
from muster.embedded.watchhub import Item
from muster.sim.fuzz.view import NodeFacts, View

UNTESTED = {"key": TAINT_PREFLIGHT, "value": "untested", "effect": "NoSchedule"}
"""Tolerated by those alone that tolerate the real one: what tests a node."""


def is_trusted(node: Obj, record: Obj | None) -> bool:
    """Whether the node's newest test was passed, was of this node in this boot, and is not revoked."""
    if record is None or "revokedTime" in record["spec"]:
        return False
    spec, boot = record["spec"], section(section(node, "status"), "nodeInfo").get("bootID", "")
    return bool(spec["passed"]) and spec["nodeUID"] == node["metadata"]["uid"] and spec["bootID"] == boot


class TrustView(View):
    """A node's versions change with its tests, too."""

    def __init__(self, store: Store, clock: Callable[[], float], fail: Callable[[BaseException], None]) -> None:
        super().__init__(store, clock, fail)
        self._stored: dict[str, Obj] = {}
        self._records: dict[str, Obj] = {}

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
        self._records.pop(item.name, None)
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
        """Whether work may come to the node."""
        node = self._stored.get(name)
        return node is not None and is_trusted(node, self._records.get(name))

    def _mark(self, name: str) -> None:
        if not self.is_trusted(name):
            version = self.nodes[name][-1]
            version.taints = [*version.taints, UNTESTED]
