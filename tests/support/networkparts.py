"""What the network agent gives to a part, without an API server and without pods."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.progress import Progress
from muster.network.agent.part import HostPaths, PartSetup
from muster.network.localpods.pod import LocalPods


class NoPods(LocalPods):
    """For parts that look at no pods."""


def part_setup(paths: HostPaths, publish: Callable[[str, Callable[[], bytes]], None]) -> PartSetup:
    """Return the setup of a part of node `n1`.

    Args:
        paths: folders of the node.
        publish: receives the page.
    """
    return PartSetup(
        node="n1",
        node_uid=lambda: "uid",
        paths=paths,
        pods=NoPods(),  # type: ignore[abstract]
        client=Client(ClusterConfig(server="https://127.0.0.1:1")),
        namespace="muster-system",
        progress=Progress(),
        registry=CollectorRegistry(),
        publish=publish,
    )
