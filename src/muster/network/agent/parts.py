"""The table of the agent's parts, and the kernel capabilities that each needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from muster.network.agent import cgroupnamespace
from muster.network.agent.part import Part, PartSetup
from muster.network.config import NetworkConfig
from muster.network.shaping.config import ShapingConfig
from muster.network.traffic.backends.choice import AUTO
from muster.network.traffic.backends.choice import CAPABILITIES as BACKEND_CAPABILITIES
from muster.network.traffic.config import TrafficConfig
from muster.network.traffic.mix import LEGACY, NFTABLES


class Entry(NamedTuple):
    """A part of the agent.

    Attributes:
        section: name of its field in NetworkConfig. The field's struct has `enabled`.
        module: has `make_part(setup, config) -> Part`.
        capabilities: returns those that the part needs with this section, by names as in muster.kube.privilege. The
            chart gives the same ones: a test compares them.
    """

    section: str
    module: str
    capabilities: Callable[[Any], frozenset[str]]


def _traffic(config: TrafficConfig) -> frozenset[str]:
    """What the counters need. DAC_OVERRIDE for the socket of a data cache that runs as another user than root."""
    cache = config.data_cache
    backends = (NFTABLES, LEGACY) if config.backend == AUTO else (config.backend,)
    needed = {each for backend in backends for each in BACKEND_CAPABILITIES[backend]}
    return frozenset(needed | ({"DAC_OVERRIDE"} if cache.socket and not cache.marks else set()))


def start_capabilities(config: NetworkConfig) -> frozenset[str]:
    """Return the capabilities that the program uses at its start only, and then drops."""
    enters = config.traffic.enabled and config.traffic.host_network_pods
    return cgroupnamespace.CAPABILITIES if enters else frozenset()


def _shaping(config: ShapingConfig) -> frozenset[str]:
    """NET_ADMIN for queues and filters, BPF for the programs at control groups."""
    return frozenset({"NET_ADMIN"} | ({"BPF"} if config.policing else set()))


PARTS: Final[tuple[Entry, ...]] = (
    Entry("pods", "muster.network.cni.part", lambda config: frozenset({"NET_ADMIN"})),
    Entry("traffic", "muster.network.traffic.part", _traffic),
    Entry("shaping", "muster.network.shaping.part", _shaping),
    Entry("checks", "muster.network.checks.part", lambda config: frozenset({"NET_ADMIN", "NET_RAW"})),
    Entry("tuning", "muster.network.tuning.part", lambda config: frozenset({"NET_ADMIN"})),
)
"""In the order in which they are made."""


REMOVAL_CAPABILITIES: Final = frozenset({"NET_ADMIN", "NET_RAW", "BPF"})
"""What the removal of all parts needs, whatever they were configured to do. The chart gives the same ones."""


def enabled(config: NetworkConfig) -> list[Entry]:
    """Return the parts that the configuration turns on."""
    return [each for each in PARTS if getattr(config, each.section).enabled]


def capabilities(config: NetworkConfig) -> frozenset[str]:
    """Return the capabilities that these parts need."""
    return frozenset().union(*(each.capabilities(getattr(config, each.section)) for each in enabled(config)))


def make_parts(setup: PartSetup, config: NetworkConfig) -> Iterator[tuple[str, Part]]:
    """Make the parts that the configuration turns on; yields the name and the part."""
    for each in enabled(config):
        yield each.section, importlib.import_module(each.module).make_part(setup, getattr(config, each.section))
