"""All rules and collectors of the doctor. To add one, add it here."""

from __future__ import annotations

from typing import Final

from muster.doctor.costs import rule as expensive_client
from muster.doctor.costs.collect import collect_usage
from muster.doctor.etcd import disk as etcd_disk
from muster.doctor.etcd import events as etcd_events
from muster.doctor.etcd import leaders as etcd_leaders
from muster.doctor.etcd import space as etcd_space
from muster.doctor.etcd.flags import collect_flags
from muster.doctor.etcd.members import collect_etcd
from muster.doctor.examine import FACTS
from muster.doctor.parts.dns import collect_dns
from muster.doctor.parts.extensions import collect_extensions
from muster.doctor.parts.hosts import collect_hosts
from muster.doctor.parts.readiness import collect_readiness
from muster.doctor.parts.requests import collect_requests
from muster.doctor.parts.sizes import collect_sizes
from muster.doctor.parts.watchers import collect_endpoints_use
from muster.doctor.parts.webhooks import collect_webhooks
from muster.doctor.parts.workloads import collect_daemonsets
from muster.doctor.parts.writers import collect_event_writers
from muster.doctor.rule import Collector, Rule
from muster.doctor.rules import (
    dns,
    endpoints,
    events,
    extensions,
    failures,
    latency,
    leases,
    lists,
    memory,
    objects,
    overload,
    readiness,
    saturation,
    webhook_failures,
    webhook_latency,
    webhook_scope,
)

RULES: Final[tuple[Rule, ...]] = (
    readiness.RULE,
    etcd_space.RULE,
    etcd_disk.RULE,
    etcd_leaders.RULE,
    etcd_events.RULE,
    overload.RULE,
    failures.RULE,
    latency.RULE,
    lists.RULE,
    endpoints.RULE,
    events.RULE,
    leases.RULE,
    webhook_latency.RULE,
    webhook_failures.RULE,
    webhook_scope.RULE,
    extensions.RULE,
    dns.RULE,
    objects.RULE,
    saturation.RULE,
    memory.RULE,
    expensive_client.RULE,
)
COLLECTORS: Final[tuple[Collector, ...]] = (
    collect_requests,
    collect_event_writers,
    collect_daemonsets,
    collect_endpoints_use,
    collect_webhooks,
    collect_extensions,
    collect_dns,
    collect_hosts,
    collect_readiness,
    collect_usage,
    collect_sizes,
    collect_etcd,
    collect_flags,
)
FAMILIES: Final[frozenset[str]] = FACTS.union(*(rule.families for rule in RULES))
