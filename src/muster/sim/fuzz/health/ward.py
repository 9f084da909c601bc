"""Machines that break, their agents, and what they do when they are tested, reset and rebooted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from muster.api.names import LABEL_PREFLIGHT
from muster.embedded.objects import Obj, decode, section
from muster.embedded.watchhub import Item
from muster.gputest.summary import SUMMARY_SCHEMA
from muster.kube.clock import instant
from muster.kube.errors import ApiError, NotFound
from muster.sim.fuzz.health.scenario import Habits, Wound
from muster.sim.nodes import SimNode, SimNodes
from muster.sim.virtual.cluster import VirtualCluster

STEP, SESSION = "muster.dev/remediation", "muster.dev/remediation-session"
HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
RESET_S = 2.0
AGAIN_S = 5.0
"""An agent that cannot write tries again."""
Acts = Callable[[str, str, str], None]


class Machine:
    """One machine and its agent."""

    def __init__(self, habits: Habits) -> None:
        self.habits = habits
        self.broken = False
        self.mended_by = ""
        self.hung = False
        self.tests_to_hang = habits.hangs_tests
        self.told_uid = ""
        self.findings: dict[tuple[str, float], dict[str, Any]] = {}

    def mend(self, by: str) -> None:
        """Something was done to it."""
        if self.mended_by == by:
            self.broken, self.mended_by = False, ""


class Ward:
    """All machines of a run.

    Args:
        cluster: where they are.
        nodes: their kubelets.
        habits: by number of the node.
        acts: told of the node, session and step before a machine does what a pod tells it.
    """

    def __init__(self, cluster: VirtualCluster, nodes: SimNodes, habits: tuple[Habits, ...], acts: Acts) -> None:
        self._cluster, self._nodes, self._acts = cluster, nodes, acts
        self.machines = {f"node-{number:05d}": Machine(each) for number, each in enumerate(habits)}
        self._tasks: set[asyncio.Task[None]] = set()
        self.writing = 0
        cluster.core.store.listeners.append(self._changed)

    def renewed(self, name: str) -> None:
        """Another machine has the name."""
        self.machines[name] = Machine(Habits())

    def strike(self, wound: Wound) -> None:
        """It happens now."""
        name = f"node-{wound.node:05d}"
        machine, now = self.machines[name], self._cluster.loop.now
        if wound.kind == "reboot":
            self._spawn(self._reboot(name, "works"))
            return
        if wound.kind in ("fault", "silent"):
            machine.broken, machine.mended_by = True, wound.mended_by
        if wound.kind == "silent":
            return
        instant = datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z")
        component = "" if wound.kind == "driver" else "0000:3b:00"
        found = {"check": "xid", "component": component, "code": wound.code, "count": 1}
        uid = self._uid(name)
        self.writing += 1
        self._cluster.loop.call_later(
            wound.told_s, self._tell, name, uid, {**found, "firstTime": instant, "lastTime": instant}
        )

    def _tell(self, name: str, uid: str, finding: dict[str, Any]) -> None:
        """As an agent does: the whole record, of this node; what was seen on another node of the name is not in it."""
        machine, node = self.machines[name], self._nodes.nodes[name]
        if self._uid(name) != uid or machine.hung or not uid:
            self.writing -= 1
            return
        if not node.alive:
            self._cluster.loop.call_later(AGAIN_S, self._tell, name, uid, finding)
            return
        self.writing -= 1
        if machine.told_uid != uid:
            machine.told_uid, machine.findings = uid, {}
        machine.findings[(finding["code"], finding["firstTime"])] = finding
        with contextlib.suppress(ApiError):
            self._cluster.call("POST", HEALTHS, {"metadata": {"name": name}})
        status = {"nodeUID": uid, "bootID": self._boot(name), "findings": list(machine.findings.values())}
        self._cluster.call("PATCH", f"{HEALTHS}/{name}/status", {"status": status})

    # Pods that run on them

    def _changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        if resource != "pods" or new is None or new.fields.get("status.phase") != "Running":
            return
        if old is not None and old.fields.get("status.phase") == "Running":
            return
        pod = new.object()
        if STEP in new.labels:
            self._cluster.loop.call_later(RESET_S, self._step, pod)
        elif LABEL_PREFLIGHT in new.labels:
            machine = self.machines[pod["spec"]["nodeName"]]
            if machine.tests_to_hang:
                machine.tests_to_hang -= 1
            else:
                self._cluster.loop.call_later(machine.habits.test_s, self._tested, pod)

    def _step(self, pod: Obj) -> None:
        name, step = pod["spec"]["nodeName"], pod["metadata"]["labels"][STEP]
        env = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
        node = self._there(pod)
        if node is None:
            return
        if env["BOOT"] != self._boot(name):
            self._ends(pod, 0)
            return
        self._acts(name, pod["metadata"]["annotations"][SESSION], step)
        machine = self.machines[name]
        how = machine.habits.reset if step == "reset" else machine.habits.reboot
        if how == "fails":
            self._ends(pod, 1)
        elif step == "reboot":
            self._spawn(self._reboot(name, how))
        elif how == "works":
            machine.mend("reset")
            self._ends(pod, 0)

    async def _reboot(self, name: str, how: str) -> None:
        node, machine = self._nodes.nodes[name], self.machines[name]
        if not node.alive:
            return
        boot = node.boot
        self._nodes.lose(name)
        if how == "hangs":
            machine.hung = True
            return
        await asyncio.sleep(machine.habits.reboot_s)
        machine.mend("reboot")
        if self._uid(name) and (node.alive, node.boot) == (False, boot):
            await self._nodes.recover(name)

    def _tested(self, pod: Obj) -> None:
        if self._there(pod) is None:
            return
        machine = self.machines[pod["spec"]["nodeName"]]
        level = int(pod["metadata"]["labels"][LABEL_PREFLIGHT])
        said: dict[str, Any] = {"schema": SUMMARY_SCHEMA, "level": level, "backend": "cpu:8"}
        said["passed"] = not machine.broken
        if machine.broken:
            said["failures"] = [["memory", "wrong-word", -1, "simulated"]]
        self._ends(pod, int(machine.broken), msgspec.json.encode(said).decode())

    def _there(self, pod: Obj) -> SimNode | None:
        """The machine on which the pod still runs."""
        node, sim = self._nodes.nodes[pod["spec"]["nodeName"]], self._nodes.pods.get(pod["metadata"]["uid"])
        return node if node.alive and sim is not None and sim.phase == "running" else None

    def _ends(self, pod: Obj, code: int, message: str = "") -> None:
        meta = pod["metadata"]
        self._nodes.pods[meta["uid"]].phase = "ended"
        at = instant(self._cluster.loop.now)
        container = section(pod, "status")["containerStatuses"][0]
        began = container["state"]["running"]["startedAt"]
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": began, "finishedAt": at}
        state = {"terminated": {**ended, "message": message}, "running": None}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{**container, "ready": False, "started": False, "state": state}],
        }
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        with contextlib.suppress(NotFound):
            self._cluster.call("PATCH", path, {"status": status})

    def _node(self, name: str) -> Obj | None:
        table = self._cluster.core.store.define("nodes")
        item = table.items.get(name)
        return decode(item.data) if item is not None else None

    def _uid(self, name: str) -> str:
        node = self._node(name)
        return str(node["metadata"]["uid"]) if node is not None else ""

    def _boot(self, name: str) -> str:
        node = self._node(name)
        return str(section(section(node, "status"), "nodeInfo").get("bootID", "")) if node is not None else ""

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
