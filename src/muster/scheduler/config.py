"""Configuration of the scheduler: key `scheduler.yaml` of the ConfigMap `muster-scheduler`; all fields have defaults.

policy: preemptible          # backfill on reserved nodes: strict, easy or preemptible
pools:                       # by the value of the nodes' label muster.dev/pool
  h100: {policy: easy}
backfillDelaySeconds: 120    # a gang starts at most this much later because of gangs on its reserved nodes
backfillMinRunSeconds: 60    # a backfilled gang runs at least this long before it is asked, within that delay
backfillAsksMax: 3           # gangs that were asked to leave this often are the first to be backfilled again
order: arrival               # within a priority: arrival, or fair (by the decayed usage of a team's users)
fair:
  halfLifeHours: 24          # usage counts half as much after this time
  waitMaxHours: 24           # a user whose gangs have waited this long without a start goes first
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from muster.api.configschema import schema
from muster.api.configtext import ConfigText
from muster.api.scheduling import BackfillPolicy, QueueOrder
from muster.kube.configmapsource import text_of
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.struct import KubeStruct
from muster.scheduler.plan import Settings

CONFIG_MAP = "muster-scheduler"
CONFIG_KEY = "scheduler.yaml"
PAGE = "docs/scheduling.md"

_SECONDS_MAX = 86_400.0
_ASKS_MAX = 1000
_HOURS_MIN, _HOURS_MAX = 0.1, 8760.0
_HOUR_S = 3600.0

Span = Annotated[float, schema(minimum=0, maximum=_SECONDS_MAX)]
Hours = Annotated[float, schema(minimum=_HOURS_MIN, maximum=_HOURS_MAX)]


class PoolConfig(KubeStruct, forbid_unknown_fields=True):
    """What differs in one pool."""

    policy: BackfillPolicy


class FairConfig(KubeStruct, forbid_unknown_fields=True):
    """How usage of the past counts in the order `fair`."""

    half_life_h: Hours = msgspec.field(default=24.0, name="halfLifeHours")
    wait_max_h: Hours = msgspec.field(default=24.0, name="waitMaxHours")


class SchedulerConfig(KubeStruct, forbid_unknown_fields=True):
    """The fields of the configuration."""

    policy: BackfillPolicy = "preemptible"
    pools: Mapping[str, PoolConfig] = msgspec.field(default_factory=dict)
    backfill_delay_s: Span = msgspec.field(default=120.0, name="backfillDelaySeconds")
    backfill_min_run_s: Span = msgspec.field(default=60.0, name="backfillMinRunSeconds")
    backfill_asks_max: Annotated[int, schema(minimum=0, maximum=_ASKS_MAX)] = 3
    order: QueueOrder = "arrival"
    fair: FairConfig = msgspec.field(default_factory=FairConfig)

    def applied_to(self, settings: Settings) -> Settings:
        """Return the settings with the values of this configuration."""
        return msgspec.structs.replace(
            settings,
            policy=self.policy,
            pool_policies={name: pool.policy for name, pool in self.pools.items()},
            backfill_delay_s=self.backfill_delay_s,
            backfill_min_run_s=self.backfill_min_run_s,
            backfill_asks_max=self.backfill_asks_max,
            order=self.order,
            usage_half_life_s=self.fair.half_life_h * _HOUR_S,
            fair_wait_max_s=self.fair.wait_max_h * _HOUR_S,
        )


UNKNOWN = SchedulerConfig(policy="strict")
"""In force until the first valid text is read: it does nothing that the operator may have forbidden."""


def parse_config(text: str, file: str = "") -> SchedulerConfig:
    """Parse the text. `file` is its name in errors; "" for a ConfigMap. Raises ConfigTextError with every problem."""
    read = ConfigText(text, SchedulerConfig, PAGE, file)
    read.check(_problems(read.value))
    return read.value


def read_config(found: ConfigMap | None) -> SchedulerConfig | None:
    """Return the configuration in the ConfigMap; None without one. Raises BadConfig."""
    return parse_config(text_of(found, CONFIG_KEY)) if found is not None else None


def _problems(config: SchedulerConfig) -> Iterator[tuple[str, str]]:
    for name, span_s in (
        ("backfillDelaySeconds", config.backfill_delay_s),
        ("backfillMinRunSeconds", config.backfill_min_run_s),
    ):
        if not 0 <= span_s <= _SECONDS_MAX:
            yield f"$.{name}", f"{span_s:g} is not possible; write 0 to {_SECONDS_MAX:g}"
    if not 0 <= config.backfill_asks_max <= _ASKS_MAX:
        yield "$.backfillAsksMax", f"{config.backfill_asks_max} is not possible; write 0 to {_ASKS_MAX}"
    if "" in config.pools:
        yield "$.pools", "a pool has an empty name; nodes without a pool follow the field policy"
    for name, hours in (("halfLifeHours", config.fair.half_life_h), ("waitMaxHours", config.fair.wait_max_h)):
        if not _HOURS_MIN <= hours <= _HOURS_MAX:
            yield f"$.fair.{name}", f"{hours:g} is not possible; write {_HOURS_MIN:g} to {_HOURS_MAX:g}"
