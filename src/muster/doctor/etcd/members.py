"""etcd's own metrics and alarms, from the members that the user names."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from muster.api.reader import USER_AGENT, Reader
from muster.doctor.etcd.access import EtcdAccess
from muster.doctor.rule import Context
from muster.doctor.samples import Page, Server, compare, parse
from muster.kube.client import Client
from muster.kube.errors import ApiError, ConfigError, Unavailable

SIZE: Final = "etcd_mvcc_db_total_size_in_bytes"
IN_USE: Final = "etcd_mvcc_db_total_size_in_use_in_bytes"
QUOTA: Final = "etcd_server_quota_backend_bytes"
FSYNC: Final = "etcd_disk_wal_fsync_duration_seconds"
COMMIT: Final = "etcd_disk_backend_commit_duration_seconds"
HAS_LEADER: Final = "etcd_server_has_leader"
LEADER_CHANGES: Final = "etcd_server_leader_changes_seen_total"
FAMILIES: Final = frozenset({SIZE, IN_USE, QUOTA, FSYNC, COMMIT, HAS_LEADER, LEADER_CHANGES})
_WHAT: Final = "etcd's disk, quota, alarms and leader"
_PATIENCE_S: Final = 5.0


class Member(msgspec.Struct, frozen=True):
    """One member of an etcd cluster.

    Attributes:
        address: its URL.
        metrics: two readings of its metrics.
        alarms: active alarms of its cluster, such as NOSPACE; None if they could not be read.
    """

    address: str
    metrics: Server
    alarms: tuple[str, ...] | None

    def value(self, name: str) -> float | None:
        """Return the newest value of a gauge; None if the member does not report it."""
        return next((value for _, value in self.metrics.series(name)), None)


class EtcdMembers(msgspec.Struct, frozen=True):
    """The members that answered."""

    members: tuple[Member, ...]


async def collect_etcd(context: Context) -> EtcdMembers | None:
    """Read the metrics of each member twice, a window apart, and its alarms."""
    access, reader = context.options.etcd, context.reader
    if not access.urls:
        reader.note(_WHAT, "the API server does not report them; add --etcd-metrics URL")
        return None
    async with AsyncExitStack() as stack:
        found = await asyncio.gather(*(_member(reader, access, url, context, stack) for url in access.urls))
    members = tuple(member for member in found if member is not None)
    return EtcdMembers(members) if members else None


async def _member(
    reader: Reader, access: EtcdAccess, url: str, context: Context, stack: AsyncExitStack
) -> Member | None:
    client = await stack.enter_async_context(
        Client(access.config(url), user_agent=USER_AGENT, timeout_s=_PATIENCE_S, retry_for_s=0)
    )
    try:
        before, before_at = await _page(reader, client), time.monotonic()
        await asyncio.sleep(context.options.window_s)
        after, after_at = await _page(reader, client), time.monotonic()
    except (ApiError, ConfigError) as error:
        reader.note(_WHAT, f"{url}: {error}")
        return None
    metrics = compare(url, before, after, after_at - before_at, time.time())
    if metrics is None or SIZE not in after.series:
        reader.note(_WHAT, f"{url}: " + ("another etcd answered the second time" if metrics is None else "not etcd"))
        return None
    return Member(url, metrics, await _alarms(reader, client, url))


async def _page(reader: Reader, client: Client) -> Page:
    reader.cost.requests += 1
    body = await client.request("GET", "/metrics", headers={"Accept": "text/plain"})
    reader.cost.bytes += len(body)
    return parse(body.decode("utf-8", "replace"), FAMILIES)


async def _alarms(reader: Reader, client: Client, url: str) -> tuple[str, ...] | None:
    """Read `/health`, which etcd serves beside its metrics: it answers 503 with `ALARM NOSPACE` as the reason."""
    reader.cost.requests += 1
    try:
        await client.request("GET", "/health")
    except Unavailable as error:
        words = error.reason.split()
        return tuple(words[1:]) if words[:1] == ["ALARM"] else ()
    except ApiError as error:
        reader.note("etcd's alarms", f"{url}: {error}")
        return None
    return ()
