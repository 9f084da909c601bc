"""Memory of the machines on which API servers run."""

from __future__ import annotations

from typing import Final

import msgspec

from muster.doctor.rule import Context
from muster.kube.objects.quantity import parse_quantity

_WHAT: Final = "memory of the API servers' machines"


class Hosts(msgspec.Struct, frozen=True):
    """The smallest machine with an API server: its name, and its memory in bytes."""

    node: str
    memory_bytes: float


async def collect_hosts(context: Context) -> Hosts | None:
    """Read the nodes of the API servers' pods. A managed control plane has none in the cluster."""
    reader = context.reader
    pods = await reader.list(
        "/api/v1/namespaces/kube-system/pods",
        what=_WHAT,
        limit=9,
        params={"labelSelector": "component=kube-apiserver"},
    )
    if pods is None:
        return None
    found: list[Hosts] = []
    for name in sorted({pod["spec"].get("nodeName", "") for pod in pods.items} - {""}):
        node = await reader.get(f"/api/v1/nodes/{name}", what=_WHAT, right="get nodes")
        memory = (((node or {}).get("status") or {}).get("capacity") or {}).get("memory")
        if memory:
            found.append(Hosts(name, float(parse_quantity(memory))))
    if not found:
        reader.note(_WHAT, "the API servers are not pods of this cluster")
    return min(found, key=lambda host: host.memory_bytes, default=None)
