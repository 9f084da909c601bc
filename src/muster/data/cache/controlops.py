"""Operations of the control socket: what is cached, eviction, and rates of jobs."""

from __future__ import annotations

from typing import Final

from muster.data.cache import requests
from muster.data.cache.disk import BLOCKS
from muster.data.cache.files import Footer
from muster.data.cache.operations import ok
from muster.data.cache.rates import TooManyRates
from muster.data.cache.requests import BadRequest, NotPermitted
from muster.data.cache.session import Reply, Session
from muster.sdk.data.wire import Message

_PAGE: Final = 200
_MAX_RATE: Final = 1 << 50


async def ls(session: Session, request: Message) -> Reply:
    """Report a page of the objects that have blocks here."""
    _require_control(session)
    prefix, after = requests.text(request, "prefix", ""), requests.number(request, "after", default=0)
    if not after:
        session.objects = _summed(await session.node.disk.footers(BLOCKS), session, prefix)
    page = session.objects[after : after + _PAGE]
    return ok(objects=page, more=after + len(page) < len(session.objects), next=after + len(page))


async def evict(session: Session, request: Message) -> Reply:
    """Remove blocks of a store and a prefix that are not in use."""
    _require_control(session)
    store, prefix = requests.text(request, "store", ""), requests.text(request, "prefix", "")
    disk = session.node.disk
    count = removed = kept = 0
    for name, footer in await disk.footers(BLOCKS):
        if store in ("", footer.about.get("store")) and str(footer.about.get("key", "")).startswith(prefix):
            if name in disk.leases:
                kept += 1
            else:
                removed += await disk.remove(BLOCKS, name)
                count += 1
    return ok(blocks=count, bytes=removed, kept=kept)


async def rate(session: Session, request: Message) -> Reply:
    """Set the rate of a job's downloads."""
    _require_control(session)
    job = requests.text(request, "job", longest=256)
    if not job:
        raise BadRequest("'job' must be the UID of a job, or uid:NUMBER")
    try:
        session.node.rates.set(job, requests.number(request, "bytes_per_s", _MAX_RATE))
    except TooManyRates as error:
        raise BadRequest(str(error)) from None
    return ok()


def _summed(footers: list[tuple[str, Footer]], session: Session, prefix: str) -> list[Message]:
    """The objects of these blocks, sorted by store and key."""
    found: dict[tuple[str, str, str], Message] = {}
    for name, footer in footers:
        about = footer.about
        store, key, etag = (str(about.get(each, "")) for each in ("store", "key", "version"))
        if key.startswith(prefix):
            entry = found.setdefault(
                (store, key, etag),
                {
                    "store": store,
                    "key": key,
                    "etag": etag,
                    "size": about.get("size", 0),
                    "blocks": 0,
                    "cached_bytes": 0,
                    "in_use": 0,
                },
            )
            entry["blocks"] += 1
            entry["cached_bytes"] += footer.length
            entry["in_use"] += name in session.node.disk.leases
    return [found[each] for each in sorted(found)]


def _require_control(session: Session) -> None:
    if not session.control:
        raise NotPermitted("only the control socket has this operation")
