"""Decides how a job uses its nodes: as a whole or shared, and how many GPUs each gives.

`muster run` without `--gpus` takes whole nodes. How many GPUs that is depends on the nodes, so it is decided once,
before the first pod, and recorded in `status.nodeUse`. The CRD has no defaults for these fields: the API server applies
defaults when it reads an object, which would change jobs that run during an upgrade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import ValidationError

from muster.api.names import LABEL_POOL, LABEL_TEAM, TAINT_POOL, WORKER_CONTAINER
from muster.api.training_job import TrainingJob
from muster.api.training_job_status import NodeUse
from muster.api.whole_node import whole_node
from muster.api.words import counted
from muster.kube.objects.affinity import Toleration
from muster.kube.objects.node import Node, Taint
from muster.kube.objects.pod import Pod, PodSpec
from muster.kube.objects.resources import pod_request
from muster.kube.objects.selectors import SelectorError, pod_fits_node_selection
from muster.kube.objects.struct import encode, from_dict
from muster.kube.objects.taints import HARD_EFFECTS, find_untolerated_taint
from muster.trainingjobs.snapshot import Wait

Counts = Mapping[int, int]
"""GPU count -> number of nodes with that count that the job may use."""
_PASSING = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "muster.dev/")
"""Taints that describe the present state of a node, not the jobs for which it is reserved."""


def node_use(job: TrainingJob, counts: Counts) -> NodeUse | Wait:
    """Return how the job will use its nodes from its next attempt on, or why that cannot be decided.

    A decision for an earlier attempt stays, unless the spec has changed. A job that began before Muster recorded this
    keeps sharing its nodes.
    """
    spec, before = job.spec, job.status.node_use
    if before is None and job.status.attempt > 0:
        before = NodeUse(gpus_per_node=spec.gpus_per_node or 0)
    sharing = spec.node_sharing or (before.sharing if before is not None else "Exclusive")
    asked = spec.gpus_per_node if spec.gpus_per_node is not None else _in_template(job)
    if sharing == "Shared":
        kept = before.gpus_per_node if before is not None else 0
        return NodeUse(sharing="Shared", gpus_per_node=kept if asked is None else asked)
    if before is not None and asked in (None, before.gpus_per_node) and before.sharing == sharing:
        return before
    if asked is not None:
        return NodeUse(sharing="Exclusive", gpus_per_node=asked, node_gpus=_count_for(asked, spec.replicas, counts))
    if not counts:
        return Wait(
            "NoNodes",
            "no node exists that the job may use, so its GPUs per node are not known yet; to decide now, set "
            "spec.gpusPerNode (muster run --gpus N)",
        )
    if len(counts) > 1:
        return Wait("GpusPerNodeMissing", _which(counts))
    only = next(iter(counts))
    return NodeUse(sharing="Exclusive", gpus_per_node=only, node_gpus=only)


def _which(counts: Counts) -> str:
    """Such as "the nodes that the job may use have 4 GPUs (2 nodes) or 8 GPUs (6 nodes): ..."."""
    found = [f"{counted(count, 'GPU')} ({counted(nodes, 'node')})" for count, nodes in sorted(counts.items())]
    most = max(counts, key=lambda count: (counts[count], count))
    return (
        f"the nodes that the job may use have {', '.join(found[:-1])} or {found[-1]}, and a gang never mixes them: "
        f"set one count, as in muster run --gpus {most} (spec.gpusPerNode: {most})"
    )


def _count_for(asked: int, replicas: int, counts: Counts) -> int | None:
    """Return the GPU count of the gang's nodes. None: any count (no GPUs requested, or no node has enough).

    It is the smallest count that enough nodes have, so that few GPUs stay idle. Otherwise it is the most
    frequent count.
    """
    serving = sorted(count for count in counts if count >= asked) if asked else []
    enough = [count for count in serving if counts[count] >= replicas]
    return next(iter(enough), None) or max(serving, key=lambda count: counts[count], default=None)


def _in_template(job: TrainingJob) -> int | None:
    """GPUs that the pod template requests for the worker; None if it requests none."""
    pod = job.spec.template.get("spec")
    containers = pod.get("containers") if isinstance(pod, dict) else None
    for each in containers if isinstance(containers, list) else ():
        if isinstance(each, dict) and each.get("name") == WORKER_CONTAINER:
            resources = each.get("resources")
            for kind in ("limits", "requests"):
                amounts = resources.get(kind) if isinstance(resources, dict) else None
                text = str(amounts.get(job.spec.gpu_resource, "")) if isinstance(amounts, dict) else ""
                if text.isdecimal():
                    return int(text)
    return None


def used_by(pods: Iterable[Pod], resource: str) -> NodeUse | None:
    """Derive from the pods how a job uses its nodes, for a status that lost it; None if the pods share their nodes."""
    for pod in pods:
        whole = whole_node(pod.metadata.annotations)
        if whole is not None:
            gpus = pod_request(pod.spec).get(resource, 0)
            return NodeUse(sharing="Exclusive", gpus_per_node=gpus, node_gpus=whole.gpus if whole.resource else None)
    return None


def gpus_of(node: Node, resource: str) -> int:
    """Return the number of the node's GPUs, including broken ones."""
    text = str(node.status.capacity.get(resource) or node.status.allocatable.get(resource) or "")
    return int(text) if text.isdecimal() else 0


def has_other_count(job: TrainingJob, node: Node | None) -> bool:
    """Returns whether the node's GPU count differs from the one recorded for the job's nodes.

    A node without GPUs does not count: a device plugin that restarts reports none for a while.
    """
    use = job.status.node_use
    if node is None or use is None or not use.node_gpus or not job.exclusive:
        return False
    return gpus_of(node, job.spec.gpu_resource) not in (0, use.node_gpus)


def gpu_counts(job: TrainingJob, nodes: Iterable[Node], team_key: str = LABEL_TEAM) -> Counts:
    """Count the nodes that the job may use by their GPUs.

    A node counts unless a lasting property excludes it: the job's node selector or affinity, a taint, or another team
    than that in the job's template. The team of the job's namespace is not read, so nodes of other teams may count. The
    user may then have to set a number that could be derived, but the job never gets a wrong number. If there are pools,
    nodes outside them count only if no node in a pool is suitable.
    """
    spec, borrows, team = constraints(job), job.spec.borrow, _team(job, team_key)
    bears = (
        *spec.tolerations,
        *(Toleration(key=key, operator="Exists") for key in (TAINT_POOL, job.spec.gpu_resource)),
    )
    inside: dict[int, int] = {}
    outside: dict[int, int] = {}
    for node in nodes:
        if _rules_out(node.spec.taints, bears, team_key, "*" if borrows else team) or not _selects(spec, node):
            continue
        counts = inside if LABEL_POOL in node.metadata.labels else outside
        gpus = gpus_of(node, job.spec.gpu_resource)
        counts[gpus] = counts.get(gpus, 0) + 1
    return inside or outside


def constraints(job: TrainingJob) -> PodSpec:
    """Return the job template's requirements on nodes; nothing if the template is not valid (the job is refused)."""
    pod = job.spec.template.get("spec")
    asked = {key: pod[key] for key in ("nodeSelector", "affinity", "tolerations") if pod.get(key)} if pod else {}
    try:
        return from_dict(asked, PodSpec)
    except ValidationError:
        return PodSpec()


def _team(job: TrainingJob, team_key: str) -> str:
    metadata = job.spec.template.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return str(labels.get(team_key, "")) if isinstance(labels, dict) else ""


def _selects(spec: PodSpec, node: Node) -> bool:
    try:
        return pod_fits_node_selection(spec, node)
    except SelectorError:
        return False


def _rules_out(taints: Sequence[Taint], bears: Sequence[Toleration], team_key: str, team: str) -> bool:
    """Returns whether a taint excludes the job permanently.

    `team` is the job's team, "" if unknown, "*" for a borrower.
    """
    for taint in taints:
        if taint.effect not in HARD_EFFECTS:
            continue
        if taint.key == team_key:
            if team not in ("", "*", taint.value):
                return True
        elif not taint.key.startswith(_PASSING) and find_untolerated_taint((taint,), bears) is not None:
            return True
    return False


class NodeCounts:
    """`gpu_counts` of jobs, computed once for jobs that may use the same nodes, until the nodes change."""

    def __init__(self, nodes: Callable[[], Iterable[Node]], team_key: str = LABEL_TEAM) -> None:
        """`nodes` returns the nodes in the cache."""
        self._nodes = nodes
        self._team_key = team_key
        self._known: dict[bytes, Counts] = {}

    def of(self, job: TrainingJob) -> Counts:
        """Return the counts of one job."""
        team = _team(job, self._team_key)
        key = encode([constraints(job), job.spec.gpu_resource, job.spec.borrow, team])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = gpu_counts(job, self._nodes(), self._team_key)
        return found

    def changed(self, old: Node | None, new: Node | None) -> bool:
        """Handle a change of a node. Returns whether the counts may change. Heartbeats change nothing."""
        if old is not None and new is not None and _lasting(old) == _lasting(new):
            return False
        self._known.clear()
        return True


def _lasting(node: Node) -> tuple[object, ...]:
    return node.metadata.labels, node.spec.taints, node.status.capacity, node.status.allocatable
