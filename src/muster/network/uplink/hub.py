"""The hub's side of the connections of agents: who they are, what they report, and the rates that they get.

Every replica of the controller accepts connections. Only the leader's hub is open; others refuse agents, which then
try again. An agent is the node to which its service account token is bound, so it cannot report for another node.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple, Protocol

from muster.kube.errors import ApiError
from muster.kube.frames import FrameTooLong
from muster.kube.objects.auth import NODE_NAME, UserInfo
from muster.network.uplink.cache import NodeRecord, UplinkCache
from muster.network.uplink.metrics import UplinkMetrics
from muster.network.uplink.page import UplinkPage
from muster.network.uplink.streams import BadFrame, encode, receive_from_agent
from muster.network.uplink.wire import (
    FRAME_BYTES_MAX,
    HEARTBEAT_S,
    HELLO_BYTES_MAX,
    HELLO_TIMEOUT_S,
    PROTOCOL,
    Applied,
    FromHub,
    Hello,
    Rates,
    Reason,
    Refused,
    Renewal,
    Report,
    Welcome,
)

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 20_000
HELLOS_MAX: Final = 1_000
"""Connections that are not authenticated yet. More are refused, and come back later."""
REVIEWS_MAX: Final = 32
"""TokenReviews at the same time: 7,500 agents return together after the hub was away."""
RECONNECTS_PER_S: Final = 500
"""Agents spread their return over the time that this rate needs. A TLS handshake takes about a millisecond of CPU."""
BUFFER_BYTES_MAX: Final = 64 * 1024
"""An agent with more unsent bytes gets no rates, until it has read them."""
UNAPPLIED_S: Final = 10.0
"""An agent that does not confirm its rates for this long is disconnected."""
RENEW_S: Final = 0.8 * HEARTBEAT_S
"""A lease is renewed at most this often: an agent that reports each second does not need more."""
FRAMES_MAX: Final = 50
"""Frames that an agent may send in a second."""
_RETRY_S: Final = 2.0
_OFF_RETRY_S: Final = 60.0
_SILENCE_S: Final = 3 * HEARTBEAT_S
_BACKLOG: Final = 4096


class Sending(Protocol):
    """The sending side of a connection."""

    def write(self, data: bytes) -> None:
        """Send bytes, later."""

    def waiting_bytes(self) -> int:
        """Return how many bytes were not sent yet."""

    def abort(self) -> None:
        """Close the connection at once."""

    async def finish(self) -> None:
        """Send what is left, within a short time, and close."""


class Reviewer(Protocol):
    """Finds the node of a token: `muster.kube.tokenreview.TokenReviewer`."""

    async def identify(self, token: str) -> str | None:
        """Return the node; None if the token is not one of an agent. Raises ApiError."""


def agent_node(namespace: str, account: str) -> Callable[[UserInfo], str | None]:
    """Return a function from an authenticated user to the node of its agent.

    The audience of a token does not prove that its pod is an agent: every pod can have tokens with any audience. So
    the service account must be the agents' own.
    """
    wanted = f"system:serviceaccount:{namespace}:{account}"

    def node(user: UserInfo) -> str | None:
        return next(iter(user.extra.get(NODE_NAME, ())), None) if user.username == wanted else None

    return node


class Term(NamedTuple):
    """What an open hub works for: the present term of the leader.

    Attributes:
        cache: records reports.
        epoch: of the term.
        wake: starts a plan soon.
        page: returns what `muster network uplink` shows; None before the first plan.
    """

    cache: UplinkCache
    epoch: str
    wake: Callable[[], None]
    page: Callable[[], UplinkPage | None]


class Session:
    """The connection of one authenticated agent."""

    def __init__(self, sending: Sending, record: NodeRecord, now_s: float) -> None:
        self.sending = sending
        self.record = record
        self.slow_s: float | None = None
        """Since when the agent has not read what was sent."""
        self.renewed_s = float("-inf")
        """When its lease was renewed last without new rates."""
        self._frames, self._second = 0, now_s

    def count(self, now_s: float) -> None:
        """Count a frame. Raises BadFrame if there are too many."""
        if now_s - self._second >= 1.0:
            self._frames, self._second = 0, now_s
        self._frames += 1
        if self._frames > FRAMES_MAX:
            raise BadFrame(f"more than {FRAMES_MAX} frames in a second")


class Hub:
    """Serves agents.

    Args:
        reviewer: authenticates agents.
        metrics: counts connections and refusals.
        clock: monotonic seconds, the same as for the term's cache.
    """

    def __init__(self, reviewer: Reviewer, metrics: UplinkMetrics, *, clock: Callable[[], float]) -> None:
        self._reviewer, self._metrics, self._clock = reviewer, metrics, clock
        self._term: Term | None = None
        self._off = False
        self._sessions: dict[str, Session] = {}
        self._hellos = 0
        self._reviews = asyncio.Semaphore(REVIEWS_MAX)

    @property
    def sessions(self) -> Collection[Session]:
        """The connections of agents."""
        return self._sessions.values()

    def page(self) -> UplinkPage | None:
        """Return what `muster network uplink` shows; None if this process does not allocate."""
        return self._term.page() if self._term is not None else None

    def open(self, term: Term) -> None:
        """Accept agents, for this term."""
        self._term, self._off = term, False

    def close(self, *, off: bool = False) -> None:
        """Disconnect all agents, and refuse them: another replica leads, or with `off`, there is no budget."""
        self._term, self._off = None, off
        for session in [*self._sessions.values()]:
            session.sending.abort()
        self._sessions.clear()
        self._metrics.connections.set(0)

    def send(self, record: NodeRecord, rates: Rates) -> bool:
        """Send rates to a node. Returns whether they were sent: not if its agent is away or does not read.

        If the agent has a new connection since, the rates answer a report that we may not have received on it.
        """
        session = self._sessions.get(record.name)
        if session is None or session.record is not record or rates.answers > record.answers:
            return False
        now = self._clock()
        if session.sending.waiting_bytes() > BUFFER_BYTES_MAX:
            session.slow_s = now if session.slow_s is None else session.slow_s
            if now - session.slow_s > UNAPPLIED_S:
                self._drop(session, "slow")
            return False
        session.slow_s = None
        session.sending.write(encode(rates))
        return True

    def drop_unresponsive(self) -> None:
        """Disconnect agents that do not confirm their rates: their last limits then decay as those of silent nodes."""
        now = self._clock()
        for session in [*self._sessions.values()]:
            since_s = session.record.unconfirmed_s
            if since_s is not None and now - since_s > UNAPPLIED_S:
                log.warning("uplink: node %s does not apply its rates; disconnected", session.record.name)
                self._drop(session, "unapplied")

    def _drop(self, session: Session, why: str) -> None:
        self._metrics.dropped.labels(why).inc()
        session.sending.abort()
        self._left(session)

    async def serve(self, reader: asyncio.StreamReader, sending: Sending) -> None:
        """Serve one connection until it ends."""
        if self._hellos >= HELLOS_MAX or len(self._sessions) >= CONNECTIONS_MAX:
            await self._refuse(sending, Reason.BUSY, "too many agents connect at once", self._spread_s())
            return
        self._hellos += 1
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await receive_from_agent(reader, HELLO_BYTES_MAX)
                refused = await self._examine(hello)
        except (TimeoutError, BadFrame, FrameTooLong, OSError, asyncio.IncompleteReadError):
            self._metrics.refused.labels("NoHello").inc()
            sending.abort()
            return
        finally:
            self._hellos -= 1
        term = self._term
        if refused is None and term is None:  # lost during the review
            refused = Refused(Reason.NOT_LEADING, "another replica leads", _RETRY_S)
        if refused is not None or term is None or not isinstance(hello, Hello):
            if refused is not None:
                await self._refuse(sending, refused.reason, refused.message, refused.retry_s)
            return
        await self._session(term, hello.node, reader, sending)

    async def _examine(self, hello: object) -> Refused | None:
        """Return why the agent is refused; None if it is accepted."""
        if not isinstance(hello, Hello):
            raise BadFrame("the agent did not begin with a hello")
        if hello.protocol != PROTOCOL:
            message = f"protocol {hello.protocol} is not spoken here, {PROTOCOL} is; update the agent or the controller"
            return Refused(Reason.PROTOCOL, message, _OFF_RETRY_S)
        if self._term is None:
            if self._off:
                return Refused(Reason.OFF, "the section uplink of the configuration is not enabled", _OFF_RETRY_S)
            return Refused(Reason.NOT_LEADING, "another replica leads", _RETRY_S)
        try:
            async with self._reviews:
                node = await self._reviewer.identify(hello.token)
        except ApiError as error:
            log.debug("uplink: the token of node %s cannot be reviewed: %s", hello.node, error)
            return Refused(Reason.BUSY, "the API server does not review the token", self._spread_s())
        if node is None:
            return Refused(Reason.UNAUTHENTICATED, "the token is not one of an agent", _RETRY_S)
        if node != hello.node:
            return Refused(Reason.WRONG_NODE, "the token is bound to another node", _OFF_RETRY_S)
        return None

    async def _session(self, term: Term, node: str, reader: asyncio.StreamReader, sending: Sending) -> None:
        before = self._sessions.get(node)
        if before is not None:  # the agent came back before we noticed that its connection had ended
            self._drop(before, "replaced")
        record = term.cache.connected(node)
        session = self._sessions[node] = Session(sending, record, self._clock())
        self._metrics.connections.set(len(self._sessions))
        sending.write(encode(Welcome(term.epoch, HEARTBEAT_S, self._spread_s())))
        try:
            while self._term is term and self._sessions.get(node) is session:
                async with asyncio.timeout(_SILENCE_S):
                    message = await receive_from_agent(reader, FRAME_BYTES_MAX)
                if self._term is not term or self._sessions.get(node) is not session:
                    return
                self._handle(term, session, message)
        except (BadFrame, FrameTooLong) as error:
            log.warning("uplink: node %s: %s; disconnected", node, error)
            self._metrics.dropped.labels("malformed").inc()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            self._metrics.dropped.labels("lost").inc()
        finally:
            sending.abort()
            self._left(session)

    def _handle(self, term: Term, session: Session, message: object) -> None:
        now, record = self._clock(), session.record
        session.count(now)
        if isinstance(message, Report):
            changed = term.cache.reported(record, message, now)
            if record.sent is not None and not record.stale and now - session.renewed_s >= RENEW_S:
                session.renewed_s = now
                session.sending.write(encode(Renewal(record.sent.seq, message.seq)))
        elif isinstance(message, Applied):
            changed = term.cache.applied(record, message, term.epoch, now)
        else:
            raise BadFrame("the agent sent a second hello")
        if changed:
            term.wake()

    def _left(self, session: Session) -> None:
        if self._sessions.get(session.record.name) is not session:
            return
        del self._sessions[session.record.name]
        self._metrics.connections.set(len(self._sessions))
        if self._term is not None:
            self._term.cache.disconnected(session.record)

    def _spread_s(self) -> float:
        nodes = len(self._term.cache.nodes) if self._term is not None else 0
        return max(1.0, nodes / RECONNECTS_PER_S)

    async def _refuse(self, sending: Sending, reason: Reason, message: str, retry_s: float) -> None:
        self._metrics.refused.labels(reason.value).inc()
        answer: FromHub = Refused(reason, message, retry_s)
        sending.write(encode(answer))
        await sending.finish()


class StreamSending:
    """The sending side of a connection of asyncio."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> None:
        """Send bytes, later."""
        self._writer.write(data)

    def waiting_bytes(self) -> int:
        """Return how many bytes were not sent yet."""
        return self._writer.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def finish(self) -> None:
        """Send what is left, within a second, and close."""
        self._writer.close()
        with suppress(OSError, TimeoutError, ssl.SSLError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
        self._writer.transport.abort()


@asynccontextmanager
async def serve_hub(hub: Hub, context: ssl.SSLContext, host: str, port: int) -> AsyncIterator[int]:
    """Serve agents by TLS while the context is open; yields the port."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sending = StreamSending(writer)
        try:
            await hub.serve(reader, sending)
        finally:
            sending.abort()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))  # asyncio logs the cancellation of tasks that it makes itself
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(
        connected,
        host,
        port,
        ssl=context,
        backlog=_BACKLOG,
        limit=FRAME_BYTES_MAX,
        ssl_handshake_timeout=HELLO_TIMEOUT_S,
    )
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in [*tasks]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
