"""A cluster in memory that obeys plans as the API server, the scheduler, kubelets and supervisors would."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from muster.api.fixed_spec import effective
from muster.api.placement import Backfill, LeavingReason, Placement, PlacementSpec, PlacementStatus
from muster.api.run_record import RunRecord
from muster.api.training_job import TrainingJob
from muster.api.training_job_status import (
    CheckpointSource,
    CheckpointStatus,
    Progress,
    StartForecast,
    TrainingJobStatus,
)
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, NodeCondition, NodeStatus
from muster.kube.objects.pod import Pod, PodCondition, PodStatus
from muster.kube.objects.struct import decode, encode, from_dict
from muster.trainingjobs.attempts.checkpoints import with_newest
from muster.trainingjobs.attempts.ends import Ends
from muster.trainingjobs.decide import decide
from muster.trainingjobs.observed import Observed
from muster.trainingjobs.plan import (
    Action,
    CreatePod,
    DeleteJob,
    DeletePod,
    Direct,
    Directive,
    Plan,
    RecordEvent,
    WriteStatus,
)
from muster.trainingjobs.pods.node_use import gpu_counts
from muster.trainingjobs.pods.pod import PodSettings, build_pod, excluded_nodes
from muster.trainingjobs.pods.slots import attempt_of, slot_of
from muster.trainingjobs.snapshot import HardwareEvidence, JobSnapshot, Member, RankExit, Refusal, Restoring, Unwritable

T0 = 1_800_000_000.0
PODS = PodSettings(url="https://127.0.0.1:1", ca_pem="ca", muster_image="muster")


def moment(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)


def make_job(replicas: int = 2, **spec: Any) -> TrainingJob:
    body = {"replicas": replicas, "image": "i", "command": ["train"], **spec}
    metadata = {"name": "job", "namespace": "ns", "uid": "job-uid", "generation": 1, "resourceVersion": "1"}
    return from_dict({"metadata": metadata, "spec": body}, TrainingJob)


def make_node(name: str, ready: bool = True, since: float = T0 - 1000) -> Node:
    condition = NodeCondition(type="Ready", status="True" if ready else "Unknown", last_transition_time=moment(since))
    return Node(metadata=ObjectMeta(name=name, uid=f"uid-{name}"), status=NodeStatus(conditions=(condition,)))


class Crash(Exception):
    """The controller died between two actions."""


class World:
    """One job on a few nodes. `step` lets everybody move once; `now` is the time."""

    def __init__(self, job: TrainingJob, nodes: int = 4) -> None:
        self.now = T0
        self.job: TrainingJob | None = job
        self.nodes = {f"n{i}": make_node(f"n{i}") for i in range(nodes)}
        self.dead: set[str] = set()
        self.pods: dict[str, Pod] = {}
        self.members: dict[str, Member] = {}
        self.remembered: dict[str, Member] = {}
        self.directive: Directive | None = None
        self.hardware: list[HardwareEvidence] = []
        self.refusal: Refusal | None = None
        self.quota: int | None = None
        self.leading_since = T0
        self.observed = Observed()
        self.ends = Ends()
        self.trusted = True
        self.leases: dict[str, float] = {}
        self.leaving = False
        self.strained_at = 0.0
        self.progress: Progress | None = None
        self.placement: Placement | None = None
        self.forecast: StartForecast | None = None
        self.reserved_for = ""
        """The gang for which its nodes are reserved, if it is backfilled; only then it has a Placement."""
        self.version = 1
        self.log: list[Action] = []
        self.history: list[TrainingJobStatus] = []
        self.directed_run: set[int] = set()
        self.uids = 0
        self.source: TrainingJob | None = None
        self.disk: set[str] | None = None
        """Paths of checkpoints that every node sees; None where supervisors say nothing about them."""
        self.found: CheckpointSource | None = None
        """What supervisors find where spec.checkpoint.from is to be looked for."""
        self.others: tuple[CheckpointSource, ...] = ()
        """Checkpoints of other jobs that supervisors see."""
        self.unwritable: dict[str, int] = {}
        """Nodes that cannot write to the checkpoint folder, and errno."""
        self.refused_store: Unwritable | None = None
        """What the supervisor of slot 0 reports about the job's object store."""
        self.run: RunRecord | None = None
        """The record of the attempt in the controller's memory; only for tests of API servers that drop it."""
        self.restoring: Restoring | None = None
        """What the nodes report about the checkpoint that they restore."""

    # -- the controller

    def snapshot(self) -> JobSnapshot:
        assert self.job is not None
        return JobSnapshot(
            job=self.job,
            pods=tuple(self.pods.values()),
            placement=self.placement,
            nodes=self.nodes,
            members=dict(self.members),
            ended=self.ends.of("job-uid"),
            seen=self.observed.look(self.job.uid, self.pods.values(), self.nodes, self.now),
            progress=self.progress,
            restoring=self.restoring,
            run=self.run,
            hardware=tuple(self.hardware),
            refusal=self.refusal,
            gpu_counts=gpu_counts(self.job, self.nodes.values()),
            leading_since=self.leading_since,
            contact_trusted=self.trusted,
            leases=self.leases,
            leaving=self.leaving,
            forecast=self.forecast,
            source=self.source if self.job.status.attempt == 0 else None,
            strained_at=self.strained_at,
            progress_due=False,
        )

    def plan(self) -> Plan:
        return decide(self.snapshot(), self.now)

    def control(self, crash_after: int | None = None, rounds: int = 12) -> None:
        """Decide and act until nothing is left to write; with `crash_after`, die after so many actions."""
        done = 0
        for _ in range(rounds):
            if self.job is None:
                return
            plan = self.plan()
            wrote = False
            for action in plan.actions:
                if crash_after is not None and done >= crash_after:
                    self.restart_controller()
                    raise Crash
                self.act(action)
                done += 1
                wrote = wrote or isinstance(action, WriteStatus)
            if not wrote:
                return
        raise AssertionError(f"status is written for ever: {self.history[-3:]}")

    def restart_controller(self) -> None:
        """Supervisors have to announce themselves again; those alive do so in the next step."""
        self.members = {}
        self.observed = Observed()
        self.ends.clear()
        self.directive = None
        self.refusal = None
        self.leading_since = self.now

    def act(self, action: Action) -> None:
        assert self.job is not None
        self.log.append(action)
        match action:
            case WriteStatus(status=status):
                assert len(encode(status)) <= 16 * 1024
                self.version += 1
                metadata = replace(self.job.metadata, resource_version=str(self.version))
                self.job = replace(self.job, metadata=metadata, status=decode(encode(status), TrainingJobStatus))
                self.history.append(status)
                if status.run is None:
                    self.ends.forget("job-uid")
            case CreatePod():
                self.create(action)
            case DeletePod(name=name, uid=uid, force=force):
                self.delete(name, uid, force)
            case Direct(directive=directive):
                old = self.directive
                same = old is not None and old.attempt == directive.attempt and directive.desired == "run"
                if same and old is not None and old.run is not None:
                    directive = replace(directive, run=old.run)
                self.directive = directive
            case DeleteJob():
                self.job = None
                self.pods = {}
            case RecordEvent():
                pass

    def create(self, action: CreatePod) -> None:
        assert self.job is not None
        body = build_pod(effective(self.job).job, action.slot, action.attempt, action.excluded_nodes, PODS)
        name = body["metadata"]["name"]
        if name in self.pods:
            return  # AlreadyExists
        if self.quota is not None and len(self.pods) >= self.quota:
            self.refusal = Refusal("Forbidden", "exceeded quota: gpus", self.now + 1)
            return
        self.refusal = None
        self.uids += 1
        body["metadata"] |= {"uid": f"pod-{self.uids}", "creationTimestamp": moment(self.now).isoformat()}
        pod = from_dict(body, Pod)
        self.pods[name] = replace(pod, status=PodStatus(phase="Pending"))

    def delete(self, name: str, uid: str, force: bool = False) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid:
            return
        if force or not pod.spec.node_name:
            self.gone(name)
        elif not pod.terminating:
            metadata = replace(pod.metadata, deletion_timestamp=moment(self.now + 30), deletion_grace_period_seconds=30)
            self.pods[name] = replace(pod, metadata=metadata)

    def gone(self, name: str) -> None:
        pod = self.pods.pop(name)
        self.ends.pod_gone("job-uid", pod, self.members.pop(pod.uid, None))

    # -- everybody else

    def step(self, seconds: float = 1.0) -> None:
        """Time passes; kubelets, the scheduler and supervisors move once."""
        self.now += seconds
        for name, pod in list(self.pods.items()):
            if pod.terminating and pod.spec.node_name not in self.dead:
                self.gone(name)
        self.schedule()
        for name, pod in list(self.pods.items()):
            node = pod.spec.node_name
            if node and node not in self.dead and pod.status.phase == "Pending":
                self.pods[name] = replace(pod, status=PodStatus(phase="Running", start_time=moment(self.now)))
            elif node and node not in self.dead and pod.status.phase == "Running":
                self.supervise(pod)

    def schedule(self) -> None:
        assert self.job is not None
        leaves = self.placement is not None and self.placement.status.phase == "Preempting"
        if leaves and any(pod.spec.node_name for pod in self.pods.values()):
            return  # it is to leave: its Placement goes when its last pod has gone, and only then it is placed again
        if leaves or not any(pod.spec.node_name for pod in self.pods.values()):
            self.placement = None
        live = [pod for pod in self.pods.values() if not pod.terminating and not pod.finished]
        if {slot_of(pod) for pod in live} != set(range(effective(self.job).job.spec.replicas)):
            return  # a gang is placed as one
        taken = {pod.spec.node_name for pod in self.pods.values() if pod.spec.node_name and not pod.finished}
        free = [name for name, node in self.nodes.items() if node.ready and name not in self.dead and name not in taken]
        waiting = [pod for pod in live if not pod.spec.node_name]
        chosen = {}
        for pod in waiting:
            node = next((name for name in free if name not in excluded_nodes(pod)), None)
            if node is None:
                return
            free.remove(node)
            chosen[pod.name] = node
        for name, node in chosen.items():
            pod = self.pods[name]
            self.pods[name] = replace(pod, spec=replace(pod.spec, node_name=node))
        if chosen and self.reserved_for:
            self.placement = self.placement or self.placed()

    def supervise(self, pod: Pod) -> None:
        """The table at the top of the supervisor's state machine."""
        uid, directive = pod.uid, self.directive
        member = self.members.get(uid) or self.announced(pod)
        if directive is not None and uid not in directive.slots:
            directive = None
        if directive is not None:
            newer = directive.attempt > member.attempt
            if directive.desired == "exit":
                phase = "Succeeded" if directive.exit_code == 0 else "Failed"
                self.pods[pod.name] = replace(pod, status=PodStatus(phase=phase))
                self.members.pop(uid, None)
                return
            if newer and member.state != "idle":
                member = replace(member, state="idle", attempt=directive.attempt)
            elif directive.desired == "run" and member.state == "idle" and _takes_part(uid, directive):
                exit_attempt = member.exit.attempt if member.exit else 0
                if directive.attempt >= member.attempt and directive.attempt > exit_attempt:
                    assert self.job is not None
                    self.directed_run.add(directive.attempt)
                    assert self.job.status.attempt == directive.attempt
                    assert directive.run is not None
                    rank = next(rank for rank, host in enumerate(directive.run.hosts) if host.pod_uid == uid)
                    member = replace(member, state="running", attempt=directive.attempt, exit=None, node_rank=rank)
            elif newer:
                member = replace(member, attempt=directive.attempt)
        if directive is not None and self.disk is not None and member.state == "idle":
            looked = {path: None if "://" in path else path in self.disk for path in directive.look}
            member = replace(member, looked=looked, found=self.found)
        if member.state == "idle":
            number = self.unwritable.get(pod.spec.node_name)
            refused = self.refused_store if slot_of(pod) == 0 else None
            folder = Unwritable(path="/c/job-x", errno=number, uid=7) if number else refused
            member = replace(member, unwritable=folder)
        member = replace(member, others=self.others)
        before = self.members.get(uid)
        same = before is not None and (before.state, before.attempt) == (member.state, member.attempt)
        state_at = before.state_at if before is not None and same else self.now
        self.members[uid] = replace(member, state_at=state_at, silent_since=None, cut=False)
        self.remembered[uid] = self.members[uid]

    def announced(self, pod: Pod) -> Member:
        """What a supervisor says to a controller that does not know it: what it does, and how its ranks ended."""
        known = self.remembered.get(pod.uid)
        return known or Member(pod_uid=pod.uid, address=f"10.0.0.{slot_of(pod)}", shell_port=1000)

    # -- faults

    def holder(self, slot: int) -> Pod:
        return max((pod for pod in self.pods.values() if slot_of(pod) == slot), key=attempt_of)

    def exit_rank(
        self,
        slot: int,
        code: int,
        signal: int = 0,
        tail: str = "",
        rank: int | None = None,
        happened_s_ago: float = 0.0,
        how: str = "RankExited",
        errno: int = 0,
        program: str = "",
    ) -> None:
        """The rank on this slot ends; with code 0 the launcher is done."""
        pod = self.holder(slot)
        member = self.members[pod.uid]
        ended = RankExit(
            attempt=member.attempt,
            rank=slot if rank is None else rank,
            code=code,
            signal=signal,
            time=self.now - happened_s_ago,
            tail=(tail,),
            how=how,
            errno=errno,
            program=program,
        )
        member = replace(member, state="finished", exit=ended, exit_at=self.now)
        self.members[pod.uid] = self.remembered[pod.uid] = member

    def kill_node(self, name: str) -> None:
        """The machine is gone: connections break at once, the API notices later."""
        self.dead.add(name)
        for pod in self.pods.values():
            member = self.members.get(pod.uid)
            if pod.spec.node_name == name and member is not None:
                self.members[pod.uid] = replace(member, silent_since=self.now, cut=True)

    def node_ready(self, name: str, ready: bool) -> None:
        self.nodes[name] = make_node(name, ready, self.now)
        if ready:
            self.dead.discard(name)

    def fail_pod(self, slot: int, reason: str, message: str = "") -> None:
        pod = self.holder(slot)
        self.pods[pod.name] = replace(pod, status=PodStatus(phase="Failed", reason=reason, message=message))
        self.members.pop(pod.uid, None)

    def evict(self, slot: int, reason: str = "EvictionByEvictionAPI") -> None:
        pod = self.holder(slot)
        condition = PodCondition(type="DisruptionTarget", status="True", reason=reason)
        self.pods[pod.name] = replace(pod, status=replace(pod.status, conditions=(condition,)))
        self.delete(pod.name, pod.uid)

    def checkpoint(self, step: int) -> None:
        """A rank reports a checkpoint."""
        assert self.job is not None
        status = self.job.status
        saved = CheckpointStatus(path=f"/{step}", step=step, attempt=status.attempt, time=moment(self.now))
        listed = with_newest(status, saved)
        self.job = replace(self.job, status=replace(status, last_checkpoint=saved, checkpoints=listed))

    def asked_to_leave(
        self, why: str = "preempted by ns/urgent (priority 5)", reason: LeavingReason = "Preempted"
    ) -> None:
        """The scheduler wants the nodes back."""
        status = PlacementStatus(phase="Preempting", preempting_time=moment(self.now), reason=reason, message=why)
        self.placement = replace(self.placed(), status=status)

    def placed(self) -> Placement:
        """The Placement of a job whose pods are all bound."""
        assert self.job is not None
        backfill = Backfill(gang=self.reserved_for) if self.reserved_for else None
        spec = PlacementSpec(gang="job", gang_uid="job-uid", size=self.job.spec.replicas, backfill=backfill)
        return Placement(
            metadata=ObjectMeta(name="job", namespace="ns"), spec=spec, status=PlacementStatus(phase="Bound")
        )

    # -- shorthands

    @property
    def status(self) -> TrainingJobStatus:
        assert self.job is not None
        return self.job.status

    def until(self, phase: str, seconds: float = 60.0, *, attempt: int | None = None) -> None:
        deadline = self.now + seconds
        while not (self.status.phase == phase and attempt in (None, self.status.attempt)):
            assert self.now < deadline, f"{self.status.phase} and not {phase}: {self.status.message}"
            self.control()
            self.step()
        self.control()

    def started(self) -> World:
        self.until("Running")
        self.step()
        return self

    def actions(self, kind: type) -> list[Any]:
        return [action for action in self.log if isinstance(action, kind)]


def _takes_part(uid: str, directive: Directive) -> bool:
    return directive.run is not None and any(host.pod_uid == uid for host in directive.run.hosts)
