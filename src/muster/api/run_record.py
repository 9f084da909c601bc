"""Records of facts that an active TrainingJob depends on, in its status."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from muster.kube.objects.struct import KubeStruct

RANK_RANGES_MAX = 160
"""Most ranges of slots in a record: about 4 KB. The whole status may have 16 KB."""

SWAPS_MAX = 64
"""Most exchanges of partners in a record: about 1 KB."""


class SlotRange(KubeStruct):
    """Consecutive slots whose node ranks are consecutive too."""

    first: Annotated[int, Meta(description="The first slot of the range.")]
    count: Annotated[int, Meta(description="Number of slots in the range.")] = 1


class HandedCheckpoint(KubeStruct):
    """The checkpoint from which an attempt began.

    If its ranks find that it is damaged, the controller replaces it with the next older one.
    """

    path: Annotated[str, Meta(description="Path or URL of the checkpoint.")]
    step: Annotated[int, Meta(description="The step of the checkpoint.")] = 0
    seen_everywhere: Annotated[
        bool, Meta(description="Whether every node of the attempt saw the checkpoint before the attempt began.")
    ] = False
    manifest: Annotated[str, Meta(description="SHA-256 of the checkpoint's manifest, in hex; empty without one.")] = ""
    restored: Annotated[
        datetime | None,
        Meta(
            description="When every node of the attempt had read and verified the checkpoint. Absent before, and for "
            "programs that do not report it."
        ),
    ] = None


class CopyPartners(KubeStruct):
    """For each node, the partner that keeps copies of its checkpoint shards, as an offset of node ranks."""

    offset: Annotated[int, Meta(description="The partner of node rank r is the node rank (r + offset) mod nodes.")]
    swaps: Annotated[
        tuple[int, ...],
        Meta(
            max_length=2 * SWAPS_MAX,
            description="Pairs of node ranks that exchange their partners, one after the other.",
        ),
    ] = ()
    outside: Annotated[
        Literal["Zone", "Rack", "Node"],
        Meta(description="What every node's partner is outside of: the node's zone, its rack, or only the node."),
    ] = "Node"
    same_domain: Annotated[
        int, Meta(description="Number of nodes whose partner is in a domain that it should be outside of.")
    ] = 0


class RunRecord(KubeStruct):
    """Facts that an attempt depends on. The controller writes them once, together with phase Running."""

    attempt: Annotated[int, Meta(description="The attempt that this record describes.")]
    launcher: Annotated[Literal["mpi", "torchrun", "none"], Meta(description="The launcher of its ranks.")] = "mpi"
    launcher_slot: Annotated[
        int | None,
        Meta(
            description="Slot of node rank 0, where mpiexec runs. Absent if the controller that wrote the record did "
            "not know it."
        ),
    ] = None
    nodes: Annotated[
        int, Meta(description="Number of nodes that take part. The world size is this number times ranksPerNode.")
    ] = 0
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
    checkpoint: Annotated[HandedCheckpoint | None, Meta(description="The checkpoint from which the attempt began.")] = (
        None
    )
    partners: Annotated[
        CopyPartners | None,
        Meta(description="Partners for copies of checkpoint shards. Absent if fewer than two nodes have a cache."),
    ] = None

    def slots_by_rank(self) -> list[int]:
        """The slots in the order of their node ranks; empty if that is the order of the slot numbers.

        If a range has more slots than there are nodes (after a manual edit of the status), it is cut.
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
        dict[str, str], Meta(description="Fields whose values are too large to store here, and digests of the values.")
    ] = field(default_factory=dict)
