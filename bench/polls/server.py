"""The controller's side in a process of its own: its TLS server and its members; pods and tokens are made up."""

from __future__ import annotations

import asyncio
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from muster.api.names import ANNOTATION_GANG_UID, LABEL_GANG
from muster.kube.connection.pki import CertificateAuthority
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.pod import Pod
from muster.trainingjobs.plan import Directive
from muster.trainingjobs.rendezvous.members import Members
from muster.trainingjobs.rendezvous.overload import Strain
from muster.trainingjobs.rendezvous.server import RendezvousServer, serve_tls
from muster.trainingjobs.rendezvous.tokens import PodIdentity

JOB, KEY = "job-uid", "ns/job"
_LOOK_S = 0.002


def pod_uid(number: int) -> str:
    """As long as a real one."""
    return f"{number:08x}-0000-4000-8000-000000000000"


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Pods:
    """Stands in for the controller and the API server; a token is the pod's number."""

    serving = True

    def __init__(self, count: int) -> None:
        annotations = {ANNOTATION_GANG_UID: JOB}
        self._pods = {
            f"ns/{number}": Pod(
                metadata=ObjectMeta(
                    name=str(number),
                    namespace="ns",
                    uid=pod_uid(number),
                    labels={LABEL_GANG: "job"},
                    annotations=annotations,
                )
            )
            for number in range(count)
        }

    def pod(self, key: str) -> Pod | None:
        return self._pods.get(key)

    async def identify(self, token: str) -> PodIdentity:
        return PodIdentity("ns", token, pod_uid(int(token)))

    async def is_gone(self, *_: Any) -> bool:
        return False

    async def report(self, *_: Any) -> None:
        raise AssertionError("nothing reports here")


def serve(pipe: Connection, count: int) -> None:
    """Serve until the pipe says stop; `_Server.answer` lists the requests."""
    uvloop.run(_Server(pipe, count).run())


class _Server:
    def __init__(self, pipe: Connection, count: int) -> None:
        self._pipe, self._count = pipe, count
        self._slots = tuple(pod_uid(number) for number in range(count))
        self._members = Members(b"secret", lambda key: None)
        self._strain = Strain()
        self._pods = _Pods(count)

    async def run(self) -> None:
        authority = CertificateAuthority.create()
        app = RendezvousServer(self._pods, self._members, self._pods).app()  # type: ignore[arg-type]
        pair = authority.issue_server("bench", ["127.0.0.1"])
        self._members.direct(JOB, KEY, Directive(attempt=1, desired="hold", slots=self._slots))
        watching = asyncio.create_task(self._strain.run())
        async with serve_tls(app, pair, "127.0.0.1", 0, self._strain) as port:
            self._pipe.send((port, authority.certificate.decode()))
            while (asked := await asyncio.to_thread(self._pipe.recv)) is not None:
                self._pipe.send(await self._answer(*asked))
        watching.cancel()

    async def _answer(self, what: str, number: int) -> dict[str, float]:
        began, cpu = time.monotonic(), time.process_time()
        if what == "direct":
            self._members.direct(JOB, KEY, Directive(attempt=number, desired="hold", slots=self._slots))
        if what in ("direct", "joined"):
            await self._all_said(number)
        return {
            "began": began,
            "took_s": time.monotonic() - began,
            "cpu_s": time.process_time() - cpu,
            "cpu_total_s": time.process_time(),
            "rss_bytes": rss_bytes(),
            "polling": self._members.polling,
            "silent": sum(1 for each in self._members.of(JOB).values() if each.silent_since is not None),
            "strained_at": self._strain.last,
            "poll_s": self._members.poll_s,
        }

    async def _all_said(self, attempt: int) -> None:
        """Until every member says that it is in the attempt and polls."""
        async with asyncio.timeout(900):
            while True:
                members = self._members.of(JOB)
                if len(members) == self._count and all(
                    each.attempt == attempt and each.silent_since is None for each in members.values()
                ):
                    return
                await asyncio.sleep(max(_LOOK_S, 0.02 * self._count / 1000))
