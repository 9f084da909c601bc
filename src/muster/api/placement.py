"""Placement: where each slot of a gang goes, written by the scheduler, compare-and-swap, before the first bind."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from muster.api.names import GROUP, VERSION
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct

PlacementPhase = Literal["Open", "Bound", "Preempting", "Released"]
LeavingReason = Literal["Preempted", "Yielded", "NoSpare"]


class PlacedSlot(KubeStruct):
    """One slot and the node that holds it."""

    slot: Annotated[int, Meta(ge=0, description="The slot.")]
    node: Annotated[str, Meta(min_length=1, description="Name of its node.")]
    node_uid: Annotated[str, Meta(description="UID of that node; a recreated node of the same name has another.")] = (
        field(default="", name="nodeUID")
    )


class GivenUpSlot(KubeStruct):
    """A slot that the gang runs without, because no spare node was free for it (noSpare: Shrink)."""

    slot: Annotated[int, Meta(ge=0, description="The slot.")]
    attempt: Annotated[
        int, Meta(ge=0, description="The attempt its pod was made for; a pod of a later one is a member again.")
    ] = 0


class PlacementSpec(KubeStruct):
    """The plan for one gang."""

    gang: Annotated[
        str, Meta(min_length=1, description="Name of the gang: its TrainingJob's, or `kind.name` of others.")
    ]
    gang_uid: Annotated[str, Meta(description="UID of the object the gang belongs to.")] = field(name="gangUID")
    size: Annotated[int, Meta(ge=1, description="Members of the gang, those that may join later not counted.")]
    attempt: Annotated[int, Meta(ge=0, description="Revision of the plan, one more at each change.")] = 0
    slots: Annotated[tuple[PlacedSlot, ...], Meta(description="The node of each placed slot, in order of slots.")] = ()
    given_up: Annotated[
        tuple[GivenUpSlot, ...],
        Meta(description="Slots that the gang does not wait for: their pods join again if there is unclaimed room."),
    ] = ()
    bind_deadline: Annotated[
        datetime | None, Meta(description="A plan not fully bound by then is completed or released.")
    ] = None
    preempting: Annotated[
        bool, Meta(description="Other gangs must leave these nodes first; no pod is bound until they have.")
    ] = False


class PlacementStatus(KubeStruct):
    """How far the plan was carried out."""

    phase: Annotated[
        PlacementPhase,
        Meta(
            description="Open while pods are being bound, then Bound; Preempting when the gang is to give its nodes "
            "back and to wait for others; Released when it was not bound in time."
        ),
    ] = "Open"
    bound_time: Annotated[datetime | None, Meta(description="When the whole gang was bound.")] = None
    preempting_time: Annotated[datetime | None, Meta(description="When the gang was asked to leave.")] = None
    reason: Annotated[
        LeavingReason | None,
        Meta(
            description="Why it is to leave: Preempted for a gang of higher priority, Yielded to an earlier one if "
            "both lost nodes and there is no spare, NoSpare by the job's own policy."
        ),
    ] = None
    message: Annotated[str, Meta(description="The reason as a sentence, with the preempting gang.")] = ""


class Placement(KubeObject, kw_only=True):
    """Where each slot of a gang goes."""

    RESOURCE: ClassVar[Resource] = Resource(
        group=GROUP, version=VERSION, plural="placements", kind="Placement", namespaced=True
    )

    spec: PlacementSpec
    status: PlacementStatus = field(default_factory=PlacementStatus)
