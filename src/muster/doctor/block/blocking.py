"""Creates, lists and removes blocks on an API server that may be saturated: each request is retried for a while."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from muster.doctor.block.account import Account, why_protected
from muster.doctor.block.block import LEVEL, Block
from muster.doctor.block.escapes import FAMILIES
from muster.doctor.block.flowschema import (
    ANNOTATION_REMOVER,
    REMOVER,
    SELECTOR,
    block_of,
    level,
    schema_of,
    why_ineffective,
)
from muster.doctor.samples import Page, parse
from muster.kube.client import Client
from muster.kube.errors import AlreadyExists, ApiError, Conflict, NotFound, ServerTimeout, TooManyRequests, Unavailable
from muster.kube.objects.core import ServiceAccount
from muster.kube.objects.flowcontrol import FlowSchema, PriorityLevelConfiguration
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.struct import decode

T = TypeVar("T")

REQUEST_S: Final = 10.0
"""Deadline of one request. A queue of the API server holds a request for up to 15 s by default."""
_PAUSE_S, _PAUSE_MOST_S = 0.1, 2.0
_APPLIED_S: Final = 5.0
_EXPLAIN_S: Final = 10.0
_WHOAMI: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_PAGE: Final = 100
_BLOCKS_MAX: Final = 1000


class BlockError(Exception):
    """The account was not blocked, or not unblocked. The message says why, and `hint` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Readiness(msgspec.Struct, frozen=True):
    """What is known before a block.

    Attributes:
        caller: the API server's name of the user who blocks; "" if not known.
        account_exists: whether the service account exists; None if that is not known.
        level: the level of blocked accounts; None if it does not exist.
    """

    caller: str
    account_exists: bool | None
    level: PriorityLevelConfiguration | None

    @property
    def removed_by_controller(self) -> bool:
        """Returns whether a controller of Muster removes blocks that have ended."""
        return self.level is not None and self.level.metadata.annotations.get(ANNOTATION_REMOVER) == REMOVER


class Blocking:
    """Requests about blocks, all within one deadline.

    Args:
        client: the API server. It should not retry by itself.
        deadline_s: time for all requests of one operation.
        rng: source of jitter.
    """

    def __init__(self, client: Client, *, deadline_s: float, rng: random.Random | None = None) -> None:
        self._client = client
        self._deadline_s = deadline_s
        self._rng = rng or random.Random()

    async def ready(self, account: Account) -> Readiness:
        """Read what is known before a block. Raises ApiError, BlockError."""
        give_up_at = self._give_up_at()
        caller, exists, found = await asyncio.gather(
            self._optional(self._caller),
            self._optional(lambda: self._exists(account)),
            self._persist("read the priority level", self._level, give_up_at),
        )
        return Readiness(caller or "", exists, found)

    async def install(self, found: PriorityLevelConfiguration | None) -> None:
        """Create the level of blocked accounts, or set one that does not stop its requests."""
        give_up_at = self._give_up_at()

        async def write() -> None:
            wanted = level()
            if found is not None:
                spec = msgspec.to_builtins(wanted.spec)
                spec["limited"]["limitResponse"]["queuing"] = None  # a merge patch would keep it
                patch = {"spec": spec | {"exempt": None}}
                await self._client.patch(PriorityLevelConfiguration, LEVEL, patch)
                return
            with contextlib.suppress(AlreadyExists):
                await self._client.create(wanted)

        await self._persist("create the priority level", write, give_up_at)

    async def block(self, account: Account, seconds: float) -> Block:
        """Block an account, or let its block end `seconds` from now, by the API server's clock."""
        give_up_at = self._give_up_at()
        now = await self._persist("read the time of the API server", self._server_time, give_up_at)
        schema = schema_of(account, now + seconds)

        async def write() -> FlowSchema:
            try:
                return await self._client.create(schema)
            except AlreadyExists:
                patch = {
                    "metadata": {"labels": schema.metadata.labels, "annotations": schema.metadata.annotations},
                    "spec": msgspec.to_builtins(schema.spec),
                }
                return await self._client.patch(FlowSchema, schema.name, patch)

        return block_of(await self._persist(f"block {account.shown}", write, give_up_at))

    async def applied(self, block: Block) -> bool:
        """Wait until an API server has processed the block; False if none said so within 5 s."""
        try:
            async with asyncio.timeout(_APPLIED_S):
                while True:
                    found = await self._client.get(FlowSchema, block.object_name)
                    conditions = {each.type: each.status for each in found.status.conditions or ()}
                    if conditions.get("Dangling") == "False":
                        return True
                    await asyncio.sleep(_PAUSE_S)
        except (ApiError, TimeoutError):
            return False

    async def unblock(self, name: str, uid: str = "") -> bool:
        """Remove a block by the name of its FlowSchema; False if there is none.

        Args:
            name: of the FlowSchema.
            uid: remove only this object.
        """

        async def delete() -> bool:
            try:
                await self._client.delete(FlowSchema, name, uid=uid)
            except (NotFound, Conflict):
                return False
            return True

        return await self._persist("remove the block", delete, self._give_up_at())

    async def current(self, name: str) -> Block | None:
        """Return a block by the name of its FlowSchema; None if there is none."""

        async def read() -> Block | None:
            try:
                return block_of(await self._client.get(FlowSchema, name))
            except NotFound:
                return None

        return await self._persist("read the block", read, self._give_up_at())

    async def blocks(self) -> tuple[list[Block], float]:
        """Return all blocks, and the time of the API server in seconds since 1970 (0 if it cannot be asked)."""

        async def read() -> list[Block]:
            found: list[Block] = []
            token = ""
            while len(found) < _BLOCKS_MAX:
                page = await self._client.list(FlowSchema, label_selector=SELECTOR, limit=_PAGE, continue_=token)
                found += map(block_of, page.items)
                token = page.continue_
                if not token:
                    break
            return found

        blocks = await self._persist("list the blocks", read, self._give_up_at())
        return blocks, await self._optional(self._server_time) or 0.0

    async def surroundings(self) -> tuple[tuple[FlowSchema, ...], Page | None]:
        """Return FlowSchemas and metrics as far as they can be read within 10 s. Never raises."""
        schemas, page = await asyncio.gather(self._optional(self._schemas), self._optional(self._metrics))
        return schemas or (), page

    async def _schemas(self) -> tuple[FlowSchema, ...]:
        return tuple((await self._client.list(FlowSchema, limit=_BLOCKS_MAX)).items)

    async def _metrics(self) -> Page:
        body = await self._client.request("GET", "/metrics", headers={"Accept": "text/plain"})
        return parse(body.decode("utf-8", "replace"), FAMILIES)

    async def _caller(self) -> str:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        body = await self._client.request("POST", _WHOAMI, body=msgspec.json.encode(review))
        name = decode(body, dict)["status"]["userInfo"]["username"]
        return str(name)

    async def _exists(self, account: Account) -> bool | None:
        if not account.namespace:
            return None
        try:
            await self._client.get(ServiceAccount, account.name, account.namespace)
        except NotFound:
            return False
        return True

    async def _level(self) -> PriorityLevelConfiguration | None:
        try:
            return await self._client.get(PriorityLevelConfiguration, LEVEL)
        except NotFound:
            return None

    async def _server_time(self) -> float:
        """Ask for the time with a dry run, which also checks the right to create a block."""
        name = f"muster-block.clock.{secrets.token_hex(8)}"
        probe = schema_of(Account("", name), 0)
        probe = replace(probe, metadata=ObjectMeta(name=name, labels=probe.metadata.labels))
        made = (await self._client.create(probe, dry_run=True)).metadata.creation_timestamp
        if made is None:
            raise BlockError("the API server did not set creationTimestamp in a dry run")
        return made.timestamp()

    def _give_up_at(self) -> float:
        return asyncio.get_running_loop().time() + self._deadline_s

    async def _optional(self, call: Callable[[], Awaitable[T]]) -> T | None:
        try:
            async with asyncio.timeout(min(_EXPLAIN_S, self._deadline_s)):
                return await self._persist("read", call, self._give_up_at())
        except (ApiError, BlockError, TimeoutError, msgspec.DecodeError):
            return None

    async def _persist(self, what: str, call: Callable[[], Awaitable[T]], give_up_at: float) -> T:
        clock = asyncio.get_running_loop().time
        pause_s = _PAUSE_S
        while True:
            try:
                return await call()
            except (TooManyRequests, Unavailable, ServerTimeout) as error:
                if error.reason == "TLSFailure":
                    raise
                wait_s = max(pause_s * self._rng.uniform(0.5, 1.5), error.retry_after_s or 0.0)
                if clock() + wait_s > give_up_at:
                    raise BlockError(
                        f"cannot {what} within {self._deadline_s:g} s: {error.message}",
                        "the API server has no seat for these requests: use a client certificate of group "
                        "system:masters, or an account of group muster-break-glass (docs/doctor-block.md)",
                    ) from error
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)


def check(account: Account, ready: Readiness, namespaces: frozenset[str]) -> None:
    """Raise BlockError if this account should not be blocked without force."""
    why = why_protected(account, namespaces, ready.caller)
    if why:
        raise BlockError(f"{account.shown} is protected: {why}", "--force blocks it all the same")
    if ready.account_exists is False:
        raise BlockError(
            f"there is no {account.shown}", "check the name: kubectl get serviceaccounts -A; or add --force"
        )


def check_level(found: PriorityLevelConfiguration | None) -> None:
    """Raise BlockError if the level of blocked accounts is missing, or would not stop their requests."""
    if found is None:
        raise BlockError(
            f"PriorityLevelConfiguration {LEVEL} does not exist, and a block without it would have no effect",
            "set doctor.breakGlass.enabled in the chart, or add --install to create it now",
        )
    why = why_ineffective(found)
    if why:
        raise BlockError(
            f"PriorityLevelConfiguration {LEVEL} does not stop its requests: {why}", "add --install to correct it"
        )
