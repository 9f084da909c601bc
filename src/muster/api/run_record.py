"""Facts that an active TrainingJob depends on, as its status keeps them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from muster.kube.objects.struct import KubeStruct

RANK_RANGES_MAX = 160
"""Ranges of slots in a record: about 4 KB of the 16 KB that a status may have."""


class SlotRange(KubeStruct):
    """Consecutive slots whose node ranks are consecutive too."""

    first: Annotated[int, Meta(description="The first slot of the range.")]
    count: Annotated[int, Meta(description="How many slots it has.")] = 1


class HandedCheckpoint(KubeStruct):
    """The checkpoint that an attempt began from."""

    path: Annotated[str, Meta(description="Where it lies.")]
    step: Annotated[int, Meta(description="The step it holds.")] = 0


class RunRecord(KubeStruct):
    """What an attempt depends on. It is written once, together with phase Running, and only read from then on."""

    attempt: Annotated[int, Meta(description="The attempt that this record describes.")]
    launcher: Annotated[Literal["mpi", "torchrun", "none"], Meta(description="How its ranks were started.")] = "mpi"
    launcher_slot: Annotated[
        int | None,
        Meta(description="Slot of node rank 0, where mpiexec runs. Absent where a controller could not know it."),
    ] = None
    nodes: Annotated[int, Meta(description="Nodes that take part; times ranksPerNode it is the world size.")] = 0
    ranks_per_node: Annotated[int, Meta(description="Ranks on each node.")] = 1
    rank_order: Annotated[
        tuple[SlotRange, ...],
        Meta(
            max_length=RANK_RANGES_MAX,
            description="Slots in the order of their node ranks. Empty: the order of the slot numbers.",
        ),
    ] = ()
    pods: Annotated[str, Meta(description="Digest of the UIDs of its pods, in the order of their node ranks.")] = ""
    master_address: Annotated[str, Meta(description="MASTER_ADDR of its ranks.")] = ""
    master_port: Annotated[int, Meta(description="MASTER_PORT of its ranks.")] = 0
    checkpoint: Annotated[HandedCheckpoint | None, Meta(description="The checkpoint it began from.")] = None

    def slots_by_rank(self) -> list[int]:
        """The slots in the order of their node ranks; empty if that is the order of the slot numbers.

        A range of more slots than there are nodes, as after an edit of the status by hand, is cut.
        """
        most = self.nodes + 1
        order = (range(each.first, each.first + max(0, min(each.count, most))) for each in self.rank_order)
        return [slot for each in order for slot in each]


class FixedSpec(KubeStruct):
    """The spec of an active job as it was when the job became active; without the fields that may change."""

    values: Annotated[dict[str, Any], Meta(description="Fields of the spec and their values.")] = field(
        default_factory=dict
    )
    too_large: Annotated[
        dict[str, str], Meta(description="Fields whose values have no room here, and digests of the values.")
    ] = field(default_factory=dict)
