"""The runtime of simulated worker pods: it runs a simulated rank supervisor with a real token in each pod."""

from __future__ import annotations

import asyncio
import base64
import random
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime

from muster.api.names import LABEL_GANG, TOKEN_AUDIENCE, WORKER_CONTAINER
from muster.kube.client import Client
from muster.kube.objects.auth import BoundObjectReference, TokenRequest, TokenRequestSpec
from muster.kube.objects.pod import Pod
from muster.sim.longpoll import Link as TlsLink
from muster.sim.poller import Link
from muster.sim.supervisor import Identity, Program, SimSupervisor, Work

_TOKEN_S = 3600


class SupervisorRuntime:
    """Starts a supervisor in each pod of a training job. Other pods have no content.

    Args:
        client: the kubelets' client, which requests the token of each pod.
        now: the clock for the times of ranks' exits.
        work: durations of the ranks' work.
        seed: seed of the jitter.
    """

    def __init__(self, client: Client, *, now: Callable[[], datetime], work: Work, seed: int = 0) -> None:
        self._client, self._now, self._work = client, now, work
        self._rng = random.Random(seed)
        self._tls: dict[str, ssl.SSLContext] = {}
        self._listeners: set[asyncio.Event] = set()
        self.supervisors: dict[str, SimSupervisor] = {}

    async def start(self, pod: Pod, address: str, ended: Callable[[int], None]) -> None:
        """Get a token bound to the pod and start its supervisor."""
        if LABEL_GANG not in pod.metadata.labels:
            return
        worker = next(one for one in pod.spec.containers if one.name == WORKER_CONTAINER)
        env = {one.name: one.value for one in worker.env}
        token = await self._token(pod)
        identity = Identity(
            job=f"{env['MUSTER_NAMESPACE']}/{env['MUSTER_JOB']}",
            slot=int(env["MUSTER_SLOT"]),
            pod=pod.name,
            pod_uid=pod.uid,
            address=address,
        )
        self.supervisors[pod.uid] = SimSupervisor(
            identity,
            (self.connect(pod, env), self.connect(pod, env)),
            self.connect(pod, env),
            token,
            work=self.work_of(identity.job),
            rng=random.Random(self._rng.random()),
            on_change=self._changed,
            on_exit=ended,
            wall=lambda: self._now().timestamp(),
            program=self.program_of(identity.job),
        )

    def connect(self, pod: Pod, env: Mapping[str, str]) -> Link:
        """Create a connection from the pod to the controller."""
        return TlsLink(env["MUSTER_URL"], self._context(env["MUSTER_CA_DATA"]))

    def work_of(self, job: str) -> Work:
        """Returns the durations of a job's ranks (`namespace/name`)."""
        return self._work

    def program_of(self, job: str) -> Program:
        """Returns the program that connects a job's ranks (`namespace/name`)."""
        return Program()

    async def stop(self, pod: Pod) -> None:
        """End the pod's supervisor."""
        supervisor = self.supervisors.pop(pod.uid, None)
        if supervisor is not None:
            supervisor.close()
            self._changed()

    def vanish(self, pod: Pod) -> None:
        """Stop the pod's supervisor because its machine failed."""
        supervisor = self.supervisors.pop(pod.uid, None)
        if supervisor is not None:
            supervisor.vanish()
            self._stall(supervisor)
            self._changed()

    def kill_rank(self, supervisor: SimSupervisor) -> None:
        """Kill the rank of this supervisor. The other ranks of the job then hang."""
        supervisor.kill_rank()
        self._stall(supervisor)

    def of(self, job: str) -> list[SimSupervisor]:
        """Return the supervisors of a job (`namespace/name`), in the order of their slots."""
        ours = [one for one in self.supervisors.values() if one.identity.job == job]
        return sorted(ours, key=lambda one: one.identity.slot)

    async def until(self, condition: Callable[[], bool], what: str, *, timeout_s: float) -> float:
        """Wait until a condition about supervisors holds, and return the event loop's time."""
        event = asyncio.Event()
        self._listeners.add(event)
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    event.clear()
                    await event.wait()
        except TimeoutError:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}") from None
        finally:
            self._listeners.discard(event)
        return asyncio.get_running_loop().time()

    async def _token(self, pod: Pod) -> str:
        bound = BoundObjectReference(kind="Pod", api_version="v1", name=pod.name, uid=pod.uid)
        spec = TokenRequestSpec(audiences=(TOKEN_AUDIENCE,), expiration_seconds=_TOKEN_S, bound_object_ref=bound)
        account = pod.spec.service_account_name or "default"
        answer = await self._client.create_token(account, TokenRequest(spec=spec), namespace=pod.namespace)
        return answer.status.token

    def _context(self, ca_data: str) -> ssl.SSLContext:
        if ca_data not in self._tls:
            self._tls[ca_data] = ssl.create_default_context(cadata=base64.b64decode(ca_data).decode())
        return self._tls[ca_data]

    def _stall(self, gone: SimSupervisor) -> None:
        """Let the other ranks of the same attempt hang. Ranks of a later attempt are not affected."""
        for one in self.of(gone.identity.job):
            if one.attempt == gone.attempt:
                one.stall()

    def _changed(self) -> None:
        for event in self._listeners:
            event.set()
