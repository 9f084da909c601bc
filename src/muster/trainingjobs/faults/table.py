"""The rows of docs/whose-fault.md, in order; faults.py uses them."""

from __future__ import annotations

from typing import Final

import msgspec

from muster.api.training_job_status import Cause


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One rule.

    Attributes:
        id: stable name, written to status.faults[].rule.
        tier: strength; in one incident the lowest tier decides.
        kind: where the evidence is seen (see faults.Kind).
        reasons: patterns for the whole reason; empty: any.
        signals: signals that ended the process; empty: any.
        codes: exit codes; empty: any.
        says: pattern somewhere in the message; empty: any.
        cause: the budget that is charged.
        replace: the slot's pod must be replaced.
        exclude: replacements avoid the node.
        what: the evidence in words.
        why: the reason for the cause.
        source: where the facts come from.
    """

    id: str
    tier: int
    kind: str
    cause: Cause
    what: str
    why: str
    source: str = ""
    reasons: tuple[str, ...] = ()
    signals: tuple[int, ...] = ()
    codes: tuple[int, ...] = ()
    says: str = ""
    replace: bool = True
    exclude: bool = False


_KUBELET: Final = "kubernetes pkg/kubelet/lifecycle (predicate.go, handlers.go)"
_DISRUPTION: Final = "https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions"
_IMAGES: Final = "kubernetes pkg/kubelet/images/types.go; cri-api pkg/errors"
_CODES: Final = "kubernetes pkg/kubelet/kuberuntime/kuberuntime_container.go"
_LOST_PEER: Final = (
    r"connection (was )?reset by peer|connection closed by (remote )?peer|socket closed|broken pipe"
    r"|remote process exited|nccl ?(remote|system) ?error|unhandled system error|watchdog (caught|thread)"
    r"|lost connection to|process_vm_(read|write)v\b.*no such process|transport retry (count|counter) exceeded"
)

TABLE: Final[tuple[Row, ...]] = (
    Row(
        id="hardware", tier=0, kind="hardware", cause="infrastructure", exclude=True,
        what="A condition or Event of the node names broken hardware, at most 120 s before or after the fault",
        why="Not the program but broken hardware ended the ranks; if this evidence comes late, the old charge "
        "is refunded",
        source="NVIDIA Xid catalogue; Meta's Llama 3 paper, section 3.3.4",
    ),
    Row(
        id="node-deleted", tier=1, kind="node", reasons=("Deleted", "Replaced"), cause="infrastructure", exclude=True,
        what="The node is gone from the API, or another node has its name",
        why="A machine was taken away", source="https://kubernetes.io/docs/concepts/architecture/nodes/",
    ),
    Row(
        id="node-lost", tier=1, kind="node", cause="infrastructure", exclude=True,
        what="The node is not Ready and its supervisor does not answer",
        why="Neither the API server nor the controller can reach the machine",
        source="https://kubernetes.io/docs/reference/node/node-status/#condition",
    ),
    Row(
        id="preempted", tier=2, kind="pod", reasons=("PreemptionByScheduler", "Preempting"), cause="infrastructure",
        what="The scheduler preempted the pod for a pod of higher priority", why="The cluster took the node back",
        source=_DISRUPTION,
    ),
    Row(
        id="gang-not-bound", tier=2, kind="pod", reasons=("GangNotBound",), cause="infrastructure",
        what="The scheduler could not bind the whole gang in time, so it released the members that were bound",
        why="The program had not started", source="muster.scheduler.plan.RemoveMember",
    ),
    Row(
        id="evicted", tier=2, kind="pod",
        reasons=("EvictionByEvictionAPI", "DeletionByTaintManager", "DeletionByPodGC"), cause="infrastructure",
        what="The pod was evicted because of a drain or a NoExecute taint, or because its node is gone",
        why="The cluster took the node back", source=_DISRUPTION,
    ),
    Row(
        id="node-shutdown", tier=2, kind="pod", reasons=("Terminated", "NodeShutdown", "Shutdown"),
        cause="infrastructure", exclude=True, what="The kubelet ended the pod because its machine shuts down",
        why="A machine was taken away", source="kubernetes pkg/kubelet/nodeshutdown/nodeshutdown_manager.go",
    ),
    Row(
        id="storage-eviction", tier=2, kind="pod", reasons=("Evicted", "TerminationByKubelet"),
        says=r"ephemeral|emptydir|local storage", cause="user",
        what="The kubelet evicted the pod: it wrote more to local disk than its limit",
        why="The program filled the disk or /dev/shm",
        source="https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/",
    ),
    Row(
        id="pressure-eviction", tier=2, kind="pod", reasons=("Evicted", "TerminationByKubelet"),
        cause="infrastructure", what="The kubelet evicted the pod because its node ran short of a resource",
        why="The program stayed within its limits", source="kubernetes pkg/kubelet/eviction/helpers.go",
    ),
    Row(
        id="kubelet-rejection", tier=2, kind="pod",
        reasons=(
            "OutOf.+", "UnexpectedAdmissionError", "NodeAffinity", "NodePorts", "TaintToleration",
            "TopologyAffinityError", "SMTAlignmentError", "InvalidNodeInfo", "UnknownReason", "AppArmor",
            "UnexpectedPredicateFailureType",
            "PodOSSelectorNodeLabelDoesNotMatch", "PodOSNotSupported", "SupplementalGroupsPolicyNotSupported",
            "PodLevelResourcesNotSupported", "NodeHasDiskPressure", "NodeName",
        ),
        cause="infrastructure", exclude=True, what="The kubelet refused the pod after it was bound",
        why="The node has less than it reported: a GPU fell off the bus, a device plugin restarted, or "
        "labels changed",
        source=_KUBELET,
    ),
    Row(
        id="pod-deadline", tier=2, kind="pod", reasons=("DeadlineExceeded",), cause="user",
        what="activeDeadlineSeconds of the pod template passed", why="The job set this limit",
        source="kubernetes pkg/kubelet/active_deadline.go",
    ),
    Row(
        id="pod-deleted", tier=2, kind="pod", reasons=("Deleted", "Gone"), cause="infrastructure",
        what="The pod was deleted", why="The program did not delete it",
    ),
    Row(
        id="out-of-memory", tier=3, kind="container", reasons=("OOMKilled",), cause="user",
        what="A container went over its memory limit (OOMKilled)",
        why="The program needs more memory than it requested",
        source="https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/",
    ),
    Row(
        id="image-not-there", tier=3, kind="waiting", reasons=("ErrImagePull", "ImagePullBackOff"), cause="user",
        says=r"not found|manifest unknown|does not exist|unauthorized|denied|authentication required|no match for",
        what="The registry does not have the image, or refuses to give it to the pod",
        why="The job names the image and its pull secret", source=_IMAGES,
    ),
    Row(
        id="image-name", tier=3, kind="waiting", cause="user",
        reasons=("InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed"),
        what="The image's name is invalid, or a policy forbids the image",
        why="The job names the image",
        source=_IMAGES,
    ),
    Row(
        id="image-pull", tier=3, kind="waiting", cause="infrastructure",
        reasons=("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"),
        what="An image could not be pulled for ten minutes", why="The registry or the network to it has a problem",
        source=_IMAGES,
    ),
    Row(
        id="container-config", tier=3, kind="waiting", cause="user",
        reasons=("CreateContainerConfigError", "RunContainerError", "CreateContainerError"),
        what="The container cannot be created because a Secret, ConfigMap or path is missing",
        why="The job's template names an object or path that does not exist", source=_CODES,
    ),
    Row(
        id="never-started", tier=3, kind="waiting", cause="infrastructure", exclude=True,
        what="A bound pod's container did not start within ten minutes", why="The node cannot start containers",
        source="kubernetes pkg/kubelet/container/sync_result.go",
    ),
    Row(
        id="container-start", tier=3, kind="container", cause="user",
        reasons=("StartError", "ContainerCannotRun"),
        what="The container runtime could not start the container, for example because python3 is not in the image",
        why="The job names the image", source=_CODES,
    ),
    Row(
        id="container-lost", tier=3, kind="container", reasons=("ContainerStatusUnknown", "Unknown"),
        cause="infrastructure", exclude=True, what="The kubelet does not know how the container ended",
        why="The node lost the container, for example in a restart",
        source="kubernetes pkg/kubelet/container/runtime.go; containerd internal/cri/server/helpers.go",
    ),
    Row(
        id="supervisor-killed", tier=3, kind="container", signals=(9,), cause="unknown",
        what="The worker's process 1 was killed with SIGKILL, and not for memory",
        why="A program cannot kill process 1 of its own container; an administrator or a broken node can",
        source="pid_namespaces(7)",
    ),
    Row(
        id="setup-failed", tier=3, kind="container", codes=(2, 126, 127), cause="user",
        what="The worker ended before it could join (exit code 2, 126 or 127)",
        why="The image does not contain python3, or the code could not be downloaded or unpacked",
    ),
    Row(
        id="container-exit", tier=3, kind="container", cause="unknown",
        what="The worker's process 1 ended by itself",
        why="Process 1 should run longer than the ranks, and there is no evidence why it ended",
    ),
    Row(
        id="lost-contact", tier=4, kind="contact", reasons=("Lost",), cause="infrastructure", exclude=True,
        what="The supervisor stopped answering, and its node does not renew its Lease",
        why="The program cannot stop its node's network",
    ),
    Row(
        id="silent", tier=4, kind="contact", cause="unknown",
        what="The supervisor stopped answering or never joined, although its node renews its Lease",
        why="The cause may be the network between the supervisor and the controller, or a program that "
        "overloads the machine",
        source="https://kubernetes.io/docs/concepts/architecture/leases/#node-heartbeats",
    ),
    Row(
        id="cannot-start", tier=4, kind="start", reasons=("Everywhere",), cause="user", replace=False,
        what="No node of the job can execute the launcher or the program, or each ended with exit code 126 or 127 "
        "before its first step",
        why="The image does not contain it. Another attempt would end in the same way, so the job fails at once",
        source="execve(2); POSIX.1-2024, Shell, 2.8.2 Exit Status for Commands",
    ),
    Row(
        id="cannot-write", tier=4, kind="start", reasons=("NotWritable",), cause="user", replace=False,
        what="No node of the job can write to its checkpoint folder, or its object store is not usable or not safe for "
        "checkpoints, and the job has not saved a checkpoint yet",
        why="The job names the folder or the store. The program would lose all its steps at its first save, so the "
        "job fails before it starts",
    ),
    Row(
        id="cannot-read-data", tier=4, kind="start", reasons=("DataNotReadable",), cause="user", replace=False,
        what="The object store of the training data does not exist, holds no objects, or refuses to list them, and the "
        "job has not saved a checkpoint yet",
        why="The job names the data. Every attempt would end in the same way, so the job fails before it starts",
    ),
    Row(
        id="cannot-write-here", tier=4, kind="start", reasons=("NotWritableHere",), cause="infrastructure",
        exclude=True,
        what="Before an attempt starts, some nodes of the job cannot write to its checkpoint folder, and others can",
        why="All nodes have the same mounts, so a disk or a mount of this node is at fault",
    ),
    Row(
        id="cannot-start-here", tier=4, kind="start", cause="infrastructure", exclude=True,
        what="On some nodes of the job, but not on all, the launcher or the program cannot be executed or ends "
        "with exit code 126 or 127 before the first step. If it happens on another node in the next attempt, the "
        "cause is the rank",
        why="All nodes run the same image, so a disk or a mount of this node is at fault; if the failure follows "
        "the rank to another node, the first node was not at fault",
        source="execve(2); POSIX.1-2024, Shell, 2.8.2 Exit Status for Commands",
    ),
    Row(
        id="checkpoint-gone-here", tier=4, kind="checkpoint", reasons=("Here",), cause="infrastructure", replace=False,
        what="A rank failed before its attempt reported anything. Its node reports that the checkpoint of the attempt "
        "is gone, but an older one is there. Before the attempt every node had seen it",
        why="The checkpoint was deleted on this node before the program could read it. The next attempt starts from "
        "the newest checkpoint that every node sees",
    ),
    Row(
        id="checkpoints-lost-here", tier=4, kind="checkpoint", reasons=("NoneHere",), cause="infrastructure",
        exclude=True,
        what="The same, but the node sees none of the job's checkpoints",
        why="Other nodes see them, so a disk or a mount of this node is at fault",
    ),
    Row(
        id="checkpoint-gone", tier=4, kind="checkpoint", cause="infrastructure", replace=False,
        what="A rank failed before its attempt reported anything, and every node reports that the checkpoint of the "
        "attempt is gone; of the faults that `status.faults` holds, at most 3 are charged by this rule",
        why="The checkpoint existed just before the attempt began, so it was deleted before the program "
        "could read it",
    ),
    Row(
        id="rank-out-of-memory", tier=5, kind="rank", reasons=("OutOfMemory",), cause="user", replace=False,
        what="The kernel killed the first failing rank because the pod's memory limit was reached",
        why="The program needs more memory than it requested", source="cgroup v2, memory.events",
    ),
    Row(
        id="rank-hardware", tier=5, kind="rank", cause="infrastructure", exclude=True,
        says=r"uncorrectable (NVLink|ECC)|ECC error|GPU has fallen off the bus|cudaErrorHardwareStackError|Xid \d+",
        what="The first failing rank's last lines name broken hardware",
        why="CUDA reports such faults to the program first",
        source="CUDA runtime API, cudaErrorECCUncorrectable; NVIDIA Xid catalogue",
    ),
    Row(
        id="rank-lost-peer", tier=6, kind="rank", says=_LOST_PEER, cause="unknown", replace=False,
        what="A rank ended because it lost its connection to another rank, and no other failed rank is known",
        why="The failure is a consequence of another one, which the controller does not know",
        source="kubernetes-sigs/kueue#11789: failures that are consequences of one lost node use up the retry budget",
    ),
    Row(
        id="rank-terminated", tier=6, kind="rank", signals=(15, 2, 1), cause="unknown", replace=False,
        what="A rank received a signal to end (SIGTERM, SIGINT, SIGHUP)",
        why="MPI ends the other ranks like this after the first one failed", source="mpiexec(1)",
    ),
    Row(
        id="rank-killed", tier=5, kind="rank", signals=(9,), cause="unknown", replace=False,
        what="The first failing rank was killed with SIGKILL, and there is no evidence why",
        why="A user, the kernel or a watchdog may have killed it",
    ),
    Row(
        id="rank-crashed", tier=5, kind="rank", signals=(4, 5, 6, 7, 8, 11, 31), cause="user", replace=False,
        what="The first failing rank crashed (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS)",
        why="The program caused it, unless evidence of broken hardware arrives within 120 s", source="signal(7)",
    ),
    Row(
        id="rank-failed", tier=5, kind="rank", cause="user", replace=False,
        what="The first failing rank exited with a code other than 0",
        why="The program caused it, unless evidence of broken hardware arrives within 120 s",
    ),
    Row(
        id="could-not-start", tier=5, kind="launcher", reasons=("CouldNotStart",), cause="user", replace=False,
        what="The launcher or the command could not be started",
        why="The image does not contain mpiexec, torchrun or the program",
        source="muster.trainingjobs.supervisor",
    ),
    Row(
        id="stalled-again", tier=8, kind="stall", reasons=("Again",), cause="user", replace=False,
        what="The job stalled after the same step as in the attempt before (`spec.stall.action: Restart`)",
        why="If a program stops twice at the same step, the program itself is the cause",
    ),
    Row(
        id="stalled", tier=8, kind="stall", cause="unknown", replace=False,
        what="The attempt reported no step for longer than `spec.stall` allows (`spec.stall.action: Restart`)",
        why="A deadlock in the program, a network that hangs and a storage that hangs look the same",
    ),
    Row(
        id="launcher-failed", tier=7, kind="launcher", cause="unknown", replace=False,
        what="mpiexec failed and no rank is known to have failed",
        why="mpiexec could not reach a node, or the rank that failed was lost with its node",
    ),
)  # fmt: skip

STALLED: Final = ("stalled", "stalled-again")

UNEXPLAINED: Final = Row(
    id="unexplained",
    tier=9,
    kind="any",
    cause="unknown",
    what="No other rule applies",
    why="The cause is unknown",
    replace=True,
)
