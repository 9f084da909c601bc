"""Placement: the node of each slot of a gang. The scheduler writes it by compare-and-swap before the first bind."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from muster.api.names import GROUP, VERSION
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct

PlacementPhase = Literal["Open", "Bound", "Preempting", "Released"]
LeavingReason = Literal["Preempted", "Yielded", "NoSpare", "Backfilled", "Moved"]


class PlacedSlot(KubeStruct):
    """One slot and the node that holds it."""

    slot: Annotated[int, Meta(ge=0, description="The slot.")]
    node: Annotated[str, Meta(min_length=1, description="Name of the node.")]
    node_uid: Annotated[str, Meta(description="UID of the node; a recreated node of the same name has another.")] = (
        field(default="", name="nodeUID")
    )


class GivenUpSlot(KubeStruct):
    """A slot that the gang runs without, because no spare node was free for it (noSpare: Shrink)."""

    slot: Annotated[int, Meta(ge=0, description="The slot.")]
    attempt: Annotated[
        int,
        Meta(
            ge=0,
            description="The job's attempt (not `spec.attempt`) of the pod that was given up. If the slot gets a pod "
            "of a later attempt, that pod belongs to the gang again.",
        ),
    ] = 0


class Backfill(KubeStruct):
    """The gang whose reserved nodes a backfilled gang uses until they are needed."""

    gang: Annotated[str, Meta(min_length=1, description="`namespace/name` of the gang that waits for these nodes.")]
    gang_uid: Annotated[str, Meta(description="UID of the object that owns that gang.")] = field(
        default="", name="gangUID"
    )
    min_run_seconds: (
        Annotated[
            float,
            Meta(
                ge=0,
                description="backfillMinRunSeconds when the gang started. It runs at least this long before it is "
                "asked to leave. Absent in Placements of earlier versions.",
            ),
        ]
        | None
    ) = None
    delay_seconds: Annotated[float, Meta(ge=0, description="backfillDelaySeconds when the gang started.")] | None = None


class PlacementSpec(KubeStruct):
    """The plan for one gang."""

    gang: Annotated[
        str,
        Meta(
            min_length=1,
            description="Name of the gang: the name of its TrainingJob, or `kind.name` for other workloads.",
        ),
    ]
    gang_uid: Annotated[str, Meta(description="UID of the object that owns the gang.")] = field(name="gangUID")
    size: Annotated[
        int, Meta(ge=1, description="Number of members. In an elastic gang, pods that may join later do not count.")
    ]
    attempt: Annotated[int, Meta(ge=0, description="Revision of the plan; increases by one at each change.")] = 0
    slots: Annotated[tuple[PlacedSlot, ...], Meta(description="The node of each placed slot, in order of slots.")] = ()
    given_up: Annotated[
        tuple[GivenUpSlot, ...],
        Meta(
            description="Slots without which the gang continues. If there are free nodes later, the scheduler places "
            "pods of these slots again."
        ),
    ] = ()
    bind_deadline: Annotated[
        datetime | None,
        Meta(
            description="If not all pods are bound by this time, the scheduler either binds the others or releases the "
            "gang: it deletes the bound pods, and places the gang again."
        ),
    ] = None
    preempting: Annotated[
        bool,
        Meta(
            description="True while the scheduler preempts other gangs on these nodes. It does not bind pods of this "
            "gang until those gangs have left."
        ),
    ] = False
    backfill: Annotated[
        Backfill | None,
        Meta(
            description="Set if the gang started on nodes that are reserved for a gang before it in the queue. When "
            "that gang can start, this one is asked to save a checkpoint and to leave."
        ),
    ] = None


class PlacementStatus(KubeStruct):
    """The progress of the plan."""

    phase: Annotated[
        PlacementPhase,
        Meta(
            description="Open: the scheduler is binding the pods. Bound: all pods are bound. Preempting: this gang is "
            "being preempted; it must give its nodes back and wait again (not to be confused with `spec.preempting`). "
            "Released: the gang was not bound in time."
        ),
    ] = "Open"
    bound_time: Annotated[datetime | None, Meta(description="When the whole gang was bound.")] = None
    preempting_time: Annotated[datetime | None, Meta(description="When the gang was preempted.")] = None
    reason: Annotated[
        LeavingReason | None,
        Meta(
            description="Why the gang must give its nodes back. Preempted: to a gang that may preempt it. Yielded: "
            "this gang and a gang that comes before it in the queue both lost nodes. No spare node is free, so the "
            "other gang gets the nodes of this one. NoSpare: the gang lost a node, no spare is free, and the job "
            "chose this itself (noSpare: Requeue). Backfilled: the gang for which these nodes are reserved can start. "
            "Moved: the gang fits beside others on partly used nodes, so that a waiting gang gets its whole nodes."
        ),
    ] = None
    message: Annotated[str, Meta(description="The reason as a sentence, with the preempting gang.")] = ""


class Placement(KubeObject, kw_only=True):
    """The node of each slot of a gang."""

    RESOURCE: ClassVar[Resource] = Resource(
        group=GROUP, version=VERSION, plural="placements", kind="Placement", namespaced=True
    )

    spec: PlacementSpec
    status: PlacementStatus = field(default_factory=PlacementStatus)
