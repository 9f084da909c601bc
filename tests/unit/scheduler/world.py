"""A cluster in memory for tests of decide: objects in, plans out, and a model of the API server that does them."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import msgspec

from muster.api.names import ANNOTATION_BACKFILLED
from muster.api.placement import Placement, PlacementStatus
from muster.api.preflight import Preflight, PreflightSpec
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.policy import PodDisruptionBudget
from muster.kube.objects.struct import from_dict
from muster.scheduler.decide import decide
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.placements import bound_status, leaving_status, staying_status, timestamp
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.memo import EMPTY
from muster.scheduler.plan import (
    Bind,
    DeletePlacement,
    EvictMember,
    MarkBound,
    Plan,
    ReleaseGang,
    RemoveMember,
    Settings,
    StayOn,
    TellToLeave,
    TryEviction,
    WritePlacement,
)
from muster.scheduler.state import ClusterState
from tests.support.values import value_of

GPU = "nvidia.com/gpu"
START = 1_700_000_000.0
RUNNING = ("PodScheduled", "Ready")


def when(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(name: str, *, uid: str = "", gpus: int = 8, ready: bool = True, **changes: Any) -> Node:
    """`changes`: labels, taints, unschedulable, room, boot."""
    room = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: str(gpus), **changes.get("room", {})}
    return from_dict(
        {
            "metadata": {"name": name, "uid": uid or f"uid-{name}", "labels": changes.get("labels", {})},
            "spec": {"taints": changes.get("taints", []), "unschedulable": changes.get("unschedulable", False)},
            "status": {
                "allocatable": room,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                "nodeInfo": {"bootID": changes.get("boot", "")},
            },
        },
        Node,
    )


def but_memo(plan: Plan) -> Plan:
    return msgspec.structs.replace(plan, memo=EMPTY)


class World:
    """State, objects and time. `run` decides and carries out until nothing is left to do."""

    def __init__(
        self,
        *,
        bind_deadline_s: float = 30.0,
        hold_s: float = 600.0,
        team_key: str = "muster.dev/team",
        tests_needed: bool = False,
    ) -> None:
        self.settings = Settings(
            bind_deadline_s=bind_deadline_s, hold_s=hold_s, team_key=team_key, preflight_required=tests_needed
        )
        self.state, self.memo = self._empty(), EMPTY
        self.tested: dict[str, Preflight] = {}
        self.now = START
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.placements: dict[str, Placement] = {}
        self.jobs: dict[str, JobFacts] = {}
        self.budgets: dict[str, PodDisruptionBudget] = {}
        self.refused: dict[str, str] = {}
        self.lingering: set[str] = set()
        self.state.budgets.known = True
        self._versions = itertools.count(1)

    def _empty(self) -> ClusterState:
        settings = self.settings
        return ClusterState(
            bind_deadline_s=settings.bind_deadline_s,
            team_key=settings.team_key,
            trusting="default" if settings.preflight_required else None,
        )

    # What users, kubelets and other controllers do

    def add_nodes(self, *names: str, **options: Any) -> None:
        for name in names:
            self.set_node(node(name, **options))

    def set_node(self, obj: Node) -> None:
        self.nodes[obj.name] = obj
        self.state.set_node(obj)

    def set_tested(
        self, name: str, *, uid: str = "", boot: str = "", driver: str = "", passed: bool = True, ago_s: float = 0.0
    ) -> None:
        """The node's record of its tests; `uid` and `boot` are by default the node's own."""
        known = self.nodes.get(name)
        info = known.status.node_info if known is not None else None
        spec = PreflightSpec(
            node_uid=uid or (known.uid if known is not None else ""),
            boot_id=boot or (info.boot_id if info is not None else ""),
            driver=driver,
            level=1,
            passed=passed,
            time=datetime.fromtimestamp(self.now - ago_s, UTC),
        )
        self.tested[name] = Preflight(metadata=ObjectMeta(name=name), spec=spec)
        self.state.set_tested(name, self.tested[name])

    def remove_tested(self, name: str) -> None:
        self.tested.pop(name, None)
        self.state.set_tested(name, None)

    def remove_node(self, name: str) -> None:
        del self.nodes[name]
        self.state.remove_node(name)

    def add_pod(self, name: str, spec: dict[str, Any] | None = None, **meta: Any) -> Pod:
        """`spec` is merged over a pod of one whole node; `meta`: labels, annotations, owner."""
        gpus = (spec or {}).pop("gpus", 8)
        pod = from_dict(
            {
                "metadata": {
                    "name": name,
                    "namespace": "default",
                    "uid": f"{name}-{next(self._versions)}",
                    "creationTimestamp": when(self.now),
                    "labels": meta.get("labels", {}),
                    "annotations": meta.get("annotations", {}),
                    "ownerReferences": meta.get("owners", []),
                },
                "spec": {
                    "schedulerName": "muster",
                    "containers": [{"name": "worker", "resources": {"limits": {GPU: str(gpus), "cpu": "1"}}}],
                    **(spec or {}),
                },
                "status": {"phase": "Pending"},
            },
            Pod,
        )
        self._set_pod(pod)
        return pod

    def add_member(
        self, gang: str, slot: int, size: int, *, attempt: int = 0, uid: str = "", whole: str = "", **spec: Any
    ) -> Pod:
        """`whole`: its job has its nodes to itself; the value of the annotation."""
        return self.add_pod(
            f"{gang}-{slot}-{attempt}",
            spec,
            labels={"muster.dev/gang": gang, "muster.dev/slot": str(slot)},
            annotations={
                "muster.dev/gang-size": str(size),
                "muster.dev/gang-uid": uid or f"uid-{gang}",
                "muster.dev/attempt": str(attempt),
                **({"muster.dev/whole-node": whole} if whole else {}),
            },
        )

    def add_gang(self, gang: str, size: int, **options: Any) -> None:
        for slot in range(size):
            self.add_member(gang, slot, size, **options)
        self.now += 1.0

    def set_job(self, gang: str, facts: JobFacts) -> None:
        """The gang's TrainingJob says this."""
        self.jobs[f"uid-{gang}"] = facts
        self.state.jobs.set(f"uid-{gang}", facts)

    def set_budget(
        self, name: str, labels: dict[str, str], allowed: int, *, unhealthy: str = "", **status: int
    ) -> None:
        """A disruption budget of the pods with these labels; `status`: observedGeneration, currentHealthy, ..."""
        budget = from_dict(
            {
                "metadata": {"name": name, "namespace": "default", "generation": 1},
                "spec": {"selector": {"matchLabels": labels}, "unhealthyPodEvictionPolicy": unhealthy},
                "status": {"disruptionsAllowed": allowed, "observedGeneration": 1, **status},
            },
            PodDisruptionBudget,
        )
        self.budgets[budget.key] = budget
        self.state.budgets.set(budget)

    def remove_budget(self, name: str) -> None:
        del self.budgets[f"default/{name}"]
        self.state.budgets.remove(f"default/{name}")

    def _set_pod(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        self.state.set_pod(pod, self.now)

    def find(self, name: str) -> Pod:
        return next(pod for pod in self.pods.values() if pod.name == name)

    def terminate(self, name: str) -> None:
        """Ask for deletion: the pod keeps its room until `remove_pod`."""
        pod = self.find(name)
        meta = msgspec.structs.replace(pod.metadata, deletion_timestamp=timestamp(self.now))
        self._set_pod(msgspec.structs.replace(pod, metadata=meta))

    def remove_pod(self, name: str) -> None:
        pod = self.find(name)
        del self.pods[pod.uid]
        self.state.remove_pod(pod.uid, self.now)

    def remove_gang(self, gang: str) -> None:
        for pod in [pod for pod in self.pods.values() if pod.metadata.labels.get("muster.dev/gang") == gang]:
            self.remove_pod(pod.name)

    def relabel(self, name: str, labels: dict[str, str]) -> None:
        pod = self.find(name)
        meta = msgspec.structs.replace(pod.metadata, labels=labels)
        self._set_pod(msgspec.structs.replace(pod, metadata=meta))

    def set_unready(self, name: str) -> None:
        pod = self.find(name)
        kept = tuple(each for each in pod.status.conditions if each.type != "Ready")
        self._set_pod(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=kept)))

    def finish(self, name: str) -> None:
        pod = self.find(name)
        self._set_pod(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Succeeded")))

    # What the scheduler does

    def decide(self) -> Plan:
        plan = decide(self.state.snapshot(self.now), self.now, self.settings, self.memo)
        self.memo = plan.memo
        self.state.searched(plan.searches)
        return plan

    def never_another_plan_without_memo(self) -> None:
        """A lost memo changes no plan, and no answer is kept in the snapshot."""
        snapshot = self.state.snapshot(self.now)
        before = value_of(snapshot.budgets)
        carried = decide(snapshot, self.now, self.settings, self.memo)
        assert but_memo(carried) == but_memo(decide(snapshot, self.now, self.settings))
        assert value_of(snapshot.budgets) == before

    def gang(self, name: str) -> Gang:
        found = self.state.snapshot().find("default", name)
        assert found is not None, name
        return found

    def run(self, rounds: int = 20) -> Plan:
        """Decide and carry out until the plan holds nothing to do; returns that plan."""
        for _ in range(rounds):
            plan = self.decide()
            if not plan.actions:
                return plan
            for action in plan.actions:
                self.carry_out(action)
        raise AssertionError(f"still busy after {rounds} rounds: {plan.actions}")

    def carry_out(self, action: object) -> None:
        """Do one action as the API server would, and let the state hear of it."""
        if isinstance(action, WritePlacement):
            self.write(action.placement)
        elif isinstance(action, DeletePlacement):
            old = self.placements.pop(action.placement.key)
            self.state.remove_placement(old)
        elif isinstance(action, MarkBound):
            self.write(action.placement, bound_status(action.placement, self.now, self.settings.bind_deadline_s))
        elif isinstance(action, ReleaseGang):
            self.write(action.placement, PlacementStatus(phase="Released"))
        elif isinstance(action, TellToLeave):
            status = leaving_status(action.placement, self.now, action.reason, action.message)
            self.write(action.placement, status)
        elif isinstance(action, StayOn):
            self.write(action.placement, staying_status(action.placement))
        elif isinstance(action, TryEviction):
            texts = [f"pod {name}: {self.refused[name]}" for name, _ in action.pods if name in self.refused]
            gang = self.state.gangs[action.gang]
            self.state.tried(gang, self.now + (60.0 if texts else 10.0), texts[0] if texts else "")
        elif isinstance(action, EvictMember):
            self.evict(action)
        elif isinstance(action, RemoveMember):
            self.remove_pod(action.pod)
        elif isinstance(action, Bind):
            self.bind(action)

    def write(self, placement: Placement, status: PlacementStatus | None = None) -> None:
        """Store a placement. Writing spec leaves the stored status alone, as with a status subresource."""
        old = self.placements.get(placement.key)
        version = str(next(self._versions))
        meta = placement.metadata
        if old is None:
            assert not meta.resource_version, "created with a resourceVersion"
            meta = msgspec.structs.replace(
                meta, uid=f"placement-{version}", creation_timestamp=timestamp(self.now), resource_version=version
            )
        else:
            assert meta.resource_version == old.metadata.resource_version, "written over another version"
            meta = msgspec.structs.replace(meta, resource_version=version)
        if status is None:
            status = old.status if old is not None else PlacementStatus()
        stored = msgspec.structs.replace(placement, metadata=ObjectMeta(**_fields(meta)), status=status)
        self.placements[stored.key] = stored
        self.state.set_placement(stored, self.now)

    def evict(self, action: EvictMember) -> None:
        """The pod goes at once, unless that is refused (`refused`) or it takes its time (`lingering`)."""
        assert action.uid in self.pods, "evicted twice"
        if action.pod in self.refused:
            self.state.eviction_ended(action.uid, self.refused[action.pod], self.now + 1.0)
        elif action.pod in self.lingering:
            self.terminate(action.pod)
        else:
            self.remove_pod(action.pod)

    def bind(self, action: Bind) -> None:
        pod = self.pods[action.uid]
        assert not pod.spec.node_name, "bound twice"
        assert not pod.terminating
        spec = msgspec.structs.replace(pod.spec, node_name=action.node)
        conditions = [{"type": kind, "status": "True", "lastTransitionTime": when(self.now)} for kind in RUNNING]
        status = from_dict({"phase": "Running", "conditions": conditions}, type(pod.status))
        notes = {ANNOTATION_BACKFILLED: action.backfilled_for} if action.backfilled_for else {}
        meta = msgspec.structs.replace(pod.metadata, annotations={**pod.metadata.annotations, **notes})
        self._set_pod(msgspec.structs.replace(pod, metadata=meta, spec=spec, status=status))

    def forget_all(self) -> None:
        """Start over with what the API server holds."""
        self.state = self.listed()

    def listed(self) -> ClusterState:
        """What one knows who has just listed everything."""
        state = self._empty()
        state.budgets.known = True
        for budget in self.budgets.values():
            state.budgets.set(budget)
        for uid, facts in self.jobs.items():
            state.jobs.set(uid, facts)
        for obj in self.nodes.values():
            state.set_node(obj)
        for name, record in self.tested.items():
            state.set_tested(name, record)
        for placement in self.placements.values():
            state.set_placement(placement, self.now)
        for pod in self.pods.values():
            state.set_pod(pod, self.now)
        return state

    # What became of it

    def nodes_of(self, gang: str) -> dict[int, str]:
        """Slot -> node of the gang's pods that are bound."""
        return {
            int(pod.metadata.labels["muster.dev/slot"]): pod.spec.node_name
            for pod in self.pods.values()
            if pod.metadata.labels.get("muster.dev/gang") == gang and pod.spec.node_name and not pod.terminating
        }

    def slots_of(self, gang: str) -> dict[int, str]:
        """Slot -> node of the gang's placement."""
        placement = self.placements.get(f"default/{gang}")
        return {slot.slot: slot.node for slot in placement.spec.slots} if placement is not None else {}


def _fields(meta: ObjectMeta) -> dict[str, Any]:
    return {name: getattr(meta, name) for name in meta.__struct_fields__}


def reason_of(plan: Plan, world: World, gang: str) -> str:
    """The value of the reason why the gang waits; "" where it does not."""
    reason = plan.waiting.get(world.gang(gang).key)
    return reason.why.value if reason is not None else ""
