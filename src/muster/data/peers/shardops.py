"""Operations on the cache's socket about gangs and checkpoint shards: join, keep, kept, confirm."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from muster.data.cache import requests
from muster.data.cache.operations import ok
from muster.data.cache.requests import BadRequest, NotPermitted
from muster.data.cache.session import Reply, Session
from muster.data.peers.gangs import Membership
from muster.data.peers.kept import Refused
from muster.data.peers.peering import Peering
from muster.data.peers.shards import Shard
from muster.sdk.data.wire import Message

_LONGEST_S: Final = 3600


async def join(session: Session, request: Message) -> Reply:
    """Register a reader of a gang that needs no store."""
    if session.member is not None:
        raise BadRequest("this connection has a ticket already")
    member = session.node.identify(request.get("ticket"))
    if member is None:
        raise NotPermitted("the ticket is not valid here")
    session.join(member)
    return ok(job=session.who.job)


async def keep(session: Session, request: Message, descriptors: list[int]) -> Reply:
    """Keep a shard, whose file's descriptor is beside the request, and send a copy to the partner if asked."""
    peering, member = _peering(session)
    if member.gang is None:
        raise NotPermitted("a newer attempt of this job runs")
    if len(descriptors) != 1:
        raise BadRequest("'keep' needs the descriptor of the shard's file")
    shard = _shard(request, member, member.ticket.attempt)
    confirmed = requests.text(request, "confirmed", "")
    try:
        await peering.keep(member, shard, descriptors[0], confirmed, bool(request.get("copy")))
    except Refused as error:
        return Reply({"error": error.code, "message": str(error)})
    return ok()


async def kept(session: Session, request: Message) -> Reply:
    """Give a shard of the job from this node or a peer, as a descriptor."""
    peering, member = _peering(session)
    shard = _shard(request, member, requests.number(request, "attempt"))
    deadline_s = requests.number(request, "deadline_s", _LONGEST_S)
    found = await peering.find(member, shard, float(max(1, deadline_s)))
    if found is None:
        return Reply({"error": "missing", "message": "neither this node nor a peer has the shard"})
    return Reply({"ok": True, "length": found.held.length, "source": found.source}, found.held.descriptor)


async def confirm(session: Session, request: Message) -> Reply:
    """Record that the controller confirmed a checkpoint, so that older ones are dropped."""
    peering, member = _peering(session)
    await peering.kept.confirm(member.uid, requests.text(request, "checkpoint"))
    return ok()


def _peering(session: Session) -> tuple[Peering, Membership]:
    if session.node.peering is None or not isinstance(session.member, Membership):
        raise NotPermitted("only a job with a ticket can keep checkpoint shards")
    return session.node.peering, session.member


def _shard(request: Message, member: Membership, attempt: int) -> Shard:
    about: dict[str, Any] = {
        "uid": member.uid,
        "key": request.get("key"),
        "sha256": request.get("sha256"),
        "size_bytes": request.get("size"),
        "checkpoint": request.get("checkpoint"),
        "step": request.get("step"),
        "attempt": attempt,
    }
    try:
        return msgspec.convert(about, Shard)
    except msgspec.ValidationError as error:
        raise BadRequest(f"not a checkpoint shard: {error}") from None
