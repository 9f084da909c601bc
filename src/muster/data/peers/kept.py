"""Checkpoint shards in the protected area of the node's disk. They survive the process and the job's attempts."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import stat
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from muster.data.cache.disk import SHARDS, Disk, DiskBypassed, NoRoom
from muster.data.cache.files import Footer, Partial, footer_bytes, write_all
from muster.data.cache.sinks import WriteFailed
from muster.data.peers.frames import Code, Message, PeerError, Stream
from muster.data.peers.gangs import Gang
from muster.data.peers.holder import Held
from muster.data.peers.shards import Shard, surplus
from muster.data.peers.transfer import Pace, receive_file

log = logging.getLogger(__name__)

AGE_S: Final = 24 * 3600.0
"""Shards of a job without readers on this node are removed after this time."""
SHARDS_MAX: Final = 4096
_RETURN_S: Final = 3600.0
"""After a restart of this process, a job's readers have this much time to come back."""
_INDEX: Final = "kept.json"
_CHUNK_BYTES: Final = 4 << 20
_CHUNK_S: Final = 30.0
_THREADS: Final = 4


class Refused(Exception):
    """A shard cannot be kept. Attribute `code`: why."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code


class _Job(msgspec.Struct):
    """The shards of a job on this node.

    Attributes:
        shards: by file name.
        confirmed: path of its newest confirmed checkpoint that this node knows.
        used_at: when it last had a reader here, in seconds since the epoch.
    """

    shards: dict[str, Shard] = {}
    confirmed: str = ""
    used_at: float = 0.0


_index = msgspec.json.Decoder(dict[str, _Job])


class KeptShards:
    """The shards of this node. All methods run in the event loop.

    Args:
        disk: started.
        active: returns the UIDs of jobs that have readers here.
        pace: limits for peers that send copies.
        now: seconds since the epoch.
    """

    def __init__(
        self, disk: Disk, active: Callable[[], set[str]], pace: Pace, now: Callable[[], float] = time.time
    ) -> None:
        self._disk = disk
        self._active = active
        self._pace = pace
        self._now = now
        self._jobs: dict[str, _Job] = {}
        self._path = Path(disk.folder.root) / _INDEX
        self.threads = ThreadPoolExecutor(_THREADS, "shards")
        self._adding: dict[str, asyncio.Future[None]] = {}
        self._saving = asyncio.Lock()

    async def start(self) -> None:
        """Read the index. Removes files that it does not name, and entries without a file. Raises DiskBypassed."""
        self._jobs = await self._disk.call(self._load, 0)
        for job in self._jobs.values():
            for name in [name for name in job.shards if not self._disk.has(SHARDS, name)]:
                del job.shards[name]
        earliest = self._now() - AGE_S + _RETURN_S
        for job in self._jobs.values():
            job.used_at = max(job.used_at, earliest)  # its readers may not have come back yet
        known = {name for job in self._jobs.values() for name in job.shards}
        for name in [name for name in self._disk.entries[SHARDS] if name not in known]:
            await self._disk.remove(SHARDS, name)

    def close(self) -> None:
        """End the threads."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def catalog(self, uid: str) -> list[str]:
        """Names of a job's shards, for its peers."""
        job = self._jobs.get(uid)
        return list(job.shards) if job is not None else []

    async def open(self, uid: str, key: str, sha256: str) -> Held | None:
        """Open a shard of the job; None if this node does not have it, or cannot read it."""
        job = self._jobs.get(uid)
        shard = next((each for each in _shards(job) if (each.key, each.sha256) == (key, sha256)), None)
        if job is None or shard is None:
            return None
        try:
            opened = await self._disk.open(SHARDS, shard.name)
        except DiskBypassed:
            return None
        if opened is None:  # corrupt, or evicted for the free-space floor
            job.shards.pop(shard.name, None)
            return None
        return Held(opened.descriptor, opened.footer.length, shard.sha256)

    async def keep(self, shard: Shard, source: int) -> None:
        """Copy a file that a rank has written, and verify its checksum. Raises Refused."""
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise Refused(Code.MALFORMED, "the descriptor is not one of a regular file")

        async def write(partial: Partial) -> None:
            await self._copy(source, partial, shard)

        await self.add(shard, write)

    async def add(self, shard: Shard, write: Callable[[Partial], Awaitable[None]]) -> None:
        """Add a shard that `write` writes and verifies. Concurrent calls for one shard write once. Raises Refused."""
        while (other := self._adding.get(shard.name)) is not None:
            await asyncio.wait((other,))
        job = self._jobs.setdefault(shard.uid, _Job())
        job.used_at = self._now()
        if shard.name in job.shards and self._disk.has(SHARDS, shard.name):
            if shard.own and not job.shards[shard.name].own:
                job.shards[shard.name] = shard
            return
        done = self._adding[shard.name] = asyncio.get_running_loop().create_future()
        try:
            await self._add(shard, write)
            job.shards[shard.name] = shard
            await self._drop(surplus(job.shards.values(), job.confirmed))
            await self._save()
        except DiskBypassed as error:
            raise Refused(Code.NO_ROOM if isinstance(error, NoRoom) else "bypass", str(error)) from None
        finally:
            del self._adding[shard.name]
            done.set_result(None)

    async def receive(self, gang: Gang, message: Message, stream: Stream) -> None:
        """Take a copy that a peer offers. Raises PeerError."""
        try:
            shard = msgspec.convert({**message, "uid": gang.uid, "own": False}, Shard)
        except msgspec.ValidationError as error:
            raise PeerError(Code.MALFORMED, str(error)) from None
        confirmed = str(message.get("confirmed", ""))[:1024]
        sent = False

        async def write(partial: Partial) -> None:
            nonlocal sent
            await stream.send({"go": True})
            sent = True
            try:
                await receive_file(
                    stream.reader,
                    partial.descriptor,
                    shard.size_bytes,
                    shard.sha256,
                    pace=self._pace,
                    threads=self.threads,
                    pause=lambda count: 0.0,
                )
            except WriteFailed as error:
                self._disk.failed(error.error)
                raise DiskBypassed(str(error)) from None

        try:
            await self.add(shard, write)
            await self.confirm(gang.uid, confirmed)
        except Refused as error:
            # After "go" raw bytes are on their way, so the connection cannot be used on.
            raise PeerError(Code.GONE if sent else error.code, str(error)) from None
        await stream.send({"kept": True})

    async def confirm(self, uid: str, checkpoint: str) -> None:
        """Record the job's newest confirmed checkpoint, and drop older ones."""
        job = self._jobs.get(uid)
        if job is None or not checkpoint or job.confirmed == checkpoint:
            return
        by_path = {shard.checkpoint: shard.age for shard in job.shards.values()}
        if by_path.get(checkpoint, (-1, -1)) < by_path.get(job.confirmed, (-1, -1)):
            return  # a late report about an older one
        job.confirmed = checkpoint
        await self._drop(surplus(job.shards.values(), checkpoint))
        await self._save()

    async def sweep(self) -> None:
        """Drop shards of jobs that had no reader here for long."""
        active, now = self._active(), self._now()
        for uid, job in list(self._jobs.items()):
            if uid in active:
                job.used_at = now
            elif now - job.used_at > AGE_S:
                await self._forget(uid)

    def failed(self, error: OSError) -> None:
        """Bypass the disk, because a shard's file could not be written."""
        self._disk.failed(error)

    def used_bytes(self, uid: str) -> int:
        """Bytes of a job's shards on this node."""
        return sum(each.size_bytes for each in _shards(self._jobs.get(uid)))

    async def _add(self, shard: Shard, write: Callable[[Partial], Awaitable[None]]) -> None:
        footer = Footer(shard.name, shard.size_bytes, shard.sha256, shard.uid, {"key": shard.key})
        room = shard.size_bytes + footer_bytes(footer)
        await self._reserve(shard.uid, room)
        try:
            partial = await self._disk.begin(shard.name)
            try:
                await write(partial)
                await self._disk.add(SHARDS, partial, footer)
            except BaseException:
                self._disk.discard(partial)
                raise
        finally:
            self._disk.release(room)

    async def _reserve(self, uid: str, room: int) -> None:
        """Make room in the protected area: first shards of jobs without readers leave, the oldest first."""
        while True:
            try:
                if sum(len(job.shards) for job in self._jobs.values()) >= SHARDS_MAX:
                    raise NoRoom(f"there are {SHARDS_MAX} checkpoint shards")
                return await self._disk.reserve(SHARDS, room)
            except NoRoom:
                others = [each for each in self._jobs if each != uid and each not in self._active()]
                others = [each for each in others if self._jobs[each].shards]
                if not others:
                    raise
                await self._forget(min(others, key=lambda each: self._jobs[each].used_at))

    async def _copy(self, source: int, partial: Partial, shard: Shard) -> None:
        copy = _Copy(source, partial.descriptor)
        future: asyncio.Future[int] | None = None
        try:
            while True:
                future = asyncio.get_running_loop().run_in_executor(self.threads, copy.step)
                done, _ = await asyncio.wait((future,), timeout=_CHUNK_S)
                if not done:
                    self._disk.failed(OSError(errno.ETIMEDOUT, "copying a shard hangs"))
                    raise DiskBypassed("copying a shard hangs")
                if not future.result() or copy.offset > shard.size_bytes:
                    break
        except WriteFailed as error:
            self._disk.failed(error.error)
            raise DiskBypassed(str(error)) from None
        except OSError as error:
            raise Refused(Code.MISSING, f"the rank's file cannot be read: {error.strerror}") from None
        finally:
            if future is not None:
                future.add_done_callback(lambda ended: copy.close())  # a step that hangs still uses the descriptors
        if copy.offset != shard.size_bytes or copy.digest.hexdigest() != shard.sha256:
            raise Refused(Code.WRONG_BYTES, "the rank's file does not have the given size and checksum")

    async def _drop(self, shards: list[Shard]) -> None:
        for shard in shards:
            self._jobs[shard.uid].shards.pop(shard.name, None)
            await self._disk.remove(SHARDS, shard.name)

    async def _forget(self, uid: str) -> None:
        await self._drop(list(_shards(self._jobs[uid])))
        self._jobs.pop(uid, None)
        await self._save()

    async def _save(self) -> None:
        """Write the index. If that fails, the next start removes what it does not name."""
        async with self._saving:
            text = msgspec.json.encode(self._jobs)
            try:
                await self._disk.call(lambda: self._write(text), len(text))
            except DiskBypassed as error:
                log.warning("the index of checkpoint shards was not written: %s", error)

    def _write(self, text: bytes) -> None:
        new = self._path.with_suffix(".new")
        new.write_bytes(text)
        os.rename(new, self._path)

    def _load(self) -> dict[str, _Job]:
        try:
            return _index.decode(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError:
            log.warning("the index of checkpoint shards is damaged: all shards on this node are removed")
            return {}


class _Copy:
    """A copy in steps that run in threads, with duplicates of both descriptors."""

    def __init__(self, source: int, target: int) -> None:
        self._source = os.dup(source)
        self._target = os.dup(target)
        self.digest = hashlib.sha256()
        self.offset = 0

    def step(self) -> int:
        """Copy some bytes, and return their number. Raises OSError of the source of the target."""
        data = os.pread(self._source, _CHUNK_BYTES, self.offset)
        self.digest.update(data)
        try:
            write_all(self._target, data)
        except OSError as error:
            raise WriteFailed(error) from None
        self.offset += len(data)
        return len(data)

    def close(self) -> None:
        """Close the duplicates."""
        os.close(self._source)
        os.close(self._target)


def _shards(job: _Job | None) -> list[Shard]:
    return list(job.shards.values()) if job is not None else []
