"""How the ranks of an attempt find each other: the order of nodes, the master, the remote shells."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from muster.api.names import LABEL_RACK, LABEL_ZONE
from muster.kube.node import Node
from muster.trainingjobs.plan import Host, RunPlan
from muster.trainingjobs.slots import Slot
from muster.trainingjobs.snapshot import JobSnapshot

_PORTS: Final = range(20_000, 32_000)
"""Below the ports Linux gives to outgoing connections (net.ipv4.ip_local_port_range) and above the usual services."""


def run_plan(snapshot: JobSnapshot, slots: Sequence[Slot]) -> RunPlan:
    """The plan of the current attempt; every slot's supervisor must have joined."""
    spec, status = snapshot.job.spec, snapshot.job.status
    hosts = tuple(_host(slot) for slot in rank_order(slots, snapshot.nodes))
    return RunPlan(
        launcher=spec.launcher,
        command=(*spec.command, *spec.args),
        mpi_args=spec.mpi.extra_args if spec.mpi is not None else (),
        remote_shell=spec.mpi.remote_shell if spec.mpi is not None else "supervisor",
        ranks_per_node=spec.ranks,
        hosts=hosts,
        master_port=master_port(snapshot.job.uid, status.attempt),
        checkpoint=status.last_checkpoint,
    )


def rank_order(slots: Sequence[Slot], nodes: Mapping[str, Node]) -> list[Slot]:
    """Slots in order of node ranks: neighbours in the network are neighbours in rank, slot numbers settle the rest."""

    def place(slot: Slot) -> tuple[str, str, int]:
        node = nodes.get(slot.node)
        labels = node.metadata.labels if node is not None else {}
        return labels.get(LABEL_ZONE, ""), labels.get(LABEL_RACK, ""), slot.number

    return sorted(slots, key=place)


def master_port(uid: str, attempt: int) -> int:
    """The port of MASTER_PORT: the same for a restarted controller, another one for each attempt."""
    return _PORTS[zlib.crc32(f"{uid}/{attempt}".encode()) % len(_PORTS)]


def _host(slot: Slot) -> Host:
    assert slot.pod is not None
    assert slot.member is not None, "every supervisor has joined"
    return Host(slot.number, slot.pod.uid, slot.member.address, slot.member.shell_port)
