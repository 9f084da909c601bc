"""Creates the volumes of a pod as folders, and finds the real paths of its containers' mounts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from muster.api.names import CACHE_DIRECTORY
from muster.embedded.kubelet.cachesocket import cache_sockets
from muster.embedded.kubelet.containers.atomic_folder import write_atomically
from muster.embedded.kubelet.containers.downward import PodFacts, UnknownField
from muster.embedded.kubelet.containers.expansion import expand
from muster.embedded.kubelet.pods.objects import MissingObject, ObjectSource, TokenSource
from muster.kube.objects.container import Container
from muster.kube.objects.volume import DownwardAPIVolumeFile, KeyToPath, ProjectedVolumeSource, Volume

_DEFAULT_MODE = 0o644
_DEFAULT_TOKEN_S = 3607  # as in the API server's own projected volumes


class VolumeError(Exception):
    """A volume could not be set up; the message names it."""


class PodVolumes:
    """The volumes of one pod below `folder`."""

    def __init__(
        self,
        folder: Path,
        facts: PodFacts,
        objects: ObjectSource,
        tokens: TokenSource,
        cache_socket_dir: Path | None = None,
    ) -> None:
        self._cache_socket_dir = cache_socket_dir
        self._folder = folder
        self._facts = facts
        self._objects = objects
        self._tokens = tokens
        self._paths: dict[str, Path] = {}

    async def set_up(self, facts: PodFacts | None = None) -> None:
        """Create or update every volume (with new `facts` if the pod changed). Raises VolumeError."""
        self._facts = facts or self._facts
        for volume in self._facts.pod.spec.volumes:
            try:
                self._paths[volume.name] = await self._make(volume)
            except (MissingObject, UnknownField, ValueError, OSError) as error:
                raise VolumeError(f'MountVolume.SetUp failed for volume "{volume.name}" : {error}') from error

    def refresh_in_s(self, period_s: float) -> float:
        """Seconds until the next refresh: `period_s`, or less if a token expires earlier."""
        token_in_s = self._tokens.refresh_in_s(self._facts.pod)
        return period_s if token_in_s is None else min(period_s, max(0.1, token_in_s))

    def mounts(self, container: Container, variables: Mapping[str, str]) -> dict[str, str]:
        """Return mountPath -> real folder or file, without mounts that are not replaced. Raises VolumeError."""
        volumes = {volume.name: volume for volume in self._facts.pod.spec.volumes}
        found = {}
        for mount in container.volume_mounts:
            volume = volumes.get(mount.name)
            if volume is None or mount.name not in self._paths:
                raise VolumeError(f'volume "{mount.name}" of container "{container.name}" is not there')
            if volume.empty_dir and volume.empty_dir.medium == "Memory" and mount.mount_path.rstrip("/") == "/dev/shm":
                continue  # programs open this machine's own /dev/shm
            real = self._paths[mount.name]
            below = mount.sub_path or expand(mount.sub_path_expr, variables)
            if below:
                if below.startswith("/") or ".." in PurePosixPath(below).parts:
                    raise VolumeError(f'subPath "{below}" must stay inside the volume')
                real = real / below
                if volume.empty_dir is not None or volume.host_path is not None:
                    _make_folder(real)
            found[mount.mount_path] = str(real)
        return found

    async def _make(self, volume: Volume) -> Path:
        folder = self._folder / volume.name
        namespace = self._facts.pod.namespace
        payload: dict[str, tuple[bytes, int]]
        if volume.host_path is not None:
            if self._cache_socket_dir is not None and volume.host_path.path.rstrip("/") == CACHE_DIRECTORY:
                return await asyncio.to_thread(cache_sockets, self._cache_socket_dir)
            return _host_path(volume.host_path.path, volume.host_path.type or "")
        if volume.empty_dir is not None:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
            return folder
        if volume.config_map is not None:
            source = volume.config_map
            data = await self._config_map(namespace, source.name, bool(source.optional))
            payload = _pick(data, source.items, source.default_mode, bool(source.optional))
        elif volume.secret is not None:
            secret = volume.secret
            data = await self._secret(namespace, secret.secret_name, bool(secret.optional))
            payload = _pick(data, secret.items, secret.default_mode, bool(secret.optional))
        elif volume.downward_api is not None:
            payload = self._downward(volume.downward_api.items, volume.downward_api.default_mode)
        elif volume.projected is not None:
            payload = await self._projected(volume.projected)
        else:
            raise ValueError(
                "the process kubelet has emptyDir, hostPath, configMap, secret, projected and downwardAPI volumes only"
            )
        write_atomically(folder, payload)
        return folder

    async def _projected(self, projected: ProjectedVolumeSource) -> dict[str, tuple[bytes, int]]:
        namespace = self._facts.pod.namespace
        mode = projected.default_mode
        payload: dict[str, tuple[bytes, int]] = {}
        for source in projected.sources:
            if source.config_map is not None:
                optional = bool(source.config_map.optional)
                data = await self._config_map(namespace, source.config_map.name, optional)
                payload |= _pick(data, source.config_map.items, mode, optional)
            if source.secret is not None:
                optional = bool(source.secret.optional)
                data = await self._secret(namespace, source.secret.name, optional)
                payload |= _pick(data, source.secret.items, mode, optional)
            if source.downward_api is not None:
                payload |= self._downward(source.downward_api.items, mode)
            if source.service_account_token is not None:
                wanted = source.service_account_token
                lifetime_s = wanted.expiration_seconds or _DEFAULT_TOKEN_S
                token = await self._tokens.token(self._facts.pod, wanted.audience, lifetime_s)
                payload[wanted.path] = (token.encode(), _DEFAULT_MODE if mode is None else mode)
        return payload

    def _downward(
        self, items: Sequence[DownwardAPIVolumeFile], default_mode: int | None
    ) -> dict[str, tuple[bytes, int]]:
        payload = {}
        for item in items:
            text = ""
            if item.field_ref is not None:
                text = self._facts.field(item.field_ref)
            elif item.resource_field_ref is not None:
                text = self._facts.resource(item.resource_field_ref)
            payload[item.path] = (text.encode(), _mode(item.mode, default_mode))
        return payload

    async def _config_map(self, namespace: str, name: str, optional: bool) -> Mapping[str, bytes]:
        try:
            return await self._objects.config_map(namespace, name)
        except MissingObject:
            if optional:
                return {}
            raise

    async def _secret(self, namespace: str, name: str, optional: bool) -> Mapping[str, bytes]:
        try:
            return await self._objects.secret(namespace, name)
        except MissingObject:
            if optional:
                return {}
            raise


def _mode(mode: int | None, default_mode: int | None) -> int:
    if mode is not None:
        return mode
    return _DEFAULT_MODE if default_mode is None else default_mode


def _pick(
    data: Mapping[str, bytes], items: Sequence[KeyToPath], default_mode: int | None, optional: bool
) -> dict[str, tuple[bytes, int]]:
    """Return the files of a ConfigMap or Secret: all keys, or the named items."""
    if not items:
        return {key: (value, _mode(None, default_mode)) for key, value in data.items()}
    payload = {}
    for item in items:
        if item.key in data:
            payload[item.path] = (data[item.key], _mode(item.mode, default_mode))
        elif not optional:
            raise MissingObject(f"references non-existent config key: {item.key}")
    return payload


def _make_folder(path: Path) -> None:
    """Create the folder of a subPath, unless a file of that name exists."""
    if not path.exists():
        path.mkdir(parents=True)
        path.chmod(0o777)


def _host_path(path: str, kind: str) -> Path:
    real = Path(path)
    if kind == "DirectoryOrCreate":
        real.mkdir(mode=0o755, parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        real.touch(mode=0o644, exist_ok=True)
    elif kind == "Directory" and not real.is_dir():
        raise ValueError(f"hostPath type check failed: {path} is not a directory")
    elif kind == "File" and not real.is_file():
        raise ValueError(f"hostPath type check failed: {path} is not a file")
    elif kind == "Socket" and not real.is_socket():
        raise ValueError(f"hostPath type check failed: {path} is not a socket file")
    return real
