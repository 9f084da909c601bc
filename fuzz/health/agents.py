"""Models of node agents: they report findings of their own machine, and peers that they cannot reach."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from fuzz.health.mishaps import Cut
from muster.embedded.objects import Obj, decode, section
from muster.fleet.health.mesh import LASTS_S
from muster.fleet.health.peers import UNREACHED, Member, choose
from muster.fleet.remediation.evidence.mesh import CONFIG_MAP, KEY
from muster.kube.errors import ApiError
from muster.sim.nodes import SimNodes
from muster.sim.virtual.cluster import VirtualCluster

HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
AGAIN_S = 5.0
"""Pause before an agent retries a failed write."""
TURN_S, TURNS = 5.0, 3
"""Each agent probes its peers once in this many turns."""
DRIVER, NEW_DRIVER = "570.1", "580.2"
LOOKS = 2
"""A failure is reported after this many consecutive failed probes."""
REPORT_EVERY_S, HEARTBEAT_S = 60.0, 301.0
"""A lasting finding, or an unchanged state, is reported again after this time."""
SETTLES_S = 120.0
"""After nodes have come or gone, others look at some: twice each, before the controller waits and says so."""
BELIEVED_S = 445.0
"""An older record does not count as a report about peers: 400 s by the clock of a leader, which may be slow."""


def moment(seconds: float) -> str:
    """Return a time in the form that agents and users write, in microseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class Network:
    """The network between machines, and to the API server.

    Args:
        nodes: their kubelets.
    """

    def __init__(self, nodes: SimNodes) -> None:
        self._nodes = nodes
        self._cuts: list[tuple[Cut, frozenset[str]]] = []

    def begin(self, cut: Cut) -> None:
        """Begin a partition."""
        names = frozenset(f"node-{number:05d}" for number in cut.nodes)
        self._cuts.append((cut, names))
        if cut.kind != "shunned":
            for name in sorted(names):
                self._nodes.cut_off(name)

    async def end(self, cut: Cut) -> None:
        """End a partition."""
        self._cuts = [each for each in self._cuts if each[0] is not cut]
        for number in cut.nodes:
            await self._nodes.heal(f"node-{number:05d}")

    def reaches(self, name: str, other: str) -> bool:
        """Returns whether a machine that is up reaches another one."""
        node = self._nodes.nodes.get(other)
        return node is not None and node.alive and not self._apart(name, other)

    def alone_with(self, name: str) -> frozenset[str]:
        """The nodes that are cut off together with this one from all others and the API server; empty if it is not."""
        return next((each for cut, each in self._cuts if cut.kind == "island" and name in each), frozenset())

    def is_split(self) -> bool:
        """Returns whether some machines do not reach the others; it is then undecided which ones are cut off."""
        return any(cut.kind != "deaf" for cut, _ in self._cuts)

    def _apart(self, name: str, other: str) -> bool:
        return any((name in each) != (other in each) for cut, each in self._cuts if cut.kind != "deaf")


class Agents:
    """All agents of a run.

    Args:
        cluster: where they write.
        nodes: their machines.
        silent: returns whether the agent of a node does not report, although its machine is up.
    """

    def __init__(self, cluster: VirtualCluster, nodes: SimNodes, silent: Callable[[str], bool]) -> None:
        self._cluster, self._nodes, self._silent = cluster, nodes, silent
        self.network = Network(nodes)
        self._found: dict[str, dict[tuple[str, ...], Obj]] = {}
        self._of: dict[str, str] = {}
        self._said_at: dict[str, float] = {}
        self._failed: dict[tuple[str, str], tuple[int, float, float]] = {}
        self._reported: dict[tuple[str, str], float] = {}
        self._list, self._list_at = "", float("-inf")
        self._peers: Mapping[str, tuple[str, ...]] = {}
        self.writing = 0
        self.drivers: dict[str, str] = {}
        """The driver by UID of the node, if it is not the first driver."""

    def later(self, name: str, finding: Obj, after_s: float) -> None:
        """Let the agent report a finding after this delay."""
        at = moment(self._cluster.loop.now)
        self.writing += 1
        self._cluster.loop.call_later(
            after_s, self._tell, name, self.uid(name), {**finding, "count": 1, "firstTime": at, "lastTime": at}
        )

    def _tell(self, name: str, uid: str, finding: Obj) -> None:
        """Report a finding, unless another node has the name now."""
        if self.uid(name) != uid or self._silent(name) or not uid:
            self.writing -= 1
        elif not self._hears(name):
            self._cluster.loop.call_later(AGAIN_S, self._tell, name, uid, finding)
        else:
            self.writing -= 1
            self._write(name, uid, finding)

    def _write(self, name: str, uid: str, *found: Obj) -> None:
        """Write the whole record of this node, as an agent does."""
        if self._of.get(name) != uid:
            self._of[name], self._found[name] = uid, {}
        for each in found:
            self._found[name][(each["check"], each["component"], each["code"], each["firstTime"])] = each
        self._said_at[name] = self._cluster.loop.now
        with contextlib.suppress(ApiError):
            self._cluster.call("POST", HEALTHS, {"metadata": {"name": name}})
        status = {
            "nodeUID": uid,
            "bootID": self.boot(name),
            "driver": self.drivers.get(uid, DRIVER),
            "time": moment(self._cluster.loop.now),
            "findings": list(self._found[name].values()),
        }
        self._cluster.call("PATCH", f"{HEALTHS}/{name}/status", {"status": status})

    def _hears(self, name: str) -> bool:
        return self._nodes.nodes[name].alive and name not in self._nodes.cut

    # The mesh

    async def look_on(self) -> None:
        """Let all agents probe their peers, by turns."""
        turn = 0
        while True:
            self._read_list()
            for number, name in enumerate(list(self._nodes.nodes)):
                if (turn + number) % TURNS == 0 and self._nodes.nodes[name].alive and not self._silent(name):
                    self._look(name)
            turn += 1
            await asyncio.sleep(TURN_S)

    def _look(self, name: str) -> None:
        now, uid = self._cluster.loop.now, self.uid(name)
        found_now: list[Obj] = []
        for peer in self._peers.get(name, ()):
            count, since, reported_at = self._failed.pop((name, peer), (0, now, 0.0))
            if self.network.reaches(name, peer):
                continue
            reports = count + 1 >= LOOKS and now - reported_at >= REPORT_EVERY_S
            self._failed[(name, peer)] = (count + 1, since, now if reports and self._hears(name) else reported_at)
            if reports:
                self._reported[(name, peer)] = now
                found = {"check": "reach", "component": peer, "code": UNREACHED, "count": count + 1}
                found_now.append({**found, "firstTime": moment(since), "lastTime": moment(now)})
        if uid and self._hears(name) and (found_now or now - self._said_at.get(name, 0.0) >= HEARTBEAT_S):
            self._write(name, uid, *found_now)

    def _read_list(self) -> None:
        item = self._cluster.core.store.define("configmaps").items.get(f"default/{CONFIG_MAP}")
        text = str(section(item.object(), "data").get(KEY, "")) if item is not None else ""
        if text != self._list:
            self._list, self._list_at = text, self._cluster.loop.now
            self._peers = choose(msgspec.json.decode(text, type=list[Member])) if text else {}

    # What the API server holds of a node

    def uid(self, name: str) -> str:
        """Return the UID of the Node; "" without a Node."""
        node = self._node(name)
        return str(node["metadata"]["uid"]) if node is not None else ""

    def boot(self, name: str) -> str:
        """The boot that the Node names."""
        node = self._node(name)
        return str(section(section(node, "status"), "nodeInfo").get("bootID", "")) if node is not None else ""

    def _node(self, name: str) -> dict[str, Any] | None:
        item = self._cluster.core.store.define("nodes").items.get(name)
        return decode(item.data) if item is not None else None

    def is_old_news_believed(self) -> bool:
        """Returns whether an old report still counts that its author would not write now.

        Its author reaches the node by now; or it reported nothing, has stopped since, and others miss its peers.
        """
        since = self._cluster.loop.now - BELIEVED_S
        for (name, peer), at in self._reported.items():
            said_at = self._said_at.get(name, at)
            # A failure lasts until its author writes again so much later, and that may be for another finding.
            if (name, peer) not in self._failed and said_at > since and said_at - at <= LASTS_S:
                return True
        missed = {peer for _, peer in self._failed}
        return any(
            at > since and not self._speaks(name) and not missed.isdisjoint(self._peers.get(name, ()))
            for name, at in self._said_at.items()
        )

    def is_settling(self) -> bool:
        """Whether some agents probe other peers than before, and the controller may not have evaluated that yet."""
        return self._cluster.loop.now < self._list_at + SETTLES_S

    def watchers(self, name: str) -> list[str]:
        """Returns the nodes that watch a node and could report it missing."""
        return [peer for peer, others in self._peers.items() if name in others and self._speaks(peer)]

    def _speaks(self, name: str) -> bool:
        """Returns whether the agent of a node runs and its reports arrive."""
        return name in self._nodes.nodes and self._hears(name) and not self._silent(name)
