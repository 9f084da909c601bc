"""The operations of readers: hello, blocks and status."""

from __future__ import annotations

from typing import Final

from muster.data.cache import requests
from muster.data.cache.blocks import Block
from muster.data.cache.leases import MAX_LEASES
from muster.data.cache.opening import place_of
from muster.data.cache.requests import BadRequest
from muster.data.cache.session import Reply, Session, drop
from muster.sdk.data.credentials import NAMES
from muster.sdk.data.wire import VERSION, Message, block_range

_LONGEST_S: Final = 3600


async def hello(session: Session, request: Message) -> Reply:
    """Begin: check the store, and learn the job from the ticket."""
    if session.greeted or session.member is not None:
        raise BadRequest("'hello' may come only once, and first")
    if requests.number(request, "version") != VERSION:
        raise BadRequest(f"this node cache speaks version {VERSION}; use the muster.sdk of the same release")
    given = _known(requests.texts(request, "credentials"))
    place = place_of(requests.texts(request, "store"), given, session.node.schemes)
    session.begin(place, given, session.node.identify(request.get("ticket")))
    usable = session.node.disk.health.usable
    return ok(version=VERSION, node=session.node.name, state="ok" if usable else "bypass", job=session.who.job)


async def credentials(session: Session, request: Message) -> Reply:
    """Replace the credentials."""
    session.use(_known(requests.texts(request, "credentials")))
    return ok()


async def block(session: Session, request: Message) -> Reply:
    """Give a block as a descriptor."""
    got = await session.find(_block_of(session, request), _deadline_s(request))
    lease, footer = session.lease(got), got.footer
    return Reply(
        {"ok": True, "length": footer.length, "sha256": footer.sha256, "source": got.source, "lease": lease},
        got.descriptor,
    )


async def warm(session: Session, request: Message) -> Reply:
    """Bring a block here."""
    got = await session.find(_block_of(session, request), _deadline_s(request))
    drop(got)
    return ok(length=got.footer.length, source=got.source)


async def done(session: Session, request: Message) -> None:
    """End leases."""
    for lease in requests.numbers(request, "leases", MAX_LEASES):
        session.end_lease(lease)


async def status(session: Session, request: Message) -> Reply:
    """Report the figures of the node, and of the caller's job or of all."""
    return ok(**session.node.status(None if session.control else session.who.job))


def ok(**fields: object) -> Reply:
    """Return an answer with these fields."""
    return Reply({"ok": True, **fields})


def _known(given: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name in NAMES}


def _deadline_s(request: Message) -> float:
    return float(max(1, requests.number(request, "deadline_s", _LONGEST_S, default=_LONGEST_S)))


def _block_of(session: Session, request: Message) -> Block:
    place = session.place
    size, number = requests.number(request, "size"), requests.number(request, "index")
    try:
        block_range(size, number)
    except ValueError as error:
        raise BadRequest(str(error)) from None
    etag = requests.text(request, "etag")
    if not etag:
        raise BadRequest("'etag' must not be empty: it identifies the object's version")
    return Block(place.identity.text, place.full(requests.key(request)), etag, size, number)
