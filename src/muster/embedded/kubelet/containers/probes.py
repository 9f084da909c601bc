"""Runs the startup, liveness and readiness probes of a container.

Source: https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from muster.embedded.kubelet.containers.commands import CommandError, run_command
from muster.embedded.kubelet.containers.grace import Grace
from muster.embedded.kubelet.containers.requests import ProbeFailed, http_get, tcp_connect
from muster.embedded.kubelet.containers.running import RunningContainer
from muster.embedded.kubelet.pods.context import PodContext
from muster.kube.objects.container import Probe


class ContainerProbes:
    """Probes a container during one start; each start has a new object.

    Attributes:
        startup, readiness: whether it has such probes.
    """

    def __init__(self, runner: RunningContainer, context: PodContext) -> None:
        """Create the probes; `start` begins."""
        self._runner = runner
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self.startup = runner.spec.startup_probe is not None
        self.readiness = runner.spec.readiness_probe is not None

    def start(self) -> None:
        """Begin to probe."""
        self._spawn(self._run())

    def stop(self) -> None:
        """Stop without waiting; a probe itself may call this."""
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def _run(self) -> None:
        spec = self._runner.spec
        if spec.startup_probe is not None:
            await self._until(spec.startup_probe, "Startup", wanted=True)
            self._runner.set_probed(started=True, ready=not self.readiness or None)
        if spec.liveness_probe is not None:
            self._spawn(self._until(spec.liveness_probe, "Liveness", wanted=None))
        if spec.readiness_probe is not None:
            self._spawn(self._readiness(spec.readiness_probe))

    async def _until(self, probe: Probe, kind: str, wanted: bool | None) -> None:
        """Probe until success (`wanted` True), or until the container must be restarted after too many failures."""
        await asyncio.sleep(probe.initial_delay_seconds)
        good = bad = 0
        while True:
            if await self._passes(probe, kind):
                good, bad = good + 1, 0
                if wanted and good >= max(1, probe.success_threshold):
                    return
            else:
                good, bad = 0, bad + 1
                if bad >= (probe.failure_threshold or 3):
                    self._end_container(probe, kind)
                    await asyncio.Event().wait()  # this start has ended, and no caller waits for its probes
            await asyncio.sleep(probe.period_seconds or 10)

    async def _readiness(self, probe: Probe) -> None:
        await asyncio.sleep(probe.initial_delay_seconds)
        good = bad = 0
        while True:
            if await self._passes(probe, "Readiness"):
                good, bad = good + 1, 0
                if good >= (probe.success_threshold or 1):
                    self._runner.set_probed(ready=True)
            else:
                good, bad = 0, bad + 1
                if bad >= (probe.failure_threshold or 3):
                    self._runner.set_probed(ready=False)
            await asyncio.sleep(probe.period_seconds or 10)

    def _end_container(self, probe: Probe, kind: str) -> None:
        grace_s = probe.termination_grace_period_seconds
        if grace_s is None:
            grace_s = self._context.pod.spec.termination_grace_period_seconds
        message = f"Container {self._runner.spec.name} failed {kind.lower()} probe, will be restarted"
        self._runner.end_soon(Grace(30 if grace_s is None else grace_s), message)

    async def _passes(self, probe: Probe, kind: str) -> bool:
        timeout_s = float(probe.timeout_seconds or 1)
        ports, ip = self._runner.spec.ports, self._context.ip
        try:
            if probe.exec is not None:
                code, output = await run_command(self._runner, probe.exec.command, timeout_s)
                if code != 0:
                    raise ProbeFailed(output.strip())
            elif probe.http_get is not None:
                await http_get(probe.http_get, ip, ports, timeout_s)
            elif probe.tcp_socket is not None:
                await tcp_connect(probe.tcp_socket, ip, ports, timeout_s)
            elif probe.grpc is not None:
                raise ProbeFailed("gRPC probes are not supported by the process kubelet")
        except (ProbeFailed, CommandError) as error:
            if self._runner.process is not None and not self._runner.process.exited.done():
                self._context.services.event(self._context.pod, "Warning", "Unhealthy", f"{kind} probe failed: {error}")
            return False
        return True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
