"""Models of machines that break, and that are tested, reset, rebooted and replaced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from fuzz.health.agents import AGAIN_S, NEW_DRIVER, Agents
from fuzz.health.mishaps import Habits, Wound
from muster.api.names import LABEL_PREFLIGHT
from muster.embedded.item import Item
from muster.embedded.objects import Obj, section
from muster.gputest.summary import SUMMARY_SCHEMA
from muster.kube.clock import instant
from muster.kube.errors import NotFound
from muster.sim.nodes import SimNode, SimNodes
from muster.sim.virtual.cluster import VirtualCluster

STEP, SESSION = "muster.dev/remediation", "muster.dev/remediation-session"
RESET_S = 2.0
Acts = Callable[[str, str, str], None]


class Machine:
    """One machine."""

    def __init__(self, habits: Habits) -> None:
        self.habits = habits
        self.broken = False
        self.mended_by = ""
        self.hung = False
        self.off = False
        """The machine stays off for good. Another machine may get its name."""
        self.tests_to_hang = habits.hangs_tests
        self.has_failed_repair = False
        """Whether a test, reset or reboot of the machine failed."""

    def mend(self, by: str) -> None:
        """Repair the machine, if its fault can be repaired in this way."""
        if self.mended_by == by:
            self.broken, self.mended_by = False, ""


class Ward:
    """All machines of a run.

    Args:
        cluster: where they are.
        nodes: their kubelets.
        habits: by number of the node.
        acts: called with the node, session and step before a machine does what a pod asks.
        ended: when a test on a node ended last, by its UID.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        nodes: SimNodes,
        habits: tuple[Habits, ...],
        acts: Acts,
        ended: dict[str, float],
    ) -> None:
        self._cluster, self._nodes, self._acts = cluster, nodes, acts
        self.machines = {f"node-{number:05d}": Machine(each) for number, each in enumerate(habits)}
        self.agents = Agents(cluster, nodes, lambda name: self.machines[name].hung or self.machines[name].off)
        self._ended = ended
        self._tasks: set[asyncio.Task[None]] = set()
        cluster.core.store.listeners.append(self._changed)

    def renewed(self, name: str) -> None:
        """Another machine has the name."""
        self.machines[name] = Machine(Habits())

    def strike(self, wound: Wound) -> None:
        """Execute a fault now."""
        name = f"node-{wound.node:05d}"
        machine = self.machines[name]
        if wound.kind == "reboot":
            self._spawn(self._reboot(name, "works"))
            return
        if wound.kind == "dies":
            self.switch_off(name)
            return
        if wound.kind in ("fault", "silent"):
            machine.broken, machine.mended_by = True, wound.mended_by
        if wound.kind == "silent":
            return
        if wound.kind == "driver":
            self.agents.drivers[self.agents.uid(name)] = NEW_DRIVER
        component = "" if wound.kind == "driver" else "0000:3b:00"
        self.agents.later(name, {"check": "xid", "component": component, "code": wound.code}, wound.reported_s)

    def switch_off(self, name: str) -> None:
        """The machine is off for good."""
        self.machines[name].off = True
        self._nodes.lose(name)

    async def back(self, name: str, machine: Machine) -> None:
        """The machine that had the name is up again, where it still has it."""
        if self.machines[name] is machine and not machine.off and self.agents.uid(name):
            await self._nodes.recover(name)

    def mended(self, name: str) -> None:
        """A person has repaired the machine."""
        machine = self.machines[name]
        machine.habits, machine.broken, machine.tests_to_hang = Habits(), False, 0
        if machine.hung or machine.off:
            machine.hung = machine.off = False
            self._spawn(self.back(name, machine))

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
                machine.has_failed_repair = True
            else:
                self._cluster.loop.call_later(machine.habits.test_s, self._tested, pod)

    def _step(self, pod: Obj) -> None:
        name, step = pod["spec"]["nodeName"], pod["metadata"]["labels"][STEP]
        env = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
        node = self._there(pod)
        if node is None:
            return
        if env["BOOT"] != self.agents.boot(name):
            self._ends(pod, 0)
            return
        self._acts(name, pod["metadata"]["annotations"][SESSION], step)
        machine = self.machines[name]
        how = machine.habits.reset if step == "reset" else machine.habits.reboot
        machine.has_failed_repair |= how != "works"
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
        if (node.alive, node.boot) == (False, boot):
            await self.back(name, machine)

    def _tested(self, pod: Obj) -> None:
        if self._there(pod) is None:
            return
        machine = self.machines[pod["spec"]["nodeName"]]
        level = int(pod["metadata"]["labels"][LABEL_PREFLIGHT])
        said: dict[str, Any] = {"schema": SUMMARY_SCHEMA, "level": level, "backend": "cpu:8"}
        said["passed"] = not machine.broken
        if machine.broken:
            said["failures"] = [["memory", "wrong-word", -1, "simulated"]]
        self._ended[self.agents.uid(pod["spec"]["nodeName"])] = self._cluster.loop.now
        self._ends(pod, int(machine.broken), msgspec.json.encode(said).decode())

    def _there(self, pod: Obj) -> SimNode | None:
        """The machine on which the pod still runs."""
        node, sim = self._nodes.nodes[pod["spec"]["nodeName"]], self._nodes.pods.get(pod["metadata"]["uid"])
        return node if node.alive and sim is not None and sim.phase == "running" else None

    def _ends(self, pod: Obj, code: int, message: str = "", at: str = "") -> None:
        """The pod has ended; a node that is cut off says so later."""
        meta = pod["metadata"]
        at = at or instant(self._cluster.loop.now)
        if pod["spec"]["nodeName"] in self._nodes.cut:
            self._cluster.loop.call_later(AGAIN_S, self._ends, pod, code, message, at)
            return
        if self._there(pod) is None:
            return
        self._nodes.pods[meta["uid"]].phase = "ended"
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

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
