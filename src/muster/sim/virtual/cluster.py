"""A cluster in virtual time: the embedded API server and its controllers, reached without sockets."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Mapping
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from muster.api.crd import KINDS, definition
from muster.embedded.apiserver.core import ApiCore
from muster.embedded.apiserver.request import Request, Response
from muster.embedded.apiserver.types.bootstrap import bootstrap
from muster.embedded.controllers.runner import Controllers
from muster.embedded.store import Store
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.transport import Answer
from muster.kube.objects.struct import encode
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.network import Calm, Fates, InProcessTransport, Server, Trace
from muster.sim.virtual.process import Process

LOG_CAPACITY = 2_000
"""Events of a kind that watches can be resumed over; few, so that 410 happens."""


SIGNING_KEY = ec.derive_private_key(1, ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
"""Of service account tokens: the same in all runs, as a signature is part of the trace."""


class LoopClock:
    """The time of day of an event loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._loop.now


class VirtualCluster:
    """One API server, with the effects of Kubernetes' controllers on nodes and pods.

    Args:
        loop: its event loop and time.
        rng: source of UIDs and latencies.
    """

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop = loop
        self.trace = Trace()
        self._rng = rng
        seeded = random.Random(rng.getrandbits(64))
        self.core = ApiCore(Store(log_capacity=LOG_CAPACITY), LoopClock(loop), seeded, SIGNING_KEY)
        self.server: Server = self.core
        """What clients reach: the API server, or what stands in front of it."""
        bootstrap(self.core, "")
        for each in _definitions():
            self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", each)
        self._control_plane = Process("control-plane")

    def start(self) -> None:
        """Start the control plane's own controllers; call inside the loop."""
        self._control_plane.spawn(Controllers(self.core).run())

    def call(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None, patch: str = "merge"
    ) -> dict[str, Any]:
        """Do something at the API server at once, as an administrator next to it. Raises ApiError."""
        content_type = f"application/{patch}-patch+json" if method == "PATCH" else "application/json"
        headers = {"content-type": content_type} if body is not None else {}
        request = Request(method, path, dict(query or {}), headers, encode(body) if body is not None else b"")
        response = self.server.handle(request)
        assert isinstance(response, Response)
        self.trace.add(self.loop.now, "admin", request, response.code, response.body)
        if response.code >= 300:
            raise Answer(response.code, response.body).error()
        answer: dict[str, Any] = msgspec.json.decode(response.body)
        return answer

    def client(self, name: str, fates: Fates | None = None, *, timeout_s: float = 30.0) -> Client:
        """Return a client whose requests meet these fates; none too bad by default."""
        seeded = random.Random(self._rng.getrandbits(64))
        transport = InProcessTransport(self.server, name, fates or Calm(seeded), self.trace)
        config = ClusterConfig(server="https://simulated")
        return Client(config, timeout_s=timeout_s, rng=seeded, transport=transport)


@functools.cache
def _definitions() -> tuple[dict[str, Any], ...]:
    """The definitions of our kinds, made once for all runs of this process."""
    return tuple(definition(kind) for kind in KINDS)


async def until(loop: VirtualLoop, when: float) -> None:
    """Sleep until a virtual moment."""
    await asyncio.sleep(max(0.0, when - loop.now))
