"""Timed changes of nodes and ConfigMaps by users, operators and other programs."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from muster.api.names import ANNOTATION_TEAM_RECORD, LABEL_TEAM, TEAMS_CONFIG_KEY, TEAMS_CONFIG_MAP
from muster.embedded.objects import Obj, decode, items, section
from muster.kube.errors import NotFound
from muster.sim.virtual.cluster import VirtualCluster

SYSTEM = "default"
"""Muster's own namespace."""
FOREIGN = "example.com/maintenance"
QUARANTINE = "muster.dev/quarantine"
MAPS = f"/api/v1/namespaces/{SYSTEM}/configmaps"


class Deed(msgspec.Struct, frozen=True):
    """One action at `at` seconds after the start.

    Kinds:
        hand: labels and taints a node for team `value`.
        unhand: removes them.
        strip: removes label and taint of a team, even if Muster set them.
        taint, untaint: the taint with key `value`.
        config: writes the ConfigMap of teams.
        unconfig: deletes it.
    """

    kind: str
    at: float
    node: int = -1
    value: str = ""


class People:
    """Executes the actions.

    Args:
        cluster: where.
        names: of the nodes, by number.

    Attributes:
        by_hand: node -> the team that a user set by hand; Muster must not change such a node.
        moving: whether a node may change hands under a running gang by the ConfigMap in force, and since when.
    """

    def __init__(self, cluster: VirtualCluster, names: list[str]) -> None:
        self._cluster, self._names = cluster, names
        self.by_hand: dict[str, str] = {}
        self.moves_until = 0.0
        self._moves = False

    def do(self, deed: Deed) -> None:
        """Execute an action now."""
        if deed.kind in ("config", "unconfig"):
            self._configure(deed)
            return
        name = self._names[deed.node]
        try:
            node = self._cluster.call("GET", f"/api/v1/nodes/{name}")
        except NotFound:
            return
        taints = items(section(node, "spec"), "taints")
        if deed.kind in ("taint", "untaint"):
            kept = [taint for taint in taints if taint["key"] != deed.value]
            added = [{"key": deed.value, "value": "yes", "effect": "NoSchedule"}] * (deed.kind == "taint")
            self._write(name, [*kept, *added], {})
            return
        kept = [taint for taint in taints if taint["key"] != LABEL_TEAM]
        if deed.kind == "hand":
            if recorded_team(node) != deed.value:  # else it looks like Muster's own record
                self.by_hand[name] = deed.value
            kept.append({"key": LABEL_TEAM, "value": deed.value, "effect": "NoSchedule"})
            self._write(name, kept, {LABEL_TEAM: deed.value})
        elif deed.kind == "strip" or self.by_hand.pop(name, ""):
            self._write(name, kept, {LABEL_TEAM: None})

    def gone(self, name: str) -> None:
        """Forget the labels and taints of a deleted Node object."""
        self.by_hand.pop(name, None)

    def may_move(self, within_s: float) -> bool:
        """Returns whether a ConfigMap of the last `within_s` lets nodes move under running gangs."""
        return self._moves or self.moves_until > self._cluster.loop.now - within_s

    def _configure(self, deed: Deed) -> None:
        if self._moves:
            self.moves_until = self._cluster.loop.now
        self._moves = "runningGangs: Move" in deed.value
        if deed.kind == "unconfig":
            with contextlib.suppress(NotFound):
                self._cluster.call("DELETE", f"{MAPS}/{TEAMS_CONFIG_MAP}")
        else:
            put_config(self._cluster, TEAMS_CONFIG_MAP, TEAMS_CONFIG_KEY, deed.value)

    def _write(self, name: str, taints: list[dict[str, Any]], labels: dict[str, str | None]) -> None:
        body: dict[str, Any] = {"spec": {"taints": taints}}
        if labels:
            body["metadata"] = {"labels": labels}
        self._cluster.call("PATCH", f"/api/v1/nodes/{name}", body)


def recorded_team(node: Obj) -> str:
    """The team that Muster's record on a node names."""
    record = decode(section(node["metadata"], "annotations").get(ANNOTATION_TEAM_RECORD, "{}").encode())
    return str(record.get("team", ""))


def put_config(cluster: VirtualCluster, name: str, key: str, text: str) -> None:
    """Write a ConfigMap."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {key: text}}
    try:
        cluster.call("PATCH", f"{MAPS}/{name}", {"data": {key: text}})
    except NotFound:
        cluster.call("POST", MAPS, body)
