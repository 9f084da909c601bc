"""Writes the node's NodeHealth, one request at a time, at the pace of `pace.py`.

One JSON patch replaces the whole status: readers never see half of it, and fields with default values disappear. If the
object does not exist, the agent creates it with the node as owner, so that it is deleted with the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from muster.agent.api import JSON_PATCH, AgentApi, retry_after_s
from muster.agent.aside import Aside, StillBusyError
from muster.agent.cachedapi import CachedApi
from muster.agent.check import Host
from muster.agent.identity import Facts, boot_id, facts
from muster.agent.pace import Pace
from muster.agent.record import Record
from muster.api.node_health import NodeHealth, NodeHealthStatus
from muster.fleet.health.finding import Finding
from muster.fleet.health.peers import UNREACHED
from muster.kube.errors import AlreadyExists, ApiError, ConfigError, NotFound
from muster.kube.nodetoken import node_of_token
from muster.kube.objects.meta import KubeObject, ObjectMeta, OwnerReference
from muster.kube.objects.node import Node
from muster.kube.objects.struct import decode, encode, to_dict
from muster.kube.progress import Progress

log = logging.getLogger(__name__)

FACTS_PERIOD_S: Final = 60.0
_FACTS_TIMEOUT_S: Final = 10.0
_LOOP: Final = "writer"
_LATE_S: Final = 120.0
CONFIRMED: Final = ("reach", UNREACHED)
"""Check and code of reports that are written again at a steady pace while they hold."""


class Writer:
    """Keeps the NodeHealth of one node up to date.

    Args:
        api: the API server.
        node: name of the node.
        pace: decides when to write.
        host: the location of the node's files.
        versions: (of the agent, of the policy).
        progress: marked when the loop moves.
    """

    def __init__(
        self,
        api: AgentApi | CachedApi,
        node: str,
        pace: Pace,
        host: Host,
        versions: tuple[str, str],
        progress: Progress,
    ) -> None:
        self._api = api
        self._node = node
        self._pace = pace
        self._host = host
        self._versions = versions
        self._progress = progress
        self._record = Record()
        self._uid = ""
        self._facts = Facts(boot_id=boot_id(host))  # always needed: a record without a boot ID is ignored
        self._facts_s = float("-inf")
        self._aside = Aside("facts")
        self._wake = asyncio.Event()
        self._path = NodeHealth.RESOURCE.path(None, node)
        self._failing_since_s: float | None = None
        self.writes: Counter[str] = Counter()
        """Number of requests by outcome: ok, or the reason of the failure."""

    def take(self, findings: Sequence[Finding]) -> None:
        """Take the findings of a check. Returns at once."""
        now_s = asyncio.get_running_loop().time()
        new, grown = self._record.add(findings)
        if new:
            self._pace.new(now_s)
        if grown:
            self._pace.grown(now_s)
        if grown and any((each.check, each.code) == CONFIRMED for each in findings):
            self._pace.confirmed(now_s)
        if new or grown:
            self._wake.set()

    async def run(self) -> None:
        """Write until cancelled. A refused or unanswered request is retried later."""
        self._progress.expect(_LOOP, _LATE_S)
        clock = asyncio.get_running_loop().time
        while True:
            self._progress.mark(_LOOP)
            if clock() >= self._facts_s + FACTS_PERIOD_S:
                await self._look_at_facts(clock())
            self._wake.clear()
            wait_s = min(self._pace.due_s(), self._facts_s + FACTS_PERIOD_S) - clock()
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), wait_s)
                continue
            await self._write()

    @property
    def held(self) -> int:
        """Number of findings held."""
        return len(self._record)

    @property
    def failing_s(self) -> float:
        """Seconds since the first of the requests that failed in a row; 0 after a request that succeeded."""
        if self._failing_since_s is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._failing_since_s

    async def _write(self) -> None:
        clock = asyncio.get_running_loop().time
        self._pace.tried(clock())
        try:
            await self._know_node()
            await self._patch()
        except (ApiError, ConfigError) as error:
            reason = (error.reason or str(error.status)) if isinstance(error, ApiError) else "Config"
            self.writes[reason] += 1
            if self._failing_since_s is None:
                self._failing_since_s = clock()
            wait_s = retry_after_s(error) if isinstance(error, ApiError) else None
            self._pace.failed(clock(), wait_s, random.random())
            log.warning(
                "the record is not written, and is tried again in %.0f s: %s", self._pace.due_s() - clock(), error
            )
        else:
            self.writes["ok"] += 1
            self._failing_since_s = None
            self._pace.written(clock())

    async def _know_node(self) -> None:
        """Learn the node's UID and the findings in its object, so that a restart neither forgets nor repeats any.

        A pod's token contains the UID. With another token, the agent reads the Node object once.
        """
        name, uid = node_of_token(await self._api.authorization())
        if name and name != self._node:
            raise ConfigError(f"the token is bound to node {name}, not to {self._node}: correct --node")
        if not uid and not self._uid:
            uid = self._own(await self._api.request("GET", Node.RESOURCE.path(None, self._node))).uid
        if not uid or uid == self._uid:
            return
        record = Record()
        with contextlib.suppress(NotFound):
            record = self._before(await self._api.request("GET", self._path), uid)
        if not self._uid:  # otherwise it is another node now, and earlier findings are not about it
            record.add(self._record.findings)
        self._uid, self._record = uid, record

    async def _patch(self) -> None:
        body = encode([{"op": "add", "path": "/status", "value": to_dict(self._status())}])
        try:
            answer = await self._api.request("PATCH", f"{self._path}/status", body, JSON_PATCH)
        except NotFound:
            owner = OwnerReference(api_version="v1", kind="Node", name=self._node, uid=self._uid)
            made = NodeHealth(metadata=ObjectMeta(name=self._node, owner_references=(owner,)))
            with contextlib.suppress(AlreadyExists):
                await self._api.request("POST", NodeHealth.RESOURCE.path(None), encode(made))
            answer = await self._api.request("PATCH", f"{self._path}/status", body, JSON_PATCH)
        self._own(answer)

    def _before(self, answer: bytes, uid: str) -> Record:
        """Return the findings in the object, if it is about this node."""
        self._own(answer)
        try:
            before = decode(answer, NodeHealth).status
        except msgspec.DecodeError as error:  # an unreadable object must not keep the agent from writing
            log.warning("the record has another version and is replaced: %s", error)
            return Record()
        return Record(before.findings, before.dropped) if before.node_uid == uid else Record()

    def _own(self, answer: bytes) -> KubeObject:
        """Decode the answer and check that it is this node's object. A proxy's answer is not a successful write."""
        try:
            found = decode(answer, KubeObject)
        except msgspec.DecodeError as error:
            raise ApiError(0, "Unreadable", f"the answer does not come from an API server: {error}") from error
        if found.name != self._node:
            raise ApiError(0, "Unreadable", f"the answer is about {found.name!r}, not about this node")
        return found

    def _status(self) -> NodeHealthStatus:
        now_s = time.time()
        findings, dropped = self._record.shown(now_s)
        return NodeHealthStatus(
            node_uid=self._uid,
            boot_id=self._facts.boot_id,
            driver=self._facts.driver,
            gpus=self._facts.gpus,
            agent_version=self._versions[0],
            policy_version=self._versions[1],
            time=datetime.fromtimestamp(int(now_s), UTC),
            findings=findings,
            dropped=dropped,
        )

    async def _look_at_facts(self, now_s: float) -> None:
        """Read the facts again. A changed driver or number of GPUs is written; if the driver hangs, the facts stay."""
        self._facts_s = now_s
        with contextlib.suppress(TimeoutError, StillBusyError):
            async with asyncio.timeout(_FACTS_TIMEOUT_S):
                seen = await self._aside.run(facts, self._host)
                if seen != self._facts:
                    self._facts = seen
                    self._pace.new(now_s)
