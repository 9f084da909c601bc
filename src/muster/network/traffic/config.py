"""The section `traffic` of the network agent's configuration.

enabled: true
backend: auto                    # or nftables, iptables-legacy, ebpf; auto: what the host's firewall uses
hostNetworkPods: true            # count pods on the host network, and image pulls, by control group; false: as the host
internal: [10.0.0.0/8]           # instead of the private ranges (RFC 1918, 6598, 4193); link-local always is
classes: {object-store: [203.0.113.0/24]}   # lists of prefixes between internal and internet; the longest prefix wins
uplinkInterfaces: [eth0]         # default: those with a default route
periodSeconds: 5                 # between two readings of the counters
pods: false                      # metrics per pod, besides those per job
exporterNames: false             # also the metrics of iptables-exporter
maxSeries: 2000                  # of the metrics of this node; the smallest accounts are summed in one row
keepDays: 7                      # for which jobs without a pod on the node keep their row
maxEndedJobs: 500                # with rows of their own
runtimeCgroup: ""                # of the container runtime, below the root of version 2; default: found by its name
dataCache: {socket: /var/lib/muster-cache/control.sock, marks: true}   # charges the data cache's traffic to jobs
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from muster.api.configschema import Positive, schema
from muster.network.traffic.backends.choice import BackendName
from muster.network.traffic.classes import PRIVATE, ClassError, Classes
from muster.network.traffic.interfaces import LINK_NAME


class DataCacheConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How the agent learns whose bytes the node's data cache moves.

    Attributes:
        socket: its control socket; "" charges its traffic to its own pod.
        marks: it marks its connections per job, so that the kernel counts each job.
    """

    socket: str = ""
    marks: bool = False


class TrafficConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What is counted, and what is shown."""

    enabled: bool = False
    backend: BackendName = "auto"
    host_network_pods: bool = True
    internal: tuple[str, ...] = ()
    classes: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    uplink_interfaces: tuple[str, ...] = ()
    period_s: Annotated[float, schema(minimum=0.2, maximum=60)] = msgspec.field(default=5.0, name="periodSeconds")
    pods: bool = False
    exporter_names: bool = False
    max_series: Positive = 2000
    keep_days: Annotated[float, schema(minimum=0)] = 7.0
    max_ended_jobs: Annotated[int, schema(minimum=0)] = 500
    runtime_cgroup: str = ""
    data_cache: DataCacheConfig = DataCacheConfig()


def problems(config: TrafficConfig) -> Iterator[tuple[str, str]]:
    """Yield (path, what to change) of values that are not possible."""
    if not 0.2 <= config.period_s <= 60:
        yield "$.periodSeconds", f"{config.period_s:g} is not possible; write 0.2 to 60"
    if config.max_series < 1:
        yield "$.maxSeries", f"{config.max_series} is not possible; write 1 or more"
    if not config.keep_days >= 0:
        yield "$.keepDays", f"{config.keep_days:g} is not possible; write 0 or more"
    if config.max_ended_jobs < 0:
        yield "$.maxEndedJobs", f"{config.max_ended_jobs} is not possible; write 0 or more"
    for at, name in enumerate(config.uplink_interfaces):
        if not LINK_NAME.fullmatch(name):
            yield f"$.uplinkInterfaces[{at}]", f"{name!r} is not possible; write the name of a link, such as eth0"
    if config.runtime_cgroup and not _is_below(config.runtime_cgroup):
        yield (
            "$.runtimeCgroup",
            f"{config.runtime_cgroup!r} is not possible; write it as system.slice/containerd.service",
        )
    if config.data_cache.socket and not config.data_cache.socket.startswith("/"):
        yield "$.dataCache.socket", f"{config.data_cache.socket!r} is not possible; write a path that begins with /"
    if config.data_cache.marks and not config.data_cache.socket:
        yield "$.dataCache.marks", "is set without dataCache.socket; write the path of the cache's control socket"
    try:
        classes_of(config)
    except ClassError as error:
        yield "$", str(error)


def _is_below(path: str) -> bool:
    """Whether this is a relative path to something below the folder that it begins in."""
    return all(part not in ("", ".", "..") for part in path.split("/")) and path.isprintable()


def classes_of(config: TrafficConfig) -> Classes:
    """Return the classes. Raises ClassError."""
    return Classes(config.internal or PRIVATE, config.classes)
