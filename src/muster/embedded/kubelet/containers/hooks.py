"""Runs postStart and preStop hooks.

Source: https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/
"""

from __future__ import annotations

import asyncio

from muster.embedded.kubelet.containers.commands import CommandError, run_command
from muster.embedded.kubelet.containers.requests import ProbeFailed, http_get
from muster.embedded.kubelet.containers.running import RunningContainer
from muster.kube.objects.container import LifecycleHandler


class HookError(Exception):
    """A hook failed."""


async def run_hook(runner: RunningContainer, hook: LifecycleHandler) -> None:
    """Run a hook to its end; raises HookError. The caller limits the time."""
    try:
        if hook.exec is not None:
            code, output = await run_command(runner, hook.exec.command, None)
            if code != 0:
                raise HookError(f"hook command {' '.join(hook.exec.command)!r} exited with {code}: {output.strip()}")
        elif hook.http_get is not None:
            await http_get(hook.http_get, runner.pod_ip, runner.spec.ports, 30.0)
        elif hook.sleep is not None:
            await asyncio.sleep(hook.sleep.seconds)
    except (CommandError, ProbeFailed) as error:
        raise HookError(str(error)) from error
