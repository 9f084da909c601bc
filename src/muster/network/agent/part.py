"""Parts of the network agent: what each gets, offers, and may do.

A part is a module `network/FOLDER/part.py` with a function `make_part(setup, config)`. `config` is the part's section
of `muster.network.config`. A part runs only if its section turns it on: the program imports no other parts. The table
of all parts, with the kernel capabilities of each, is in `parts.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.progress import Progress
from muster.network.config import NetworkConfig
from muster.network.localpods.pod import LocalPods


@dataclass(frozen=True, kw_only=True)
class HostPaths:
    """Folders of the node, as this process sees them.

    Attributes:
        proc: its /proc.
        cgroup: its /sys/fs/cgroup.
        sys: its /sys.
        state: what must survive a reboot. Each part uses a folder of its own in it.
        run: sockets and what ends with a boot. Each part uses names of its own in it.
    """

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    sys: Path = Path("/sys")
    state: Path = Path("/var/lib/muster/network")
    run: Path = Path("/run/muster/network")


@dataclass(frozen=True, kw_only=True)
class PartSetup:
    """What the program gives to each part.

    Attributes:
        node: name of the node.
        node_uid: returns the UID of the Node object; "" while it is unknown.
        paths: folders of the node.
        pods: the pods of this node.
        client: the API server, perhaps through the read cache. It may be away: a part must work without it.
        namespace: Muster's own, where its ConfigMaps and Services are.
        progress: each loop of a part calls `expect` once and `mark` in each pass. Names begin with the part's name.
        registry: receives metrics. Their names begin with `muster_network_`.
        config: all sections, for what a part needs of another one's.
        publish: adds a page: `publish("traffic", render)` serves what `render()` returns as JSON at `/v1/traffic`.
    """

    node: str
    node_uid: Callable[[], str]
    paths: HostPaths
    pods: LocalPods
    client: Client
    namespace: str
    progress: Progress
    registry: CollectorRegistry
    config: NetworkConfig = field(default_factory=NetworkConfig)
    publish: Callable[[str, Callable[[], bytes]], None] = field(default=lambda name, render: None)


class Part(Protocol):
    """A part of the agent."""

    async def run(self) -> None:
        """Work until it is cancelled. What it set up in the kernel stays, so that a restart changes nothing.

        An error ends the process, which then starts again. So expected errors are handled and counted.
        """

    def remove(self) -> None:
        """Undo all that the part set up on this node: `muster network agent --remove`. May be repeated.

        Raises:
            OSError: something could not be removed.
        """
