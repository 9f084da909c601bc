"""Configuration of scaling: key `scaling.yaml` of the ConfigMap `muster-scaling`, with pools and their providers.

pools:
- name: h100-spot              # a DNS label
  provider: aws                # aws | external
  group: asg-h100-spot         # the provider's name for the pool
  options: {region: us-east-1} # more settings of the provider
  min: 0                       # nodes
  max: 64
  price: 31.2                  # per node and hour; the cheapest pool that serves a gang is used first
  idleSeconds: 600             # a node that is idle for this long is deleted
  coolDownSeconds: 300         # no node is deleted for this long after growing
  joinTimeoutSeconds: 900      # from the request until Ready; after this, it is replaced
  pollSeconds: 15              # how often the provider is polled when nothing changes
  template:                    # describes its new nodes
    labels: {muster.dev/pool: h100}
    taints: [{key: muster.dev/pool, value: h100, effect: NoSchedule}]
    capacity: {cpu: 180, memory: 1900Gi, nvidia.com/gpu: 8}   # for pods: without the share of DaemonSets
    assigned: [muster.dev/team]   # keys of labels and taints that nodes get after joining
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from muster.api.configschema import Quantities, Seconds, Whole, schema
from muster.api.configtext import ConfigText, ConfigTextError
from muster.api.names import LABEL_TEAM
from muster.fleet.scaling.snapshot import POLL_S, PoolSpec, Template
from muster.kube.objects.node import Taint
from muster.kube.objects.quantity import QuantityError, to_int
from muster.kube.objects.resources import amount
from muster.kube.objects.taints import HARD_EFFECTS, PREFER_NO_SCHEDULE

CONFIG_MAP = "muster-scaling"
EXTERNAL = "external"
"""The provider for nodes that other software creates: their pools are recognized by labels."""
CONFIG_KEY = "scaling.yaml"
PODS_PER_NODE = 110
"""The kubelet's own default (kubelet configuration, maxPods)."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


_TAINT = {
    "key": {"type": "string", "minLength": 1},
    "value": {"type": "string"},
    "effect": {"enum": sorted([*HARD_EFFECTS, PREFER_NO_SCHEDULE])},
}


class _Template(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    capacity: Quantities
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: list[Annotated[Taint, schema(properties=_TAINT)]] = msgspec.field(default_factory=list)
    assigned: list[str] = msgspec.field(default_factory=lambda: [LABEL_TEAM])


class _Pool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    name: Annotated[str, schema(pattern=f"^{_NAME.pattern}$")]
    provider: Annotated[str, schema(enum=["aws", EXTERNAL])]
    max: Whole
    template: _Template
    group: str = ""
    min: Whole = 0
    price: Annotated[float, schema(minimum=0)] = 0.0
    options: dict[str, str] = msgspec.field(default_factory=dict)
    idle_seconds: Seconds = 600.0
    cool_down_seconds: Annotated[float, schema(minimum=0)] = 300.0
    join_timeout_seconds: Seconds = 900.0
    poll_seconds: Annotated[float, schema(minimum=1, maximum=300)] = POLL_S


class ScalingText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of the configuration."""

    pools: list[_Pool] | None = None


def parse_config(text: str, providers: frozenset[str]) -> tuple[PoolSpec, ...]:
    """Return the pools by price, then name. `providers` are the available ones. Raises ConfigTextError."""
    read = ConfigText(text, ScalingText, "docs/fleet.md")
    pools = read.value.pools
    if pools is None:
        raise ConfigTextError("it is empty; write `pools: []` to scale no pool")
    problems = sorted(_problems(pools, providers))
    read.check((f"$.pools[{number}]{path}", what) for number, path, what in problems)
    return tuple(sorted(map(_spec, pools), key=lambda pool: (pool.price, pool.name)))


def _problems(pools: list[_Pool], providers: frozenset[str]) -> Iterator[tuple[int, str, str]]:
    """Yield (index of the pool, path in it, the problem and what to change)."""
    names: dict[str, int] = {}
    groups: dict[tuple[str, str, tuple[tuple[str, str], ...]], str] = {}
    for number, pool in enumerate(pools):
        if not _NAME.fullmatch(pool.name):
            yield number, ".name", f"{pool.name!r} is not a DNS label; use lower-case letters, digits and dashes"
        if pool.name in names:
            yield number, ".name", f"another pool is called {pool.name}; give each a name of its own"
        names.setdefault(pool.name, number)
        if pool.provider not in providers:
            yield number, ".provider", f"there is no provider {pool.provider!r}; use {' or '.join(sorted(providers))}"
        group = (pool.provider, pool.group, tuple(sorted(pool.options.items())))
        if pool.group and group in groups:
            yield number, ".group", f"pool {groups[group]} has group {pool.group} already; a group is in one pool"
        groups.setdefault(group, pool.name)
        if pool.provider == EXTERNAL and not pool.template.labels:
            yield number, ".template", "needs labels: only they show which nodes of an external provider belong to it"
        if not 0 <= pool.min <= pool.max:
            yield number, ".min", f"needs 0 <= min <= max, and min is {pool.min}, max is {pool.max}; change one of them"
        for path, value in ((".price", pool.price), (".coolDownSeconds", pool.cool_down_seconds)):
            if not 0 <= value < float("inf"):
                yield number, path, f"{value:g} is not possible; write 0 or more"
        for path, value in ((".idleSeconds", pool.idle_seconds), (".joinTimeoutSeconds", pool.join_timeout_seconds)):
            if not 0 < value < float("inf"):
                yield number, path, f"{value:g} is not possible; write a number of seconds above 0"
        if not 1 <= pool.poll_seconds <= 300:
            yield number, ".pollSeconds", f"{pool.poll_seconds:g} is not possible; write 1 to 300"
        yield from ((number, f".template{path}", what) for path, what in _template_problems(pool.template))


def _template_problems(template: _Template) -> Iterator[tuple[str, str]]:
    if not template.capacity:
        yield ".capacity", "is empty; write what pods may use of a node, such as cpu, memory and nvidia.com/gpu"
    for name, quantity in template.capacity.items():
        try:
            if to_int(quantity) < 0:
                yield f".capacity.{name}", f"{quantity} is negative; write what a node has"
        except QuantityError as error:
            yield f".capacity.{name}", str(error)
    for index, taint in enumerate(template.taints):
        if taint.effect not in (*HARD_EFFECTS, PREFER_NO_SCHEDULE):
            yield f".taints[{index}].effect", f"{taint.effect!r} is not an effect; use NoSchedule or NoExecute"


def _spec(pool: _Pool) -> PoolSpec:
    capacity = {"pods": PODS_PER_NODE}
    for name, quantity in pool.template.capacity.items():
        capacity[name] = amount(name, quantity)
    return PoolSpec(
        name=pool.name,
        provider=pool.provider,
        group=pool.group or pool.name,
        min=pool.min,
        max=pool.max,
        price=pool.price,
        template=Template(
            pool.template.labels, tuple(pool.template.taints), capacity, frozenset(pool.template.assigned)
        ),
        options=pool.options,
        idle_s=pool.idle_seconds,
        cool_down_s=pool.cool_down_seconds,
        join_timeout_s=pool.join_timeout_seconds,
        poll_s=pool.poll_seconds,
    )
