"""Configuration of the guard: the file `guard.yaml`, which is read again when it changes.

upstream: {url: "http://prometheus:9090"}
dryRun: true
callers: ...                         # callers/config.py
groups:                              # limits and budgets; a caller without a group is in `default`
  default: {limits: {maxSeries: 100000}, eachCaller: {concurrentCost: 100000000}}
inAll: {concurrentCost: 500000000}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Final, Literal

import msgspec
import yaml

from muster.api.configtext import ConfigText
from muster.telemetry.guard import upstream
from muster.telemetry.guard.budgets import config as budgets
from muster.telemetry.guard.budgets.config import Budget, QueueConfig
from muster.telemetry.guard.callers import problems as callers
from muster.telemetry.guard.callers.config import DEFAULT_GROUP, CallersConfig
from muster.telemetry.guard.dearest import config as dearest
from muster.telemetry.guard.dearest.config import DearestConfig
from muster.telemetry.guard.limits import Limits
from muster.telemetry.guard.upstream import UpstreamConfig

PAGE: Final = "docs/guard.md"
PRICED: Final = (
    "/api/v1/query",
    "/api/v1/query_range",
    "/api/v1/query_exemplars",
    "/api/v1/series",
    "/api/v1/labels",
    "/api/v1/label/",
    "/api/v1/metadata",
    "/api/v1/read",
    "/federate",
)
"""Paths that always have a price. `allowPaths` cannot name them."""
DEAREST_AT_ONCE: Final = 2
"""How many of the dearest requests run at once if `inAll` has no limit of its own."""
_PATH: Final = re.compile(r"/[A-Za-z0-9._~/-]*")


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The guard's own certificate. Without it, the guard serves plain HTTP and takes no client certificates.

    Attributes:
        certificate_file: PEM file with the certificate and its chain; read again when it changes.
        key_file: its key.
    """

    certificate_file: str = ""
    key_file: str = ""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What callers of a group may do.

    Attributes:
        limits: limits of one request.
        each_caller: budget of each caller.
        together: budget of all callers of the group.
    """

    limits: Limits = Limits()
    each_caller: Budget = Budget()
    together: Budget = Budget()

    @property
    def caller_budget(self) -> Budget:
        """Budget of each caller. Without a `concurrentCost`, the dearest request that the limits allow fits alone."""
        return _with_default(self.each_caller, self.limits.greatest_cost)


class GuardConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The whole file.

    Attributes:
        upstream: the server behind the guard. A running guard keeps it.
        tls: the guard's own certificate. A running guard keeps the names of the files.
        dry_run: compute, count and log everything, but refuse nothing.
        callers: who may ask.
        groups: limits and budgets of callers, by the name of the group. `default` is that of callers without one.
        in_all: budget of all callers.
        queue: how requests wait for a budget.
        when_unknown: a request without a price (the probes failed).
        when_overloaded: a request for which the guard has no room.
        allow_paths: paths that are passed on as they are, without a price. A path that ends in `/` allows all below.
        dearest: the log of the dearest queries.
    """

    upstream: UpstreamConfig
    tls: TlsConfig = TlsConfig()
    dry_run: bool = False
    callers: CallersConfig = CallersConfig()
    groups: Mapping[str, Group] = {}
    in_all: Budget = Budget()
    queue: QueueConfig = QueueConfig()
    when_unknown: Literal["refuse", "allow"] = "refuse"
    when_overloaded: Literal["refuse", "allow"] = "refuse"
    allow_paths: tuple[str, ...] = ()
    dearest: DearestConfig = DearestConfig()

    def group(self, name: str) -> Group:
        """Return the group of a caller; `default` has safe values if the file does not name it."""
        return self.groups.get(name) or Group()

    @property
    def budget_in_all(self) -> Budget:
        """Budget of all callers. Without a `concurrentCost`, the dearest request of a group fits twice."""
        greatest = max(self.group(name).limits.greatest_cost for name in (*self.groups, DEFAULT_GROUP))
        return _with_default(self.in_all, DEAREST_AT_ONCE * greatest)


def parse_config(text: str | yaml.Node, file: str = "") -> GuardConfig:
    """Parse the text, or a YAML node of it. Raises ConfigTextError with every problem."""
    read = ConfigText(text, GuardConfig, PAGE, file)
    read.check(_problems(read.value))
    return read.value


def _with_default(budget: Budget, concurrent_cost: float) -> Budget:
    if budget.concurrent_cost is not None:
        return budget
    return msgspec.structs.replace(budget, concurrent_cost=concurrent_cost)


def _problems(config: GuardConfig) -> Iterator[tuple[str, str]]:
    yield from _below("upstream", upstream.problems(config.upstream))
    if bool(config.tls.certificate_file) != bool(config.tls.key_file):
        yield "$.tls", "set certificateFile and keyFile together"
    yield from _below("callers", callers.problems(config.callers, bool(config.tls.certificate_file)))
    known = {*config.groups, DEFAULT_GROUP}
    for path, used in callers.groups_used(config.callers):
        if used not in known:
            what = f"{used!r} is not a group; write one of {', '.join(sorted(known))}, or add it to groups"
            yield from _below("callers", [(path, what)])
    for name, group in config.groups.items():
        yield from _below(f"groups.{name}.limits", _limit_problems(group.limits))
        yield from _below(f"groups.{name}.eachCaller", budgets.problems(group.each_caller))
        yield from _below(f"groups.{name}.together", budgets.problems(group.together))
    yield from _below("inAll", budgets.problems(config.in_all))
    yield from _below("queue", budgets.queue_problems(config.queue))
    yield from _below("dearest", dearest.problems(config.dearest, _readers(config)))
    yield from _path_problems(config.allow_paths)


def _readers(config: GuardConfig) -> set[str]:
    return {*config.groups, DEFAULT_GROUP, *(name for _, name, _ in callers.named(config.callers))}


def _limit_problems(limits: Limits) -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(Limits):
        value = getattr(limits, field.name)
        if not 0 < value < inf:
            yield f"$.{field.encode_name}", f"{value:g} is not possible; write a number above 0"
    if limits.default_range_s > limits.max_range_s and limits.default_range_s != Limits().default_range_s:
        what = f"{limits.default_range_s:g} is above maxRangeSeconds ({limits.max_range_s:g}); write at most that"
        yield "$.defaultRangeSeconds", what


def _path_problems(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    for n, path in enumerate(paths):
        where = f"$.allowPaths[{n}]"
        if not _PATH.fullmatch(path) or "//" in path or "/." in path:
            yield where, f"{path!r} is not a path; write /api/v1/NAME, or /PATH/ for all below it"
        elif any(path == priced or (path.endswith("/") and priced.startswith(path)) for priced in PRICED) or any(
            priced.endswith("/") and path.startswith(priced) for priced in PRICED
        ):
            yield where, f"{path!r} would let queries pass without a price; list single paths that are not queries"


def _below(section: str, found: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield problems of a section with paths from the top."""
    for path, what in found:
        yield f"$.{section}{path.removeprefix('$')}", what
