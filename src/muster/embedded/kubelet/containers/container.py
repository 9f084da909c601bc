"""Runs one container of a pod: start, probes, restarts and end."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from muster.embedded.kubelet.containers import launch
from muster.embedded.kubelet.containers.backoff import RestartBackoff
from muster.embedded.kubelet.containers.cgroups import ContainerGroup
from muster.embedded.kubelet.containers.environment import ConfigError
from muster.embedded.kubelet.containers.grace import Grace
from muster.embedded.kubelet.containers.hooks import HookError, run_hook
from muster.embedded.kubelet.containers.probes import ContainerProbes
from muster.embedded.kubelet.containers.process import Process, StartError
from muster.embedded.kubelet.containers.shim import rotated_logs
from muster.embedded.kubelet.containers.termination import termination_message
from muster.embedded.kubelet.logs.reading import log_files
from muster.embedded.kubelet.pods.context import PodContext
from muster.embedded.kubelet.sweep import SweepError, sweep
from muster.kube.objects.container import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
)
from muster.kube.objects.pod import Pod

_CONFIG_RETRY_S = 2.0
_CONFIG_RETRY_LONGEST_S = 30.0
_SHIM_DEADLINE_S = 15.0
_AFTER_HOOK_S = 2.0  # least time for the container after its preStop hook, as in the kubelet


class ContainerRunner:
    """Runs one container until its pod ends it.

    Attributes:
        spec: the container.
        status: its status to report.
        process: its main process, while it runs.
        started: set when it has started (its startup probe succeeded).
    """

    def __init__(
        self,
        context: PodContext,
        spec: Container,
        policy: str,
        changed: Callable[[], None],
        *,
        before: ContainerStatus | None = None,
        runs_to_end: bool = False,
        first_reason: str = "ContainerCreating",
    ) -> None:
        """Nothing runs yet.

        Args:
            context: the pod.
            spec: the container.
            policy: Always, OnFailure or Never.
            changed: called after each change of `status`.
            before: its last reported status, if the kubelet was restarted.
            runs_to_end: it is an init container, which is ready when it succeeded.
            first_reason: reason of its first waiting state.
        """
        self.spec = spec
        self.process: Process | None = None
        self.started = asyncio.Event()
        self.sessions: set[Process] = set()
        self.launched: launch.Launch | None = None
        self._context = context
        self._policy = policy
        self._changed = changed
        self._backoff = RestartBackoff(context.services.settings.restart_backoff_s)
        self._group = ContainerGroup()
        self._probes: ContainerProbes | None = None
        self._endings: dict[Process, asyncio.Task[ContainerStateTerminated]] = {}
        self._ending_soon: asyncio.Task[None] | None = None
        self._running_since = 0.0
        self._runs_to_end = runs_to_end
        self.status = before or ContainerStatus(
            name=spec.name, ready=False, restart_count=0, image=spec.image, image_id="", started=False
        )
        if before is None:
            self._wait_state(first_reason, "")

    @property
    def log(self) -> str:
        """The file of the current (or last) start."""
        return str(self._context.log_folder(self.spec.name) / f"{self.status.restart_count}.log")

    @property
    def pod_ip(self) -> str:
        """The pod's address."""
        return self._context.ip

    def end_soon(self, grace: Grace, message: str) -> None:
        """Begin to end the container, without waiting."""
        self._ending_soon = asyncio.create_task(self.end(grace, message))

    @property
    def done(self) -> bool:
        """Returns whether it ended and is not restarted."""
        ended = self.status.state.terminated if self.status.state else None
        return ended is not None and not self._restarts(ended.exit_code)

    async def run(self) -> ContainerStateTerminated:
        """Run until it ends without a restart. Returns how it ended."""
        ended = self.status.state.terminated if self.status.state else None
        if ended is not None and self.done:
            return ended
        again = ended is not None
        while True:
            ended, ran_s = await self._run_once(again)
            if not self._restarts(ended.exit_code):
                return ended
            delay_s = self._backoff.after_run(ran_s)
            if delay_s:
                pod = self._context.pod
                self._wait_state(
                    "CrashLoopBackOff",
                    f"back-off {_duration(delay_s)} restarting failed container={self.spec.name} pod={_full_name(pod)}",
                )
                self._event(
                    "Warning",
                    "BackOff",
                    f"Back-off restarting failed container {self.spec.name} in pod {_full_name(pod)}",
                )
                await asyncio.sleep(delay_s)
            again = True

    async def end(self, grace: Grace, message: str = "") -> None:
        """End the container: preStop hook, SIGTERM, and SIGKILL after the grace period.

        Returns when all its processes ended.
        """
        process = self.process
        if process is None:
            return
        if process.exited.done():
            await self._ended(process)
            return
        self._event("Normal", "Killing", message or f"Stopping container {self.spec.name}")
        if self._probes is not None:
            self._probes.stop()
        hook = self.spec.lifecycle.pre_stop if self.spec.lifecycle else None
        if hook is not None and grace.left_s > 0:
            task = asyncio.create_task(run_hook(self, hook))
            if not await grace.wait(task):
                task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(outcome, HookError):
                self._event("Warning", "FailedPreStopHook", str(outcome))
            if grace.left_s < _AFTER_HOOK_S:
                grace = Grace(_AFTER_HOOK_S)
        process.signal(15)
        if not await grace.wait(process.exited):
            process.kill()
        if not await Grace(_SHIM_DEADLINE_S).wait(process.exited):
            process.kill_shim()
        await self._ended(process)

    def _restarts(self, exit_code: int) -> bool:
        return self._policy == "Always" or (self._policy == "OnFailure" and exit_code != 0)

    async def _run_once(self, again: bool) -> tuple[ContainerStateTerminated, float]:
        """Start it and wait for its end. Returns how it ended, and after how many seconds."""
        launched = await self._prepare()
        restarts = self.status.restart_count + 1 if again else self.status.restart_count
        last = self.status.last_state
        if self.status.state is not None and self.status.state.terminated is not None:
            last = self.status.state
        self.status = msgspec.structs.replace(
            self.status, restart_count=restarts, last_state=last, container_id=f"muster://{launched.container_id}"
        )
        self._trim_logs()
        self.launched = launched
        self._group = launched.group
        try:
            settings = self._context.services.settings
            spec = launched.process_spec(
                log=self.log,
                log_max_bytes=settings.container_log_max_bytes,
                log_max_files=settings.container_log_max_files,
            )
            self.process = await Process.start(spec)
        except StartError as error:
            self._event("Warning", "Failed", f"Error: {error}")
            await asyncio.to_thread(self._group.remove)
            return self._terminated(128, "StartError", str(error), None, _now()), 0.0
        process = self.process
        self._running_since = time.monotonic()
        self._event("Normal", "Started", f"Container started: {self.spec.name}")
        self._probes = ContainerProbes(self, self._context)
        self.status = msgspec.structs.replace(
            self.status,
            state=ContainerState(running=ContainerStateRunning(started_at=_now())),
            started=not self._probes.startup,
            ready=not self._probes.startup and not self._probes.readiness,
        )
        if not self._probes.startup:
            self.started.set()
        self._changed()
        await self._post_start()
        if not process.exited.done():
            self._probes.start()
        ended = await self._ended(process)
        return ended, time.monotonic() - self._running_since

    def set_probed(self, *, started: bool | None = None, ready: bool | None = None) -> None:
        """Store the result of a probe."""
        before = self.status
        if started is not None:
            self.status = msgspec.structs.replace(self.status, started=started)
            self.started.set()
        if ready is not None:
            self.status = msgspec.structs.replace(self.status, ready=ready)
        if before != self.status:
            self._changed()

    async def _prepare(self) -> launch.Launch:
        """Prepare the start, with retries while its configuration is incomplete."""
        retry_s = _CONFIG_RETRY_S
        while True:
            try:
                return await launch.prepare(self._context, self.spec, uuid.uuid4().hex)
            except ConfigError as error:
                self._wait_state("CreateContainerConfigError", str(error))
                self._event("Warning", "Failed", f"Error: {error}")
            except launch.CreateError as error:
                self._wait_state("CreateContainerError", str(error))
                self._event("Warning", "Failed", f"Error: {error}")
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _CONFIG_RETRY_LONGEST_S)

    async def _post_start(self) -> None:
        hook = self.spec.lifecycle.post_start if self.spec.lifecycle else None
        if hook is None:
            return
        try:
            await run_hook(self, hook)
        except HookError as error:
            self._event("Warning", "FailedPostStartHook", str(error))
            grace_s = self._context.pod.spec.termination_grace_period_seconds or 0
            await self.end(Grace(grace_s), f"FailedPostStartHook for container {self.spec.name}")

    async def _ended(self, process: Process) -> ContainerStateTerminated:
        """Wait for the end, and record it once even if several callers wait. Returns the reported end."""
        if process not in self._endings:
            self._endings = {process: asyncio.create_task(self._take_end(process))}
        return await asyncio.shield(self._endings[process])

    async def _take_end(self, process: Process) -> ContainerStateTerminated:
        exited = await process.exited
        if self._probes is not None:
            self._probes.stop()
        for session in list(self.sessions):
            session.kill()
        assert self.launched is not None
        if not exited.swept:
            await self._sweep(self.launched.container_id)
        killed = exited.signal == 9 and self._group.out_of_memory()
        await asyncio.to_thread(self._group.remove)
        reason = "OOMKilled" if killed else "Completed" if exited.code == 0 else "Error"
        policy = self.spec.termination_message_policy
        message = termination_message(self.launched.message_file, policy, Path(self.log), exited.code != 0)
        running = self.status.state.running if self.status.state else None
        finished = datetime.datetime.fromtimestamp(exited.time_s, datetime.UTC)
        self.process = None
        return self._terminated(exited.code, reason, message, running.started_at if running else None, finished)

    async def _sweep(self, container_id: str) -> None:
        """End processes that a killed shim may have left."""
        settings = self._context.services.settings
        uid = self._context.pod.uid
        try:
            await asyncio.to_thread(sweep, settings.cluster_id, settings.node, pod_uid=uid, container_id=container_id)
        except SweepError as error:
            self._event("Warning", "FailedKillPod", f"container {self.spec.name}: {error}")

    def _terminated(
        self, code: int, reason: str, message: str, started: datetime.datetime | None, finished: datetime.datetime
    ) -> ContainerStateTerminated:
        ended = ContainerStateTerminated(
            exit_code=code,
            reason=reason,
            message=message,
            started_at=started,
            finished_at=finished.replace(microsecond=0),
            container_id=self.status.container_id,
        )
        self.status = msgspec.structs.replace(
            self.status, state=ContainerState(terminated=ended), started=False, ready=self._runs_to_end and code == 0
        )
        self.started.clear()
        self._changed()
        return ended

    def _wait_state(self, reason: str, message: str) -> None:
        last = self.status.last_state
        if self.status.state is not None and self.status.state.terminated is not None:
            last = self.status.state
        self.status = msgspec.structs.replace(
            self.status,
            state=ContainerState(waiting=ContainerStateWaiting(reason=reason, message=message)),
            last_state=last,
            ready=False,
            started=False,
        )
        self._changed()

    def _trim_logs(self) -> None:
        """Remove all logs before the previous one."""
        for file in log_files(self._context.log_folder(self.spec.name)):
            if int(file.stem) < self.status.restart_count - 1:
                for path in (*rotated_logs(str(file)), str(file)):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)

    def _event(self, kind: str, reason: str, message: str) -> None:
        self._context.services.event(self._context.pod, kind, reason, message)


def _full_name(pod: Pod) -> str:
    return f"{pod.name}_{pod.namespace}({pod.uid})"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)
