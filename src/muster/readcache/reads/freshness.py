"""Waits until a store may answer, and bounds how old an answer may be."""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from typing import Final

from muster.readcache.freshness import NotFresh
from muster.readcache.reads.sources import Source
from muster.readcache.reads.statuses import initializing, not_fresh, version_too_large
from muster.readcache.wire.selectable import go_quoted

VERSION_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Waits and bounds of reads.

    Attributes:
        version_wait_s: wait for a version that is newer than the store, as kube-apiserver.
        confirm_s: wait for a proof of freshness.
        load_wait_s: wait for the first state of a kind.
        max_stale_s: how long a state is served after its upstream was lost.
    """

    version_wait_s: float = 3.0
    confirm_s: float = 3.0
    load_wait_s: float = 10.0
    max_stale_s: float = 300.0


def parse_version(text: str) -> int | None:
    """Returns a resourceVersion as a number ("" is 0), None if it is not one."""
    if not text:
        return 0
    if not text.isascii() or not text.isdecimal() or int(text[:25]) > VERSION_MAX:
        return None
    return int(text)


def number_error(text: str) -> str:
    """Returns kube-apiserver's text for a resourceVersion that is not a number."""
    why = "value out of range" if text.isascii() and text.isdecimal() else "invalid syntax"
    quoted = go_quoted(text)
    return f"resourceVersion: Invalid value: {quoted}: strconv.ParseUint: parsing {quoted}: {why}"


async def loaded(source: Source, limits: Limits) -> None:
    """Waits until the store has a state. Raises Refusal (429) if it gets none in time."""
    store = source.store
    if not store.version and not await store.wait_for(1, limits.load_wait_s):
        raise initializing()


async def at_least(source: Source, version: int, limits: Limits) -> int:
    """Waits until the state is at least as new as a version. Returns the version of the state, which may be newer.

    Versions count the writes of all kinds. So a version that exists may be later than the last event of this kind. Then
    only a proof of freshness shows that nothing is missing (kube-apiserver asks etcd for its progress instead), and the
    store's own version may stay behind.

    Raises:
        Refusal: 504, the version is still newer than the state.
    """
    store = source.store
    if store.version >= version:
        return store.version
    clock = asyncio.get_running_loop().time
    ends_at = clock() + limits.version_wait_s
    with contextlib.suppress(NotFresh):
        proven = await source.confirm(limits.version_wait_s)
        if proven >= version:
            return max(proven, store.version)
    if not await store.wait_for(version, max(0.0, ends_at - clock())):
        raise version_too_large(version, store.version)
    return store.version


async def newest(source: Source, limits: Limits) -> int:
    """Waits until the state provably has everything written before the call. Returns the version of the state.

    Raises:
        Refusal: 503.
    """
    try:
        return max(await source.confirm(limits.confirm_s), source.store.version)
    except NotFresh as error:
        raise not_fresh(f"the read cache cannot confirm that its state is current: {error}") from None


def age_headers(source: Source, limits: Limits) -> tuple[tuple[str, str], ...]:
    """Returns the header Age if upstream is away.

    Raises:
        Refusal: 503, the state is older than the bound.
    """
    age_s = source.age_s()
    if age_s <= 0:
        return ()
    if age_s > limits.max_stale_s:
        raise not_fresh(
            f"the read cache has not heard from the API server for {age_s:.0f} s, "
            f"more than the {limits.max_stale_s:.0f} s for which it serves old state"
        )
    return (("Age", str(math.ceil(age_s))),)
