"""Configuration of the network agent: key `network.yaml` of the ConfigMap `muster-network`.

Each part has a section, whose struct is in the part's own folder. A part without a section, or with `enabled: false`,
does not run. Sections are strict: an unknown field is an error that names its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import yaml

from muster.api.configtext import ConfigText
from muster.network.checks import config as checks
from muster.network.checks.config import ChecksConfig
from muster.network.cni import config as pods
from muster.network.cni.config import PodsConfig
from muster.network.shaping import config as shaping
from muster.network.shaping.config import ShapingConfig
from muster.network.traffic import config as traffic
from muster.network.traffic.classes import ClassError
from muster.network.traffic.config import TrafficConfig
from muster.network.tuning import config as tuning
from muster.network.tuning.config import TuningConfig
from muster.network.uplink import config as uplink
from muster.network.uplink.config import UplinkConfig

CONFIG_MAP = "muster-network"
CONFIG_KEY = "network.yaml"
PAGE = "docs/network.md"


class NetworkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The sections of all parts. Each has defaults, and is off by default."""

    pods: PodsConfig = PodsConfig()
    traffic: TrafficConfig = TrafficConfig()
    uplink: UplinkConfig = msgspec.field(default_factory=UplinkConfig)
    shaping: ShapingConfig = ShapingConfig()
    checks: ChecksConfig = ChecksConfig()
    tuning: TuningConfig = TuningConfig()


def parse_config(text: str | yaml.Node, file: str = "") -> NetworkConfig:
    """Parse the text, or a YAML node of it. Raises ConfigTextError with every problem."""
    read = ConfigText(text, NetworkConfig, PAGE, file)
    read.check(_problems(read.value))
    return read.value


def _problems(config: NetworkConfig) -> Iterator[tuple[str, str]]:
    """Yield the problems of all sections: each section's own `problems(section)`, below the section's path."""
    yield from _below("pods", pods.problems(config.pods))
    yield from _below("traffic", traffic.problems(config.traffic))
    yield from _below("uplink", uplink.problems(config.uplink))
    yield from _below("shaping", shaping.problems(config.shaping))
    yield from _below("checks", checks.problems(config.checks))
    yield from _below("tuning", tuning.problems(config.tuning))
    if config.shaping.enabled and not config.uplink.enabled:
        yield "$.shaping.enabled", "nodes would stay at their static share; set uplink.enabled: true too"
    if config.shaping.enabled or config.uplink.enabled:
        yield from _unknown_class(config)


def _unknown_class(config: NetworkConfig) -> Iterator[tuple[str, str]]:
    try:
        names = traffic.classes_of(config.traffic).names
    except ClassError:
        return  # reported below traffic
    if config.uplink.cls not in names:
        yield "$.uplink.class", f"{config.uplink.cls!r} is not a class of traffic; write one of {', '.join(names)}"


def _below(section: str, found: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield problems of a section with paths from the top."""
    for path, what in found:
        yield f"$.{section}{path.removeprefix('$')}", what
