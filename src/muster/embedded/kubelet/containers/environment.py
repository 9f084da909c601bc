"""Builds the environment of a container from the pod and the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from muster.embedded.kubelet.containers.downward import PodFacts, UnknownField
from muster.embedded.kubelet.containers.expansion import expand
from muster.embedded.kubelet.pods.objects import MissingObject, ObjectSource
from muster.kube.objects.container import Container, EnvFromSource, EnvVarSource

_FALLBACK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ConfigError(Exception):
    """A container's configuration is not valid or incomplete; reported as CreateContainerConfigError."""


def machine_environment(folder: Path) -> dict[str, str]:
    """Environment of every container: PATH (our own Python first), HOME and TMPDIR in the pod's folder, LANG."""
    binaries = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "") or _FALLBACK_PATH
    return {
        "PATH": ":".join([binaries, *(part for part in path.split(":") if part and part != binaries)]),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "LANG": "C.UTF-8",
    }


async def declared_environment(
    facts: PodFacts, container: Container, objects: ObjectSource, services: Mapping[str, str]
) -> dict[str, str]:
    """The variables that the pod declares, in order, on top of `services`; raises ConfigError.

    Later ones override earlier ones, `env` overrides `envFrom`, and `$(NAME)` refers to earlier variables.
    """
    found = dict(services)
    for source in container.env_from:
        found |= await _all_keys(facts, source, objects)
    for variable in container.env:
        if variable.value_from is None:
            found[variable.name] = expand(variable.value, found)
        else:
            value = await _value_from(facts, container, variable.value_from, objects)
            if value is not None:
                found[variable.name] = value
    return found


async def _all_keys(facts: PodFacts, source: EnvFromSource, objects: ObjectSource) -> dict[str, str]:
    data: Mapping[str, bytes] = {}
    reference = source.config_map_ref or source.secret_ref
    if reference is not None:
        read = objects.config_map if source.config_map_ref is not None else objects.secret
        try:
            data = await read(facts.pod.namespace, reference.name)
        except MissingObject as error:
            if not reference.optional:
                raise ConfigError(str(error)) from error
    return {source.prefix + key: value.decode(errors="replace") for key, value in data.items()}


async def _value_from(facts: PodFacts, container: Container, source: EnvVarSource, objects: ObjectSource) -> str | None:
    try:
        if source.field_ref is not None:
            return facts.field(source.field_ref)
        if source.resource_field_ref is not None:
            return facts.resource(source.resource_field_ref, container)
    except UnknownField as error:
        raise ConfigError(str(error)) from error
    reference = source.config_map_key_ref or source.secret_key_ref
    if reference is None:
        return None
    kind = "ConfigMap" if source.config_map_key_ref is not None else "Secret"
    read = objects.config_map if source.config_map_key_ref is not None else objects.secret
    try:
        data = await read(facts.pod.namespace, reference.name)
        if reference.key in data:
            return data[reference.key].decode(errors="replace")
    except MissingObject as error:
        if not reference.optional:
            raise ConfigError(str(error)) from error
    if reference.optional:
        return None
    raise ConfigError(f"couldn't find key {reference.key} in {kind} {facts.pod.namespace}/{reference.name}")
