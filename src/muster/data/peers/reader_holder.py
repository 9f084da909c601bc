"""Gives peers the blocks of this node: each one with the rights of a reader of the peer's job."""

from __future__ import annotations

from muster.data.cache.blocks import Block
from muster.data.cache.disk import DiskBypassed
from muster.data.cache.downloads import Busy
from muster.data.cache.fetch import Got
from muster.data.cache.node import Node
from muster.data.cache.session import Session, drop
from muster.data.cache.trust import Who
from muster.data.peers.holder import Held, NotHeld, Wanted
from muster.sdk.data.errors import Forbidden, NotFound, ObjectChanged, StoreError
from muster.sdk.data.wire import ErrorCode, block_range

NO_READER = "no-reader"
READERS_LEFT = "readers-left"
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (NotFound, ErrorCode.MISSING),
    (Forbidden, ErrorCode.FORBIDDEN),
    (ObjectChanged, ErrorCode.CHANGED),
    (StoreError, ErrorCode.UNAVAILABLE),
    (Busy, ErrorCode.BUSY),
    (DiskBypassed, ErrorCode.BYPASS),
)


class ReaderHolder:
    """The blocks of a node cache, for peers."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def fetch(self, wanted: Wanted, job: str, deadline_s: float) -> Held:
        """Return the block from the disk, or download it with the credentials of a reader. Raises NotHeld.

        The job's own copy from another peer counts too: if a block's owner is gone, the next one has it already.
        """
        block = Block(*wanted)
        try:
            block_range(block.size_bytes, block.number)
        except ValueError:
            raise NotHeld(ErrorCode.BAD_REQUEST) from None
        try:
            got = await self._own(block, job)
            return _held(got or await self._reader(job, block.store).find(block, deadline_s, peers=False))
        except tuple(kind for kind, _ in _CODES) as error:
            raise NotHeld(next(code for kind, code in _CODES if isinstance(error, kind))) from None

    async def _own(self, block: Block, job: str) -> Got | None:
        """Return what the job brought here itself; it needs no rights of a reader. Raises DiskBypassed."""
        fetcher = self._node.fetcher
        copy = await fetcher.from_disk(block.scoped(job))
        if copy is not None:
            return copy
        got = await fetcher.from_disk(block)
        if got is None or self._node.trust.same_job(Who(job, True, ""), block.object, got.footer.owner):
            return got
        drop(got)
        return None

    def _reader(self, job: str, store: str) -> Session:
        """Return a session of the job in this store. Raises NotHeld: whether one will come, or all have left."""
        for session in self._node.readers(job):
            if (
                isinstance(session, Session)
                and session.who.proven
                and session.greeted
                and session.place.identity.text == store
            ):
                return session
        account = self._node.accounts.all().get(job)
        left = account is not None and account.bucket + account.peer + account.disk > 0
        raise NotHeld(READERS_LEFT if left else NO_READER)


def _held(got: Got) -> Held:
    release = got.memory.release if got.memory is not None else None
    return Held(got.descriptor, got.footer.length, got.footer.sha256, release)
