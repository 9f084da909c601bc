"""The controller's HTTPS server for pods: /v1/supervise for supervisors, /v1/report and /v1/restore for the SDK."""

from __future__ import annotations

import logging
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Protocol

import msgspec
from aiohttp import web
from msgspec.structs import replace

from muster.api.names import ANNOTATION_GANG_UID, LABEL_GANG
from muster.api.training_job_status import IDLE_RANKS_MAX, CheckpointSource, CheckpointStatus
from muster.kube.connection.pki import KeyPair
from muster.kube.errors import ApiError
from muster.kube.objects.pod import Pod
from muster.kube.tokenreview import TokenReviewer
from muster.trainingjobs.attempts.restoring import NotThisCheckpoint, Verdict
from muster.trainingjobs.pods.slots import attempt_of
from muster.trainingjobs.rendezvous.members import Members
from muster.trainingjobs.rendezvous.overload import Strain
from muster.trainingjobs.rendezvous.tokens import PodIdentity
from muster.trainingjobs.rendezvous.untyped_exits import how_of
from muster.trainingjobs.snapshot import IdleRank, Member, RankExit, RankTrace, SupervisorState, Unwritable

log = logging.getLogger(__name__)

PROTOCOL: Final = 1
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Largest step. The API server would refuse a whole status with a larger number."""
_BODY_BYTES_MAX: Final = 256 * 1024
_RETRY_AFTER_S: Final = 2
_TAIL_LINES: Final = 20
_TAIL_CHARS: Final = 400
_TRACES_MAX: Final = 2
_OTHERS_MAX: Final = 3
_STATE_CHARS: Final = 16
_ADDRESS_CHARS: Final = 64
_PATH_CHARS: Final = 8192
_BACKLOG: Final = 4096
_DEFAULT_GRACE_S: Final = 30
"""The API server's default for `terminationGracePeriodSeconds`."""
_REPORTERS_MAX: Final = 10_000
"""Most pods that are remembered after their deletion. One rank of each job reports."""
_MUTE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 6_000),
)
"""TCP keep-alive: detects a machine without power within 6 s (tcp(7)). The kernel of a slow supervisor still answers.
"""


class SuperviseRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Body of /v1/supervise."""

    protocol: int
    revision: int
    state: SupervisorState
    attempt: int
    shell_port: int
    address: str
    node_rank: int = -1
    exit: RankExit | None = None
    looking: bool = False
    looked: dict[str, bool | None] | None = None
    found: CheckpointSource | None = None
    others: tuple[CheckpointSource, ...] = ()
    unwritable: Unwritable | None = None
    idle: tuple[IdleRank, ...] = ()
    traces: tuple[RankTrace, ...] = ()
    cache_address: str = ""
    cache_expires: int = 0


class ReportedCheckpoint(msgspec.Struct, frozen=True, rename="camel"):
    """A complete checkpoint.

    Attributes:
        path: its path or URL.
        step: its step.
        bytes: total size of its shards.
        shards: number of its shards.
        manifest: SHA-256 of its manifest, in hex.
        blocked_seconds: how long the save stopped the training.
        upload_seconds: how long the shards took to reach the store.
    """

    path: Annotated[str, msgspec.Meta(max_length=_PATH_CHARS)]
    step: Int64 = 0
    bytes: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    shards: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    manifest: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")] = ""
    blocked_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    upload_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None


def confirmed(said: ReportedCheckpoint, attempt: int, time: datetime) -> CheckpointStatus:
    """The entry of the status for a reported checkpoint of this attempt."""
    return CheckpointStatus(
        path=said.path,
        step=said.step,
        attempt=attempt,
        time=time,
        bytes=said.bytes,
        shards=said.shards,
        manifest=said.manifest,
    )


class CheckpointProblem(msgspec.Struct, frozen=True):
    """A checkpoint that could not be saved. The program trains on."""

    path: Annotated[str, msgspec.Meta(max_length=_PATH_CHARS)]
    step: Int64 = 0
    message: str = ""


class ReportRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Body of /v1/report."""

    attempt: int
    step: Int64 | None = None
    total_steps: Int64 | None = None
    metrics: dict[str, float] | None = None
    checkpoint: ReportedCheckpoint | None = None
    checkpoint_problem: CheckpointProblem | None = None


class RestoreRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Body of /v1/restore: the result of a node's ranks for the checkpoint that they restore.

    Attributes:
        attempt: the attempt of the ranks.
        path: the checkpoint.
        node_rank: the node's rank; only for the log.
        ok: every rank of the node has read and verified its part.
        ranks: number of the node's ranks.
        seconds: how long that took.
        bytes_from: bytes that the node read, by source: bucket, peer, disk.
        reason: if it failed, why.
        message: the same as text.
    """

    attempt: int
    path: Annotated[str, msgspec.Meta(max_length=_PATH_CHARS)]
    ok: bool
    node_rank: int = -1
    ranks: int = 0
    seconds: float = 0.0
    bytes_from: dict[str, int] = msgspec.field(default_factory=dict)
    reason: str = ""
    message: str = ""


class Stale(Exception):
    """Raised for a report of an attempt that is over."""

    def __init__(self, current_attempt: int) -> None:
        """Store the current attempt."""
        super().__init__(f"attempt {current_attempt} is the current one")
        self.current_attempt = current_attempt


class Jobs(Protocol):
    """The part of the controller that the server uses."""

    @property
    def serving(self) -> bool:
        """Returns whether this replica leads and its caches are complete."""

    def pod(self, key: str) -> Pod | None:
        """A pod of ours by namespace/name."""

    async def is_gone(self, job_key: str, job_uid: str) -> bool:
        """Returns whether the job does not exist any more. Without proof, returns False."""

    async def report(self, job_key: str, job_uid: str, report: ReportRequest) -> None:
        """Store a report. On return, a checkpoint is in the job's status. Raises Stale, ApiError."""

    async def restore(self, job_key: str, job_uid: str, pod: Pod, said: RestoreRequest) -> Verdict:
        """Store a node's result, and wait for a moment for the verdict. Raises Stale, NotThisCheckpoint."""


class Question(Protocol):
    """The part of an HTTP request that the server reads."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers, whatever their case."""

    async def read(self) -> bytes:
        """Its body."""


class RendezvousServer:
    """Answers requests of pods. A pod's identity comes from its token, never from the body."""

    def __init__(self, jobs: Jobs, members: Members, reviewer: TokenReviewer[PodIdentity]) -> None:
        """Create the server; `app` returns its application."""
        self._jobs = jobs
        self._members = members
        self._reviewer = reviewer
        self._reporters: dict[str, Pod] = {}
        self._supervise = msgspec.json.Decoder(SuperviseRequest)
        self._report = msgspec.json.Decoder(ReportRequest)
        self._restore = msgspec.json.Decoder(RestoreRequest)

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.router.add_post("/v1/supervise", self.supervise)
        app.router.add_post("/v1/report", self.report)
        app.router.add_post("/v1/restore", self.restore)
        return app

    async def supervise(self, request: Question) -> web.Response:
        """The long poll of a supervisor."""
        pod, refusal = await self._caller(request)
        if pod is None:
            return refusal
        try:
            said = self._supervise.decode(await request.read())
        except msgspec.DecodeError as error:
            return _answer(400, {"message": f"not a supervise request: {error}"})
        if said.protocol != PROTOCOL:
            return _answer(400, {"message": f"protocol {said.protocol} is not spoken here, {PROTOCOL} is"})
        member = Member(
            pod_uid=pod.uid,
            made_for=attempt_of(pod),
            state=said.state,
            attempt=said.attempt,
            address=said.address,
            shell_port=said.shell_port,
            node_rank=said.node_rank,
            idle=tuple(replace(each, state=each.state[:_STATE_CHARS]) for each in said.idle[:IDLE_RANKS_MAX]),
            traces=tuple(replace(each, lines=_tail(each.lines)) for each in said.traces[:_TRACES_MAX]),
            exit=_bounded(said.exit),
            looking=said.looking,
            looked=said.looked,
            found=said.found,
            others=said.others[:_OTHERS_MAX],
            unwritable=said.unwritable,
            cache_address=said.cache_address[:_ADDRESS_CHARS],
            cache_expires=said.cache_expires,
        )
        job_uid, attempt = _gang_uid(pod), max(member.attempt, member.made_for)
        if self._members.lacks_directive(job_uid, attempt) and await self._jobs.is_gone(_job_key(pod), job_uid):
            self._members.job_is_gone(job_uid, attempt, _grace_s(pod))
        answer = await self._members.poll(job_uid, _job_key(pod), member, said.revision)
        if not self._jobs.serving:
            return _not_leading()
        return _answer(200, answer)

    async def report(self, request: Question) -> web.Response:
        """Progress or a checkpoint from a rank."""
        pod, refusal = await self._caller(request, self._reporters)
        if pod is None:
            return refusal
        self._reporters[pod.uid] = pod
        if len(self._reporters) > _REPORTERS_MAX:
            del self._reporters[next(iter(self._reporters))]
        try:
            report = self._report.decode(await request.read())
        except msgspec.DecodeError as error:
            return _answer(400, {"message": f"not a report: {error}"})
        try:
            await self._jobs.report(_job_key(pod), _gang_uid(pod), report)
        except Stale as stale:
            return _answer(409, {"currentAttempt": stale.current_attempt})
        except ApiError as error:
            return _answer(503, {"message": f"not written: {error}"}, {"Retry-After": "1"})
        answer = {"checkpointNow": self._members.checkpoint_now(_gang_uid(pod))}
        if self._members.backfilled(_gang_uid(pod)):
            answer["backfilled"] = True
        return _answer(200, answer)

    async def restore(self, request: Question) -> web.Response:
        """The long poll of a node that has read a checkpoint: may its ranks train?"""
        pod, refusal = await self._caller(request, self._reporters)
        if pod is None:
            return refusal
        try:
            said = self._restore.decode(await request.read())
        except msgspec.DecodeError as error:
            return _answer(400, {"message": f"not a restore request: {error}"})
        try:
            verdict = await self._jobs.restore(_job_key(pod), _gang_uid(pod), pod, said)
        except Stale as stale:
            return _answer(409, {"currentAttempt": stale.current_attempt})
        except NotThisCheckpoint:
            return _answer(400, {"message": f"attempt {said.attempt} does not start from {said.path}"})
        if not self._jobs.serving:
            return _not_leading()
        answer: dict[str, Any] = {"verdict": verdict.kind}
        if verdict.checkpoint is not None:
            chosen = verdict.checkpoint
            answer["checkpoint"] = {"path": chosen.path, "step": chosen.step, "manifest": chosen.manifest}
        return _answer(200, answer)

    async def _caller(
        self, request: Question, gone: Mapping[str, Pod] = MappingProxyType({})
    ) -> tuple[Pod | None, web.Response]:
        """Return the requesting pod, or None and the reason of the refusal.

        `gone` has deleted pods by UID that still get an answer: a rank on a lost node may still report, and must learn
        that its attempt is over.
        """
        if not self._jobs.serving:
            return None, _not_leading()
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None, _answer(401, {"message": "a bearer token is needed"})
        try:
            identity = await self._reviewer.identify(token.strip())
        except ApiError as error:
            log.warning("TokenReview: %s", error)
            return None, _answer(503, {"message": "the token cannot be checked now"}, {"Retry-After": "1"})
        if identity is None:
            return None, _answer(401, {"message": "not a token of a pod for muster.dev"})
        pod = self._jobs.pod(f"{identity.namespace}/{identity.name}") or gone.get(identity.uid)
        if pod is None:  # the cache may lag
            return None, _answer(503, {"message": "this pod is not known yet"}, {"Retry-After": "1"})
        if pod.uid != identity.uid or not _gang_uid(pod):
            return None, _answer(401, {"message": "this pod is not a member of a training job"})
        return pod, web.Response()


@asynccontextmanager
async def serve_tls(
    app: web.Application, pair: KeyPair, host: str, port: int, strain: Strain | None = None
) -> AsyncIterator[int]:
    """Serve with TLS while the context is open, and yield the port. If a client disconnects, its handler is cancelled.

    `strain` watches the connections that wait to be accepted.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory(prefix="muster-tls-") as folder:
        certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        pair.write(certificate, key)
        context.load_cert_chain(certificate, key)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    for level, option, value in _MUTE:  # accepted sockets inherit these options
        listener.setsockopt(level, option, value)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, ssl_context=context, backlog=_BACKLOG).start()
        if strain is not None:
            strain.listener = listener
        yield int(listener.getsockname()[1])
    finally:
        if strain is not None:
            strain.listener = None
        await runner.cleanup()
        listener.close()


def _job_key(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.metadata.labels.get(LABEL_GANG, '')}"


def _gang_uid(pod: Pod) -> str:
    return pod.metadata.annotations.get(ANNOTATION_GANG_UID, "")


def _grace_s(pod: Pod) -> int:
    """Returns the job's grace period, which its pods have from the beginning of the attempt."""
    grace_s = pod.spec.termination_grace_period_seconds
    return _DEFAULT_GRACE_S if grace_s is None else grace_s


def _bounded(ended: RankExit | None) -> RankExit | None:
    if ended is None:
        return None
    reason, program = ended.reason[:_TAIL_CHARS], ended.program[:_TAIL_CHARS]
    how = ended.how[:_TAIL_CHARS] or how_of(ended.reason)
    return replace(ended, tail=_tail(ended.tail), how=how, reason=reason, program=program)


def _tail(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(line[:_TAIL_CHARS] for line in lines[-_TAIL_LINES:])


def _not_leading() -> web.Response:
    return _answer(503, {"message": "another replica leads"}, {"Retry-After": str(_RETRY_AFTER_S)})


def _answer(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json", headers=headers)
