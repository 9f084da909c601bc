"""Configuration of remediation: key `remediation.yaml` of the ConfigMap `muster-health`; the default only observes.

mode: observe              # observe: record findings; dry-run: also what would be done; act
pause: false               # true: start nothing and change nothing; nodes stay as they are
breaker:                   # how much of a pool may be put into quarantine; joining nodes do not count
  share: 10%
  nodes: 2                 # always allow this many
  windowSeconds: 3600
shared:                    # the same fault on many nodes at once goes to an operator
  nodes: 5                 # 0: never
  windowSeconds: 600
quarantined: {all: 20%, pool: 25%, team: 50%}   # nodes out of use because of Muster: number or percent
working: {all: 20, pool: 10, team: 5}           # nodes drained, reset, rebooted or replaced at the same time
deadlines: {quarantineSeconds: 604800, drainSeconds: 1800, resetSeconds: 900, rebootSeconds: 1800,
            replaceSeconds: 3600, testSeconds: 7200}
spareSeconds: 300          # after this, a gang is evicted without a spare node
dead: {enabled: true, peers: 2, silentSeconds: 20, nodes: 3}   # a stale Lease and peer reports
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import yaml

from muster.api.configschema import Positive, Seconds, Whole, schema
from muster.api.configtext import ConfigText
from muster.kube.objects.struct import KubeStruct

CONFIG_KEY = "remediation.yaml"
PAGE = "docs/remediation.md"

Mode = Literal["observe", "dry-run", "act"]
Percent = Annotated[str, schema(pattern=r"^[0-9.]+%$")]
Amount = Whole | Percent
"""A number of nodes, or a share of them such as `10%`."""


class _Text(KubeStruct, forbid_unknown_fields=True):
    """Base of the YAML structs: field names are in camel case, and unknown fields are refused."""


class Breaker(_Text):
    """The breaker: how fast nodes may be put into quarantine."""

    share: Percent = "10%"
    nodes: Whole = 2
    window_s: Seconds = msgspec.field(default=3600.0, name="windowSeconds")


class SharedFaults(_Text):
    """The number of nodes from which the same fault counts as shared instead of each node's own."""

    nodes: Whole = 5
    window_s: Seconds = msgspec.field(default=600.0, name="windowSeconds")


class Limits(_Text):
    """Limits on nodes that are out of use at the same time because of Muster: in all, per pool, per team."""

    all: Amount = "20%"
    pool: Amount = "25%"
    team: Amount = "50%"


class WorkLimits(Limits):
    """Limits on nodes that are worked on at the same time."""

    all: Amount = 20
    pool: Amount = 10
    team: Amount = 5


class Deadlines(_Text):
    """Deadlines of rungs in seconds; after a deadline, the next rung is entered."""

    quarantine_s: Seconds = msgspec.field(default=604800.0, name="quarantineSeconds")
    drain_s: Seconds = msgspec.field(default=1800.0, name="drainSeconds")
    reset_s: Seconds = msgspec.field(default=900.0, name="resetSeconds")
    reboot_s: Seconds = msgspec.field(default=1800.0, name="rebootSeconds")
    replace_s: Seconds = msgspec.field(default=3600.0, name="replaceSeconds")
    test_s: Seconds = msgspec.field(default=7200.0, name="testSeconds")


class Dead(_Text):
    """The conditions under which a node counts as dead before Kubernetes marks it not Ready."""

    enabled: bool = True
    peers: Positive = 2
    silent_s: Seconds = msgspec.field(default=20.0, name="silentSeconds")
    nodes: Whole = 3


class RemediationConfig(_Text):
    """The configuration of remediation."""

    mode: Mode = "observe"
    pause: bool = False
    breaker: Breaker = Breaker()
    shared: SharedFaults = SharedFaults()
    quarantined: Limits = Limits()
    working: WorkLimits = WorkLimits()
    deadlines: Deadlines = Deadlines()
    spare_s: Seconds = msgspec.field(default=300.0, name="spareSeconds")
    dead: Dead = Dead()


def parse_config(text: str | yaml.Node, file: str = "") -> RemediationConfig:
    """Parse the text; `file` is its file, if any. Raises ConfigTextError with every problem."""
    read = ConfigText(text, RemediationConfig, PAGE, file)
    read.check(_problems(read.value))
    return read.value


def amount_of(amount: Amount, total: int) -> int:
    """Return this amount of `total` nodes. A share is rounded down, but a share above 0 allows at least one node."""
    if isinstance(amount, int):
        return amount
    return max(1, int(total * percent_of(amount) / 100)) if percent_of(amount) else 0


def percent_of(text: str) -> float:
    """Return the number before the percent sign. Raises ValueError if the text is not a percentage."""
    if not text.endswith("%"):
        raise ValueError(text)
    value = float(text[:-1])
    if not 0 <= value <= 100:
        raise ValueError(text)
    return value


def _problems(config: RemediationConfig) -> Iterator[tuple[str, str]]:
    yield from _amount("$.breaker.share", config.breaker.share)
    for name, limits in (("quarantined", config.quarantined), ("working", config.working)):
        for field in ("all", "pool", "team"):
            yield from _amount(f"$.{name}.{field}", getattr(limits, field))
    for path, count in (
        ("$.breaker.nodes", config.breaker.nodes),
        ("$.shared.nodes", config.shared.nodes),
        ("$.dead.nodes", config.dead.nodes),
    ):
        if count < 0:
            yield path, f"{count} is not possible; write 0 or more"
    if config.dead.peers < 1:
        yield "$.dead.peers", f"{config.dead.peers} is not possible; write 1 or more"
    seconds = {
        "$.breaker.windowSeconds": config.breaker.window_s,
        "$.shared.windowSeconds": config.shared.window_s,
        "$.spareSeconds": config.spare_s,
        "$.dead.silentSeconds": config.dead.silent_s,
    }
    for field in ("quarantine", "drain", "reset", "reboot", "replace", "test"):
        seconds[f"$.deadlines.{field}Seconds"] = getattr(config.deadlines, f"{field}_s")
    for path, value in seconds.items():
        if not 0 < value < float("inf"):
            yield path, f"{value:g} is not possible; write a number of seconds above 0"


def _amount(path: str, amount: Amount) -> Iterator[tuple[str, str]]:
    if isinstance(amount, int):
        if amount < 0:
            yield path, f"{amount} is not possible; write 0 or more, or a share such as 10%"
        return
    try:
        percent_of(amount)
    except ValueError:
        yield path, f"{amount!r} is neither a number nor a share; write a number such as 5, or a share such as 10%"
