"""What kube-proxy does for one Service, on machines without it: TCP to any ready pod that the Service selects."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from pathlib import Path

from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import ApiError, ConfigError
from muster.kube.objects.pod import Pod

_REFRESH_S = 0.3


class ServiceProxy:
    """Listens on `host`:`port` from `start` to `stop`; established connections outlive the readiness of a pod.

    Where the Service's own address is a loopback address (kube-apiserver's --service-cluster-ip-range), `host` may be
    that. Port 0 is a free one.
    """

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        selector: str,
        target_port: int,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.host, self.port = host, port
        self._kubeconfig, self._namespace, self._selector = kubeconfig, namespace, selector
        self._target_port = target_port
        self._backends: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="service-proxy", daemon=True)
        self._listening = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._thread.start()
        assert self._listening.wait(10), "the proxy does not listen"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(10)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._main = task
        server = await asyncio.start_server(self._accept, self.host, self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        try:
            async with Client(load_config(self._kubeconfig), user_agent="service-proxy") as client:
                while True:
                    with contextlib.suppress(ApiError, ConfigError, TimeoutError):
                        pods = await client.list(Pod, self._namespace, label_selector=self._selector)
                        self._backends = [pod.status.pod_ip for pod in pods.items if pod.status.pod_ip and _ready(pod)]
                    await asyncio.sleep(_REFRESH_S)
        finally:
            server.close()
            for each in self._tasks:
                each.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            address = random.choice(self._backends)
            far_reader, far_writer = await asyncio.open_connection(address, self._target_port)
        except (OSError, IndexError):
            await _abort(writer)  # refused, as by a Service without endpoints
            return
        try:
            with contextlib.suppress(asyncio.CancelledError):  # at the end: streams complain of what is cancelled
                await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            await _abort(far_writer, writer)


def _ready(pod: Pod) -> bool:
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)
    return ready and pod.metadata.deletion_timestamp is None


async def _abort(*writers: asyncio.StreamWriter) -> None:
    """End connections at once; they are closed when this returns, also where the loop ends next."""
    for writer in writers:
        writer.transport.abort()
    for writer in writers:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
