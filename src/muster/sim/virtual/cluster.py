"""A cluster in virtual time: the embedded API server and its controllers, in this process and without sockets."""

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
from muster.readcache.hub.limits import Limits
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.network import Calm, Fates, InProcessTransport, Server, Trace
from muster.sim.virtual.process import Process

LOG_CAPACITY = 2_000
"""Number of events of each kind in the event log. It is small, so that some watches get status 410."""


SIGNING_KEY = ec.derive_private_key(1, ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
"""The key that signs service account tokens. It is the same in all runs, because signatures are part of the trace."""


class LoopClock:
    """A clock that returns the virtual time of an event loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        """Return the virtual time in seconds since the epoch."""
        return self._loop.now


class VirtualCluster:
    """One embedded API server with its controllers for nodes and pods.

    Args:
        loop: the event loop, which also has the virtual time.
        rng: source of random numbers for UIDs and latencies.
    """

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop = loop
        self.trace = Trace()
        self._rng = rng
        seeded = random.Random(rng.getrandbits(64))
        self.core = ApiCore(Store(limits=Limits(log_events=LOG_CAPACITY)), LoopClock(loop), seeded, SIGNING_KEY)
        self.server: Server = self.core
        """The server that handles the requests of clients: the API server, or a wrapper around it."""
        bootstrap(self.core, "")
        for each in _definitions():
            self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", each)
        self._control_plane = Process("control-plane")

    def start(self) -> None:
        """Start the API server's own controllers. Call this inside the loop."""
        self._control_plane.spawn(Controllers(self.core).run())

    def call(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None, patch: str = "merge"
    ) -> dict[str, Any]:
        """Send a request as an administrator, without delay and without failures. Raises ApiError."""
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
        """Return a client whose requests have these fates. By default all requests succeed after a short delay."""
        seeded = random.Random(self._rng.getrandbits(64))
        transport = InProcessTransport(self.server, name, fates or Calm(seeded), self.trace)
        config = ClusterConfig(server="https://simulated")
        return Client(config, timeout_s=timeout_s, rng=seeded, transport=transport)


@functools.cache
def _definitions() -> tuple[dict[str, Any], ...]:
    """Returns the CustomResourceDefinitions of Muster's kinds, created once for all runs of this process."""
    return tuple(definition(kind) for kind in KINDS)


async def until(loop: VirtualLoop, when: float) -> None:
    """Sleep until a virtual time."""
    await asyncio.sleep(max(0.0, when - loop.now))
