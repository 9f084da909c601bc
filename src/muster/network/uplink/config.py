"""Section `uplink` of the network's configuration: the fleet's budget, and how it is shared.

uplink:
  enabled: true                     # default: false
  dryRun: true                      # measure, allocate and show, but limit nothing; default: false
  class: internet                   # the class of traffic that the budget is for; default: internet
  budget: {in: 100G, out: 40G}      # bits/s of IP packets for the whole fleet, in quantities or whole numbers
  staticShare: {in: 10M, out: 4M}   # what a node may use without the controller; default: budget / nodes
  floor: {in: 500k, out: 500k}      # what each node, and each subject with traffic, gets at least
  lineRate: {in: 25G, out: 25G}     # the most that a node can use, if its agent does not know; default: unknown
  teams: {research: 3, product: 1}  # weights; a team without one has defaultWeight
  defaultWeight: 1
  nodeSelector: {}                  # labels of the nodes on which agents run; default: every node
  leaseSeconds: 30                  # limits stay this long without the controller
  decaySeconds: 60                  # then they fall to the static share in this time
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec

from muster.api.configschema import Positive, Seconds, schema
from muster.kube.objects.quantity import to_int
from muster.network.uplink.wire import HEARTBEAT_S, NOTHING, Pair

Quantity = Annotated[str | int, schema(minimum=0)]
_WEIGHT_MAX: Final = 1_000_000
_BPS_MAX: Final = 10**15


class PairConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bits per second for each direction: quantities such as `100G`, or whole numbers."""

    in_: Quantity = msgspec.field(default=0, name="in")
    out: Quantity = 0

    @property
    def bps(self) -> Pair:
        """Returns the numbers. Raises ValueError if one is not a quantity."""
        return Pair(to_int(self.in_), to_int(self.out))


class UplinkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The budget and how it is shared."""

    enabled: bool = False
    dry_run: bool = False
    cls: str = msgspec.field(default="internet", name="class")
    budget: PairConfig = msgspec.field(default_factory=PairConfig)
    static_share: PairConfig = msgspec.field(default_factory=PairConfig)
    floor: PairConfig = msgspec.field(default_factory=lambda: PairConfig("500k", "500k"))
    line_rate: PairConfig = msgspec.field(default_factory=PairConfig)
    teams: Mapping[str, Positive] = msgspec.field(default_factory=dict)
    default_weight: Positive = 1
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    lease_s: Seconds = msgspec.field(default=30.0, name="leaseSeconds")
    decay_s: Seconds = msgspec.field(default=60.0, name="decaySeconds")


def problems(config: UplinkConfig) -> Iterator[tuple[str, str]]:
    """Yield (path below the section, what to change) for each value that is not possible."""
    pairs: dict[str, Pair] = {}
    for name, pair in (
        ("budget", config.budget),
        ("staticShare", config.static_share),
        ("floor", config.floor),
        ("lineRate", config.line_rate),
    ):
        try:
            pairs[name] = pair.bps
        except ValueError as error:
            yield f"$.{name}", f"{error}; write bits/s as 100G or 100000000000"
            continue
        if not all(0 <= each <= _BPS_MAX for each in pairs[name]):
            yield f"$.{name}", "the number is not possible; write 0 to 1P bits/s"
    if config.enabled and "budget" in pairs and 0 in pairs["budget"]:
        yield "$.budget", "a budget is needed in both directions; write budget: {in: 100G, out: 40G}"
    for name in ("staticShare", "floor"):
        if "budget" in pairs and any(
            budget and part > budget for part, budget in zip(pairs.get(name, NOTHING), pairs["budget"], strict=True)
        ):
            yield f"$.{name}", "one node would get more than the budget; write less"
    if not config.cls:
        yield "$.class", "the class has no name; write internet, or a class of traffic.classes"
    for team, weight in (*config.teams.items(), ("", config.default_weight)):
        if not 1 <= weight <= _WEIGHT_MAX:
            yield (
                f"$.teams.{team}" if team else "$.defaultWeight",
                f"{weight} is not possible; write 1 to {_WEIGHT_MAX}",
            )
    if not 2 * HEARTBEAT_S < config.lease_s <= 3600:
        yield "$.leaseSeconds", f"{config.lease_s:g} is not possible; write more than {2 * HEARTBEAT_S:g}, at most 3600"
    if not 1 <= config.decay_s <= 3600:
        yield "$.decaySeconds", f"{config.decay_s:g} is not possible; write 1 to 3600"
