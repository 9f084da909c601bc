"""Objects of a fresh cluster: its namespaces and system priority classes."""

from __future__ import annotations

from muster.embedded.apiserver.core import ApiCore
from muster.embedded.apiserver.kinds.cluster import SYSTEM_CLASSES
from muster.embedded.objects import Obj

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


def bootstrap(core: ApiCore, ca: str) -> None:
    """Create the missing objects."""
    core.root_ca = ca
    for name in NAMESPACES:
        _ensure(core, "namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for item in list(core.store.define("namespaces").items.values()):
        core.furnish(item.name)
    for name, value in SYSTEM_CLASSES.items():
        _ensure(
            core,
            "priorityclasses.scheduling.k8s.io",
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
                "description": "Used for system critical pods that must "
                + (
                    "not be moved from their current node."
                    if "node" in name
                    else "run in the cluster, but can be moved to another node if necessary."
                ),
            },
        )


def _ensure(core: ApiCore, storage: str, obj: Obj) -> None:
    resource = core.registry.of_storage(storage)
    if resource is not None and obj["metadata"]["name"] not in core.store.define(storage).items:
        core.create(resource, "", obj)
