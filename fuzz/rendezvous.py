"""The controller's face towards supervisors, asked without HTTP: the same handlers, the same answers."""

from __future__ import annotations

from collections.abc import Mapping

from muster.sim.virtual.line import Reply, Serve
from muster.trainingjobs.rendezvous.server import RendezvousServer


class _Question:
    def __init__(self, headers: Mapping[str, str], body: bytes) -> None:
        self.headers, self._body = headers, body

    async def read(self) -> bytes:
        return self._body


def serve(server: RendezvousServer) -> Serve:
    """Returns a replica's handler for requests of supervisors and of ranks."""
    handlers = {"/v1/supervise": server.supervise, "/v1/report": server.report, "/v1/restore": server.restore}

    async def answer(path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        response = await handlers[path](_Question(headers, body))
        assert isinstance(response.body, bytes)
        return response.status, response.body

    return answer
