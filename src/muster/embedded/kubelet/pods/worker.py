"""Runs one pod on the node, from admission to the last of its processes."""

from __future__ import annotations

import asyncio
import datetime
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from muster.embedded.kubelet.containers.container import ContainerRunner
from muster.embedded.kubelet.containers.grace import Grace
from muster.embedded.kubelet.containers.launch import wants_gpus
from muster.embedded.kubelet.containers.volumes import PodVolumes, VolumeError
from muster.embedded.kubelet.pods.admission import Rejection
from muster.embedded.kubelet.pods.context import NodeServices, PodContext
from muster.embedded.kubelet.pods.network import Attachment, NetworkError
from muster.embedded.kubelet.pods.pool import Exhausted
from muster.embedded.kubelet.pods.restored import after_reboot, load_status
from muster.embedded.kubelet.pods.status import PodFindings, is_sidecar, pod_status
from muster.embedded.kubelet.pods.status_writer import StatusWriter
from muster.embedded.kubelet.sweep import SweepError, sweep
from muster.kube.objects.container import Container, ContainerStateTerminated
from muster.kube.objects.pod import Pod, PodStatus

_SETUP_RETRY_S = 0.5
_SETUP_RETRY_LONGEST_S = 30.0
log = logging.getLogger(__name__)
_STARTING = ("ContainerCreating", "PodInitializing")
_DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


class PodWorker:
    """Runs one pod (by UID). `run` is its whole life; `update` and `vanished` pass on changes at the API server.

    Attributes:
        pod: its newest version.
        runners: its containers, init containers first.
        active: it holds resources of the node.
        is_gone: the API server no longer has the pod, which may still be ending here.
    """

    def __init__(self, pod: Pod, services: NodeServices, rejection: Rejection | None = None) -> None:
        """Create the worker; with `rejection` it only reports the rejection."""
        settings = services.settings
        self.pod = pod
        self.active = rejection is None and not pod.finished
        self.is_gone = False
        self._rejection = rejection
        self._services = services
        self._context = PodContext(pod=pod, services=services, folder=settings.pods_dir / pod.uid)
        self._before = load_status(self._context.folder) or pod.status
        self._start_time = self._before.start_time or datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        self._attachment: Attachment | None = None
        self._stop = asyncio.Event()
        self._grace: Grace | None = None
        self._refresh = asyncio.Event()
        self._was_finished = pod.finished
        self._failure: Rejection | None = rejection
        self._terminal = False
        self._writer = StatusWriter(services.client, self._context.folder, pod, self._status, self._under_way)
        self.runners = [
            *(self._runner(container, init=True) for container in pod.spec.init_containers),
            *(self._runner(container, init=False) for container in pod.spec.containers),
        ]
        self._note_deletion()

    @property
    def _main(self) -> Sequence[ContainerRunner]:
        return self.runners[len(self.pod.spec.init_containers) :]

    def runner(self, container: str) -> ContainerRunner | None:
        """The container of that name."""
        return next((runner for runner in self.runners if runner.spec.name == container), None)

    def log_folder(self, container: str) -> Path:
        """Returns the folder of a container's logs."""
        return self._context.log_folder(container)

    def update(self, pod: Pod) -> None:
        """Handle a newer version of the pod."""
        labels_changed = pod.metadata.labels != self.pod.metadata.labels
        annotations_changed = pod.metadata.annotations != self.pod.metadata.annotations
        gates_changed = pod.spec.readiness_gates and pod.status.conditions != self.pod.status.conditions
        self.pod = self._context.pod = pod
        self._writer.pod = pod
        if labels_changed or annotations_changed:
            self._refresh.set()
        if gates_changed:
            self._writer.changed()
        self._note_deletion()

    def vanished(self) -> None:
        """The pod no longer exists at the API server: end all its processes at once, without a report."""
        self.is_gone = self._writer.pod_gone = True
        self._request_stop(0.0)

    def shut_down(self, grace_s: float) -> None:
        """End the pod's processes without a report to the API server, as when the machine is switched off."""
        self._writer.pod_gone = True
        self._request_stop(grace_s)

    async def run(self) -> None:
        """Run the pod.

        Returns when none of it is left on this node, or when it has ended and waits for its deletion.
        """
        writing = asyncio.create_task(self._writer.run())
        try:
            if self.active:
                await self._live_until_stopped()
            self.active = False
            self._terminal = True
            self._writer.changed()
            await self._stop.wait()
            await self._writer.flush()
            if not self._writer.pod_gone:
                await self._writer.delete_pod()
        finally:
            writing.cancel()

    def remove_folder(self) -> None:
        """Forget the pod's logs and status."""
        shutil.rmtree(self._context.folder, ignore_errors=True)

    def _note_deletion(self) -> None:
        if self.pod.terminating:
            grace_s = self.pod.metadata.deletion_grace_period_seconds
            self._request_stop(30.0 if grace_s is None else float(grace_s))

    def _request_stop(self, grace_s: float) -> None:
        if self._grace is None:
            self._grace = Grace(grace_s)
        else:
            self._grace.shorten(grace_s)
        self._stop.set()

    async def _live_until_stopped(self) -> None:
        life = asyncio.create_task(self._live())
        stop = asyncio.create_task(self._stop.wait())
        deadline_s = self._deadline_s()
        await asyncio.wait({life, stop}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if not life.done() and not stop.done():
            self._failure = Rejection("DeadlineExceeded", _DEADLINE_MESSAGE)
            seconds = self.pod.spec.termination_grace_period_seconds
            self._grace = Grace(30.0 if seconds is None else float(seconds))
            self._services.event(self.pod, "Normal", "DeadlineExceeded", _DEADLINE_MESSAGE)
        stop.cancel()
        life.cancel()
        (outcome,) = await asyncio.gather(life, return_exceptions=True)
        if isinstance(outcome, Exception):
            log.error("pod %s: cannot be run", self.pod.key, exc_info=outcome)
            self._failure = Rejection("KubeletError", f"the kubelet could not run the pod: {outcome}")
        await self._end_containers()
        await self._tear_down()

    def _deadline_s(self) -> float | None:
        seconds = self.pod.spec.active_deadline_seconds
        if seconds is None:
            return None
        ran = datetime.datetime.now(datetime.UTC) - self._start_time
        return max(0.0, seconds - max(0.0, ran.total_seconds()))

    async def _live(self) -> None:
        if all(runner.done for runner in self._main):
            return  # it ended before the restart of the kubelet
        await self._set_up()
        refreshing = asyncio.create_task(self._keep_volumes_fresh())
        sidecars: set[asyncio.Task[ContainerStateTerminated]] = set()
        try:
            for runner in self.runners[: len(self.pod.spec.init_containers)]:
                if is_sidecar(runner.spec):
                    sidecars.add(asyncio.create_task(runner.run()))
                    await runner.started.wait()
                elif (await runner.run()).exit_code != 0:
                    return
            async with asyncio.TaskGroup() as group:
                for runner in self._main:
                    group.create_task(runner.run())
        finally:
            refreshing.cancel()
            for task in sidecars:
                task.cancel()

    async def _set_up(self) -> None:
        """Create folders, address, GPUs and volumes, with retries until all exist."""
        context, services = self._context, self._services
        context.make_folders()
        retry_s = _SETUP_RETRY_S
        while True:
            try:
                if self._attachment is None:
                    await self._attach()
                if not context.devices:
                    context.devices = services.devices.take(wants_gpus(self.pod, services.settings.gpu_resource))
                context.volumes = PodVolumes(
                    context.folder / "volumes",
                    context.facts,
                    services.objects,
                    services.tokens,
                    services.settings.cache_socket_dir,
                )
                await context.volumes.set_up()
                self._writer.changed()
                return
            except VolumeError as error:
                services.event(self.pod, "Warning", "FailedMount", str(error))
            except (NetworkError, Exhausted) as error:
                services.event(self.pod, "Warning", "FailedCreatePodSandBox", str(error))
            self._writer.changed()
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _SETUP_RETRY_LONGEST_S)

    async def _attach(self) -> None:
        if self.pod.spec.host_network:
            self._context.ip = self._services.settings.address
            self._attachment = Attachment(self._context.ip)
        else:
            self._attachment = await self._services.network.attach(self.pod.uid, self._before.pod_ip)
            self._context.ip, self._context.netns = self._attachment.ip, self._attachment.netns

    async def _keep_volumes_fresh(self) -> None:
        """Update the volumes after changes of ConfigMaps, Secrets, labels and tokens."""
        volumes = self._context.volumes
        assert volumes is not None
        period_s = self._services.settings.sync_period_s
        while True:
            try:
                async with asyncio.timeout(volumes.refresh_in_s(period_s)):
                    await self._refresh.wait()
            except TimeoutError:
                pass
            self._refresh.clear()
            try:
                await volumes.set_up(self._context.facts)
            except VolumeError as error:
                self._services.event(self.pod, "Warning", "FailedMount", str(error))
                await asyncio.sleep(min(period_s, _SETUP_RETRY_LONGEST_S))

    async def _end_containers(self) -> None:
        grace = self._grace
        if grace is None:
            seconds = self.pod.spec.termination_grace_period_seconds
            grace = self._grace = Grace(30.0 if seconds is None else float(seconds))
        sidecars = [runner for runner in self.runners if is_sidecar(runner.spec)]
        others = [runner for runner in self.runners if runner not in sidecars]
        await asyncio.gather(*(runner.end(grace) for runner in others))
        for runner in reversed(sidecars):
            await runner.end(grace)

    async def _tear_down(self) -> None:
        """Release all resources when no process runs. Logs stay until the pod is deleted."""
        context, services = self._context, self._services
        settings = services.settings
        try:
            await asyncio.to_thread(sweep, settings.cluster_id, settings.node, pod_uid=self.pod.uid)
        except SweepError as error:
            services.event(self.pod, "Warning", "FailedKillPod", str(error))
        if self._attachment is not None and not self.pod.spec.host_network:
            await services.network.detach(self.pod.uid, self._attachment)
        services.devices.give_back(context.devices)
        context.devices = []
        services.tokens.forget(self.pod)
        for name in ("home", "tmp", "volumes", "messages"):
            await asyncio.to_thread(shutil.rmtree, context.folder / name, True)

    def _runner(self, container: Container, *, init: bool) -> ContainerRunner:
        known = self._before.init_container_statuses if init else self._before.container_statuses
        before = next((status for status in known if status.name == container.name), None)
        policy = self.pod.spec.restart_policy or "Always"
        if init:
            policy = "Always" if is_sidecar(container) else "Never" if policy == "Never" else "OnFailure"
        if before is not None and self.active:
            before = after_reboot(before)
        return ContainerRunner(
            self._context,
            container,
            policy,
            self._changed,
            before=before,
            runs_to_end=init and not is_sidecar(container),
            first_reason="PodInitializing" if self.pod.spec.init_containers and not init else "ContainerCreating",
        )

    def _changed(self) -> None:
        self._writer.changed()

    def _under_way(self) -> bool:
        """Returns whether the pod is just starting or ending: a report would be outdated at once."""
        if not self.active:
            return False
        waiting = [runner.status.state.waiting for runner in self._main if runner.status.state is not None]
        if self._stop.is_set() or all(runner.done for runner in self._main):
            return True
        return any(state is not None and state.reason in _STARTING for state in waiting)

    def _status(self) -> PodStatus:
        """Returns the status to report now."""
        if self._rejection is not None:
            return PodStatus(
                phase="Failed", reason=self._rejection.reason, message=f"Pod was rejected: {self._rejection.message}",
                start_time=self._start_time,
            )  # fmt: skip
        if self._was_finished:
            return self._before
        count = len(self.pod.spec.init_containers)
        statuses = [runner.status for runner in self.runners]
        findings = PodFindings(
            init=statuses[:count],
            main=statuses[count:],
            terminal=self._terminal,
            sandbox=self._attachment is not None,
            reason=self._failure.reason if self._failure and self._terminal else "",
            message=self._failure.message if self._failure and self._terminal else "",
            pod_ip=self._context.ip,
            host_ip=self._services.settings.address,
            start_time=self._start_time,
        )
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        return pod_status(self.pod, findings, self._writer.reported, now)
