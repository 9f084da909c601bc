"""Writes the node's NodeHealth: one request at a time, at the pace that `pace.py` says, and it is right afterwards.

The whole status is replaced in one JSON patch: who reads it never sees half of it, and fields that are back at their
default are gone. Where the record is not there it is made, owned by the node, so that it goes with it.
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
from muster.agent.check import Host
from muster.agent.identity import Facts, boot_id, facts, node_of_token
from muster.agent.pace import Pace
from muster.agent.record import Record
from muster.api.node_health import NodeHealth, NodeHealthStatus
from muster.fleet.health.finding import Finding
from muster.fleet.health.peers import UNREACHED
from muster.kube.errors import AlreadyExists, ApiError, ConfigError, NotFound
from muster.kube.meta import KubeObject, ObjectMeta, OwnerReference
from muster.kube.node import Node
from muster.kube.progress import Progress
from muster.kube.struct import decode, encode, to_dict

log = logging.getLogger(__name__)

FACTS_PERIOD_S: Final = 60.0
_FACTS_TIMEOUT_S: Final = 10.0
_LOOP: Final = "writer"
_LATE_S: Final = 120.0
CONFIRMED: Final = ("reach", UNREACHED)
"""Check and code of reports that are written again at a steady pace while they hold."""


class Writer:
    """Keeps the record of one node.

    Args:
        api: the API server.
        node: name of the node.
        pace: when it may write.
        host: where the node's files are.
        versions: (of the agent, of the policy).
        progress: is told when the loop moves.
    """

    def __init__(
        self, api: AgentApi, node: str, pace: Pace, host: Host, versions: tuple[str, str], progress: Progress
    ) -> None:
        self._api = api
        self._node = node
        self._pace = pace
        self._host = host
        self._versions = versions
        self._progress = progress
        self._record = Record()
        self._uid = ""
        self._facts = Facts(boot_id=boot_id(host))  # without it nobody believes the record, whatever the driver does
        self._facts_s = float("-inf")
        self._aside = Aside("facts")
        self._wake = asyncio.Event()
        self._path = NodeHealth.RESOURCE.path(None, node)
        self.writes: Counter[str] = Counter()
        """Requests by what became of them: ok, or the reason why not."""

    def take(self, findings: Sequence[Finding]) -> None:
        """Take what a check said; returns at once."""
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
        """Write until cancelled. What the API server refuses, or does not answer, is tried again later."""
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
        """Findings of the record."""
        return len(self._record)

    async def _write(self) -> None:
        clock = asyncio.get_running_loop().time
        self._pace.tried(clock())
        try:
            await self._know_node()
            await self._patch()
        except (ApiError, ConfigError) as error:
            reason = (error.reason or str(error.status)) if isinstance(error, ApiError) else "Config"
            self.writes[reason] += 1
            said = retry_after_s(error) if isinstance(error, ApiError) else None
            self._pace.failed(clock(), said, random.random())
            log.warning(
                "the record is not written, and is tried again in %.0f s: %s", self._pace.due_s() - clock(), error
            )
        else:
            self.writes["ok"] += 1
            self._pace.written(clock())

    async def _know_node(self) -> None:
        """Learn the node's UID, and what its record says already: a restart neither forgets nor repeats anything.

        The token says it anew each time. Where it does not (no pod's token), the node is asked for once.
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
        if not self._uid:  # else it is another node now: what was seen on the one before it says nothing of it
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
        """What the record says of this very node."""
        self._own(answer)
        try:
            before = decode(answer, NodeHealth).status
        except msgspec.DecodeError as error:  # nothing that stands there may keep a node from being heard
            log.warning("the record is of another version, and is begun anew: %s", error)
            return Record()
        return Record(before.findings, before.dropped) if before.node_uid == uid else Record()

    def _own(self, answer: bytes) -> KubeObject:
        """The object of this node. Whoever else answers with a 200, such as a proxy, has not written anything."""
        try:
            found = decode(answer, KubeObject)
        except msgspec.DecodeError as error:
            raise ApiError(0, "Unreadable", f"what answers is no API server: {error}") from error
        if found.name != self._node:
            raise ApiError(0, "Unreadable", f"what answers is no API server: it speaks of {found.name!r}")
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
        """A driver that is loaded anew, or a GPU that is gone, is news. One that does not answer changes nothing."""
        self._facts_s = now_s
        with contextlib.suppress(TimeoutError, StillBusyError):
            async with asyncio.timeout(_FACTS_TIMEOUT_S):
                seen = await self._aside.run(facts, self._host)
                if seen != self._facts:
                    self._facts = seen
                    self._pace.new(now_s)
