"""Converts a container to a process of this machine: command, user, folder and environment."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.embedded.kubelet.containers.cgroups import ContainerGroup
from muster.embedded.kubelet.containers.environment import ConfigError, declared_environment
from muster.embedded.kubelet.containers.expansion import expand
from muster.embedded.kubelet.containers.process import ProcessSpec
from muster.embedded.kubelet.containers.translate import PathTranslator
from muster.embedded.kubelet.containers.volumes import VolumeError
from muster.embedded.kubelet.pods.context import PodContext
from muster.kube.objects.container import Container, SecurityContext
from muster.kube.objects.pod import Pod, PodSecurityContext
from muster.kube.objects.quantity import to_int

_DEFAULT_MESSAGE_PATH = "/dev/termination-log"
_SERVICE_ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


class CreateError(Exception):
    """A container cannot be created; reported as CreateContainerError."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """The settings of one start of a container.

    Attributes:
        container_id: new for each start.
        argv, env, cwd: command, environment and folder, with real paths.
        translator: converts mount paths to real paths, for later commands.
        message_file: the file of its termination message.
        group: its control groups.
        netns, tty, uid, gid, groups: as in ProcessSpec.
    """

    container_id: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    translator: PathTranslator
    message_file: Path
    group: ContainerGroup
    netns: str
    tty: bool
    uid: int | None
    gid: int | None
    groups: Sequence[int] | None

    def process_spec(self, *, log: str, log_max_bytes: int, log_max_files: int) -> ProcessSpec:
        """Return the container's main process with its log."""
        spec = self._spec(self.argv, log=log, stdio=None, tty=self.tty)
        return dataclasses.replace(spec, log_max_bytes=log_max_bytes, log_max_files=log_max_files)

    def command_spec(self, argv: Sequence[str], stdio: tuple[int, int, int], *, tty: bool = False) -> ProcessSpec:
        """Return another process in the container."""
        return self._spec([self.translator.text(part) for part in argv], log=None, stdio=stdio, tty=tty)

    def _spec(
        self, argv: Sequence[str], *, log: str | None, stdio: tuple[int, int, int] | None, tty: bool
    ) -> ProcessSpec:
        return ProcessSpec(
            argv=argv,
            env=self.env,
            cwd=self.cwd,
            log=log,
            stdio=stdio,
            tty=tty,
            cgroups=self.group.join,
            netns=self.netns,
            uid=self.uid,
            gid=self.gid,
            groups=self.groups,
        )


async def prepare(context: PodContext, container: Container, container_id: str) -> Launch:
    """Prepare one start of a container.

    Raises:
        ConfigError: it refers to an object that does not exist.
        CreateError: it has no command (there is no image to take one from), or a volume mount is invalid.
    """
    services = context.services
    declared = await declared_environment(context.facts, container, services.objects, services.service_variables)
    if not container.command:
        raise CreateError(
            f'container "{container.name}" has no command: images are not pulled here, so there is no entrypoint to '
            "run; set `command`"
        )
    uid, gid, groups = _user(context.pod, container)
    message_file = context.folder / "messages" / f"{container.name}-{container_id[:12]}"
    message_file.touch()
    try:
        mounts = context.volumes.mounts(container, declared) if context.volumes else {}
    except VolumeError as error:
        raise CreateError(str(error)) from error
    translator = PathTranslator(
        mounts | {container.termination_message_path or _DEFAULT_MESSAGE_PATH: str(message_file)}
    )
    env = {name: translator.text(value) for name, value in declared.items()}
    own = context.own_variables(container_id, _devices(context, container))
    if _SERVICE_ACCOUNT_PATH in mounts:
        own["MUSTER_SERVICE_ACCOUNT_DIR"] = mounts[_SERVICE_ACCOUNT_PATH]
    markers = {name: value for name, value in own.items() if name.startswith("MUSTER_")}
    env = own | env | markers
    if "PATH" in declared:
        env["PATH"] = f"{own['PATH'].split(':')[0]}:{env['PATH']}"
    if uid:
        for path in (message_file, context.folder / "home"):
            os.chown(path, uid, -1)
    limits = container.resources.limits if container.resources else {}
    log_folder = context.log_folder(container.name)
    log_folder.mkdir(parents=True, exist_ok=True)
    group = services.cgroups.container(container_id, to_int(limits.get("memory", 0)), services.settings.pod_pids_limit)
    return Launch(
        container_id=container_id,
        argv=[translator.text(expand(part, declared)) for part in (*container.command, *container.args)],
        env=env,
        cwd=translator.text(container.working_dir) or str(context.folder / "home"),
        translator=translator,
        message_file=message_file,
        group=group,
        netns=context.netns,
        tty=container.tty,
        uid=uid,
        gid=gid,
        groups=groups,
    )


def _devices(context: PodContext, container: Container) -> Sequence[int]:
    """Returns the pod's GPUs that a container may use.

    They are divided among the main containers. An init container runs earlier and may use the same GPUs.
    """
    resource = context.services.settings.gpu_resource
    before = 0
    for other in context.pod.spec.containers if container in context.pod.spec.containers else ():
        if other.name == container.name:
            break
        before += _gpus(other, resource)
    return context.devices[before : before + _gpus(container, resource)]


def _gpus(container: Container, resource: str) -> int:
    return to_int(container.resources.limits.get(resource, 0)) if container.resources else 0


def _user(pod: Pod, container: Container) -> tuple[int | None, int | None, Sequence[int] | None]:
    """Returns the user of a container; only root may change it, any other user runs all containers as itself."""
    shared, own = pod.spec.security_context or PodSecurityContext(), container.security_context or SecurityContext()
    uid = shared.run_as_user if own.run_as_user is None else own.run_as_user
    gid = shared.run_as_group if own.run_as_group is None else own.run_as_group
    non_root = shared.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root
    if non_root and (uid == 0 or (uid is None and os.geteuid() == 0)):
        raise ConfigError("container has runAsNonRoot and would run as root")
    if os.geteuid() != 0 or (uid is None and gid is None):
        return None, None, None
    return uid or 0, gid or 0, [*shared.supplemental_groups, *([shared.fs_group] if shared.fs_group else [])]


def wants_gpus(pod: Pod, resource: str) -> int:
    """Returns the number of GPUs of a pod: the sum over its containers, or the largest init container."""
    main = sum(_gpus(container, resource) for container in pod.spec.containers)
    return max(main, *(_gpus(container, resource) for container in pod.spec.init_containers), 0)
