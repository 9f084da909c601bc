"""Configuration of balloons: key `balloons.yaml` of the ConfigMap `muster-balloons`, with pools and numbers.

image: registry.example/pause:3.10   # optional; default: Muster's own image, which waits
pools:
- name: h100                         # a DNS label; the Deployment is muster-balloon-h100
  nodeSelector: {muster.dev/pool: h100}
  replicas: 40                       # at most; never more than nodes that can take one now
  resources: {nvidia.com/gpu: 8}     # of each: enough that the node does not look idle
  tolerations:                       # for permanent taints of the pool's nodes
  - {key: muster.dev/pool, operator: Equal, value: h100, effect: NoSchedule}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Annotated

import msgspec

from muster.api.configschema import Quantities, Selector, Whole, schema
from muster.api.configtext import ConfigText
from muster.fleet.podtext import TolerationText, wrong_quantity, wrong_toleration
from muster.kube.objects.affinity import Toleration
from muster.kube.objects.resources import amount

CONFIG_MAP = "muster-balloons"
CONFIG_KEY = "balloons.yaml"
PAGE = "docs/fleet.md"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


class BalloonPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of balloons on nodes of one kind.

    Attributes:
        name: name of the pool, a DNS label.
        node_selector: labels of its nodes.
        replicas: the most balloons.
        resources: quantities for each balloon.
        tolerations: for permanent taints of the pool's nodes.
        image: the balloons' image; "" for Muster's own.
    """

    name: str
    node_selector: Mapping[str, str]
    replicas: int
    resources: Mapping[str, str]
    tolerations: tuple[Toleration, ...] = ()
    image: str = ""

    @property
    def request(self) -> dict[str, int]:
        """The resources of each balloon: CPU in millicores, others in units."""
        return {name: amount(name, value) for name, value in self.resources.items()}


class _Pool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    name: Annotated[str, schema(pattern=f"^{_NAME.pattern}$")]
    node_selector: Selector
    replicas: Whole
    resources: Quantities
    tolerations: list[Annotated[TolerationText, schema(required=["key"])]] = msgspec.field(default_factory=list)


class BalloonsText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of the configuration."""

    pools: list[_Pool] = msgspec.field(default_factory=list)
    image: str = ""


def parse_config(text: str) -> tuple[BalloonPool, ...]:
    """Return the pools by name. Raises ConfigTextError with every problem."""
    read = ConfigText(text, BalloonsText, PAGE)
    read.check(_problems(read.value))
    pools = [
        BalloonPool(
            name=pool.name,
            node_selector=pool.node_selector,
            replicas=pool.replicas,
            resources={name: str(value) for name, value in pool.resources.items()},
            tolerations=tuple(each.toleration() for each in pool.tolerations),
            image=read.value.image,
        )
        for pool in read.value.pools
    ]
    return tuple(sorted(pools, key=lambda pool: pool.name))


def _problems(file: BalloonsText) -> Iterator[tuple[str, str]]:
    for number, pool in enumerate(file.pools):
        at = f"$.pools[{number}]"
        if not _NAME.fullmatch(pool.name):
            yield f"{at}.name", f"{pool.name!r} is not a DNS label of 40 characters at most; use a-z, 0-9 and dashes"
        if any(pool.name == other.name for other in file.pools[:number]):
            yield f"{at}.name", f"another pool is called {pool.name}; give each a name of its own"
        if not pool.node_selector:
            yield f"{at}.nodeSelector", "names no label; name at least one: an empty one would be every node"
        if pool.replicas < 0:
            yield f"{at}.replicas", f"{pool.replicas} is negative; write 0 or more"
        if not pool.resources:
            yield f"{at}.resources", "is empty; write what a balloon requests, such as nvidia.com/gpu: 8"
        for name, value in pool.resources.items():
            yield from ((f"{at}.resources.{name}", what) for what in wrong_quantity(value))
        for index, toleration in enumerate(pool.tolerations):
            yield from ((f"{at}.tolerations[{index}]", what) for what in wrong_toleration(toleration))
    for (one, first), (two, second) in combinations(enumerate(file.pools), 2):
        shared = first.node_selector.keys() & second.node_selector.keys()
        if all(first.node_selector[key] == second.node_selector[key] for key in shared):
            yield (
                f"$.pools[{two}].nodeSelector",
                f"may select a node of pool {file.pools[one].name} too, where only one balloon fits; add to both a "
                "label whose values differ",
            )
