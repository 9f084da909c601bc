"""python -m bench.admission: the webhook on one core, beside a handler that does nothing on the same server.

The server is the real one, over TLS, in a process that is kept to one core. Requests are AdmissionReviews of a training
job's pod. Throughput is measured with every connection always busy. Latency is measured at a steady pace, from the
moment a request is due.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import ssl
import tempfile
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any, cast

import click
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry
from rich.table import Table

from bench.report import Report, at_least, at_most, console, emit, spread
from muster.admission.metrics import AdmissionMetrics
from muster.admission.mutate import Home, Rules
from muster.admission.program import serve_https
from muster.admission.server import AdmissionServer
from muster.api.names import LABEL_TEAM
from muster.api.training_job import TrainingJob, TrainingJobSpec
from muster.kube.connection.pki import CertificateAuthority
from muster.kube.garbage import spare_collector
from muster.kube.objects.meta import ObjectMeta
from muster.trainingjobs.pods.pod import PodSettings, build_pod

_PATHS = {"webhook": "/mutate", "empty_handler": "/empty"}
_HEAD = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
_TICK_S = 0.001


class _Known:
    """Answers every lookup of a namespace with the team `red`."""

    def get(self, namespace: str) -> Home | None:
        return Home(team="red")

    async def ask(self, namespace: str) -> Home | None:
        return None

    def without_nodes(self, team: str) -> bool:
        return False


def _serve(pipe: Connection, core: int) -> None:
    os.sched_setaffinity(0, {core})
    uvloop.run(_served(pipe))


async def _served(pipe: Connection) -> None:
    metrics = AdmissionMetrics(CollectorRegistry())
    server = AdmissionServer(_Known(), Rules(LABEL_TEAM), metrics)

    async def handle(request: web.BaseRequest) -> web.Response:
        if request.path != _PATHS["empty_handler"]:
            return await server.handle(request)
        await request.read()
        return web.Response(body=b"{}", content_type="application/json")

    authority = CertificateAuthority.create()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        authority.issue_server("bench", ["127.0.0.1"]).write(certificate, key)
        context.load_cert_chain(certificate, key)
    async with serve_https(handle, context, "127.0.0.1", 0) as port:
        spare_collector()
        pipe.send((port, authority.certificate.decode()))
        while await asyncio.to_thread(pipe.recv) is not None:
            pipe.send(time.process_time())


def _question() -> bytes:
    spec = TrainingJobSpec(replicas=64, gpus_per_node=8, image="registry.example/train:1", command=("python", "t.py"))
    job = TrainingJob(metadata=ObjectMeta(name="train", namespace="red", uid="0" * 36), spec=spec)
    settings = PodSettings(url="https://muster", ca_pem="x" * 700, muster_image="registry.example/muster:1")
    pod = build_pod(job, 3, 1, ("bad-node-1", "bad-node-2"), settings)
    user = {"username": "system:serviceaccount:muster-system:muster-controller", "groups": ["system:authenticated"]}
    request = {"uid": "0" * 36, "namespace": "red", "operation": "CREATE", "userInfo": user, "object": pod}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


class _Link(asyncio.Protocol):
    """One connection: a question at a time."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answered: asyncio.Future[int] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's with TLS is none by its type

    def ask(self, message: bytes) -> asyncio.Future[int]:
        assert self.transport is not None
        self._answered = asyncio.get_running_loop().create_future()
        self.transport.write(message)
        return self._answered

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        if len(rest) >= length:
            assert head.startswith(b"HTTP/1.1 200"), head
            self._buffer = rest[length:]
            assert self._answered is not None
            self._answered.set_result(length)


class _Load:
    def __init__(self, links: list[_Link], message: bytes) -> None:
        self._links, self._message = links, message

    async def saturate(self, seconds: float) -> int:
        """Answers within so many seconds, with every connection always busy."""
        end = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(self._busy(link, end) for link in self._links)))

    async def _busy(self, link: _Link, end: float) -> int:
        count = 0
        while time.perf_counter() < end:
            await link.ask(self._message)
            count += 1
        return count

    async def paced(self, per_s: float, seconds: float) -> list[float]:
        """Seconds from the moment each question was due to its answer."""
        free, due, took = deque(self._links), deque[float](), list[float]()
        asking: set[asyncio.Task[None]] = set()

        async def ask(link: _Link) -> None:
            while due:
                moment = due.popleft()
                await link.ask(self._message)
                took.append(time.perf_counter() - moment)
            free.append(link)

        began, sent = time.perf_counter(), 0
        while (now := time.perf_counter()) < began + seconds:
            while began + sent / per_s <= now:
                due.append(began + sent / per_s)
                sent += 1
            while free and len(due) > len(asking):
                task = asyncio.create_task(ask(free.popleft()))
                asking.add(task)
                task.add_done_callback(asking.discard)
            await asyncio.sleep(_TICK_S)
        await asyncio.gather(*asking)
        return took


async def _measure(port: int, ca: str, pipe: Connection, options: dict[str, Any]) -> dict[str, list[float]]:
    def server_cpu_s() -> float:
        pipe.send("cpu")
        return float(pipe.recv())

    tls = ssl.create_default_context(cadata=ca)
    loop = asyncio.get_running_loop()
    links = [
        (await loop.create_connection(_Link, "127.0.0.1", port, ssl=tls, server_hostname="127.0.0.1"))[1]
        for _ in range(options["connections"])
    ]
    body = _question()
    results: dict[str, list[float]] = {"question_bytes": [float(len(body))]}
    spare_collector()  # pauses of who asks would look like the server's
    for number in range(options["repetitions"] + 1):
        for name, path in _PATHS.items():
            load = _Load(links, _HEAD.format(path, len(body)).encode() + body)
            used_s = server_cpu_s()
            answers = await load.saturate(options["seconds"])
            used_s = server_cpu_s() - used_s
            took = await load.paced(options["rate"], options["seconds"])
            cuts = quantiles(took, n=1000)
            if number:  # the first is to warm up
                results.setdefault(f"{name}_per_s", []).append(answers / options["seconds"])
                results.setdefault(f"{name}_cpu_us", []).append(used_s / answers * 1e6)
                results.setdefault(f"{name}_p50_ms", []).append(cuts[499] * 1000)
                results.setdefault(f"{name}_p99_ms", []).append(cuts[989] * 1000)
    for link in links:
        assert link.transport is not None
        link.transport.close()
    return results


@click.command()
@click.option("--connections", default=16, show_default=True, type=click.IntRange(1, 512))
@click.option("--rate", default=5000, show_default=True, type=click.IntRange(1), help="Questions a second when paced.")
@click.option("--seconds", default=3.0, show_default=True, type=click.FloatRange(0.5), help="Of each measurement.")
@click.option("--repetitions", default=5, show_default=True, type=click.IntRange(1, 50))
@click.option("--json", "target", default="-", help="A file for the report; it is the last line of stdout in any case.")
def main(connections: int, rate: int, seconds: float, repetitions: int, target: str) -> None:
    """Measure the webhook and an empty handler by turns."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise click.UsageError("the server needs a core for itself, and so do its callers: 2 cores")
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, cores[0]), daemon=True)
    server.start()
    os.sched_setaffinity(0, set(cores[1:]))
    try:
        port, ca = ours.recv()
        options = {"connections": connections, "rate": rate, "seconds": seconds, "repetitions": repetitions}
        results = uvloop.run(_measure(port, ca, ours, options))
    finally:
        ours.send(None)
        server.join(10)
        server.kill()
    figures: dict[str, float] = {"rate_paced_per_s": float(rate), "question_bytes": results.pop("question_bytes")[0]}
    for name, values in results.items():
        spread(name, values, figures)
    ratio = median(results["webhook_per_s"]) / median(results["empty_handler_per_s"])
    figures["webhook_of_empty_handler"] = round(ratio, 3)
    figures["load_average"] = os.getloadavg()[0]
    goals = (
        at_least("answers a second on one core", 5000, median(results["webhook_per_s"])),
        at_most(f"p99 at {rate} a second (ms)", 5, median(results["webhook_p99_ms"])),
    )
    table = Table("", "webhook", "empty handler")
    for unit in ("per_s", "cpu_us", "p50_ms", "p99_ms"):
        table.add_row(unit, *(f"{median(results[f'{name}_{unit}']):.2f}" for name in _PATHS))
    console().print(f"{int(figures['question_bytes'])} bytes a question, {connections} connections")
    emit(Report("admission", figures, goals), target, [table])


if __name__ == "__main__":
    main()
