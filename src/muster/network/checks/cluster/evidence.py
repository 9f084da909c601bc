"""What is known about cluster DNS and its clients. The rules read it without I/O."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Server(msgspec.Struct, frozen=True):
    """A ready pod of cluster DNS on a node that is not lost.

    Attributes:
        pod: its name.
        node: the node that it runs on.
        rack, zone: of the node; "" if its labels do not say.
    """

    pod: str
    node: str
    rack: str = ""
    zone: str = ""


class Responses(msgspec.Struct, frozen=True):
    """What the DNS servers have answered since they started, summed.

    Attributes:
        total: all answers.
        absent: answers that the name does not exist (NXDOMAIN).
        servers: how many servers were read.
    """

    total: int
    absent: int
    servers: int


class Clients(msgspec.Struct, frozen=True):
    """Pods that use cluster DNS, of a sample.

    Attributes:
        sampled: pods in the sample that use cluster DNS.
        default_ndots: those that search all domains for names with fewer than five dots.
        external: of these, pods whose command, arguments or environment name a host outside of the cluster, by
            `namespace/owner`.
    """

    sampled: int
    default_ndots: int
    external: Mapping[str, int] = {}


class DnsEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What was read about cluster DNS. What could not be read is None.

    Attributes:
        servers: ready pods, one each.
        pods: number of pods, also those that are not ready.
        service: name of the Service if it has no pods; "" otherwise.
        deployment: name of their Deployment in kube-system.
        labels: labels by which the Deployment selects them.
        nodes: number of nodes; 0 if not known.
        planned_nodes: number of nodes to plan for.
        other_rack, other_zone: whether there is a node in another rack or zone than the first server's.
        node_cache: whether a DNS cache runs on each node.
        responses: None if no server's metrics could be read.
        clients: None if pods could not be listed.
    """

    servers: tuple[Server, ...]
    pods: int = 0
    service: str = ""
    deployment: str = "coredns"
    labels: Mapping[str, str] = {}
    nodes: int = 0
    planned_nodes: int = 0
    other_rack: bool = False
    other_zone: bool = False
    node_cache: bool = False
    responses: Responses | None = None
    clients: Clients | None = None
