"""The privileged pod that resets a node's GPUs or reboots it: created for one step and deleted afterwards.

It acts on the machine through the namespaces of process 1. It names the boot for which it was created and does nothing
in another boot. So a pod that starts again after the reboot does not reboot again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from muster.api.names import LABEL_MANAGED_BY, MANAGED_BY
from muster.fleet.remediation.plan import RunStep
from muster.fleet.remediation.snapshot import StepView
from muster.kube.objects.pod import Pod

LABEL_STEP: Final = "muster.dev/remediation"
"""Label of these pods: reset or reboot."""
ANNOTATION_SESSION: Final = "muster.dev/remediation-session"
DEADLINE_S: Final = 600
_ON_HOST: Final = "nsenter --target 1 --mount --uts --ipc --net --pid --"
_COMMANDS: Final = {
    "reset": f'{_ON_HOST} nvidia-smi --gpu-reset ${{GPUS:+-i "$GPUS"}}',
    "reboot": f"{_ON_HOST} systemctl reboot",
}


class StepSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of these pods.

    Attributes:
        namespace: Muster's namespace, where pods may be privileged (Pod Security).
        image: needs only a shell and nsenter.
    """

    namespace: str
    image: str


def step_pod(action: RunStep, settings: StepSettings) -> dict[str, Any]:
    """Return the pod of a step as a manifest."""
    guard = 'test "$(cat /proc/sys/kernel/random/boot_id)" = "$BOOT" || exit 0'
    env = [{"name": "BOOT", "value": action.boot_id}, {"name": "GPUS", "value": ",".join(action.gpus)}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": action.name,
            "namespace": settings.namespace,
            "labels": {LABEL_MANAGED_BY: MANAGED_BY, LABEL_STEP: action.step},
            "annotations": {ANNOTATION_SESSION: action.session},
        },
        "spec": {
            "nodeName": action.node.name,  # bypasses the scheduler, which would not bind to a node in quarantine
            "hostPID": True,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": DEADLINE_S,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "serviceAccountName": "default",
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": action.step,
                    "image": settings.image,
                    "command": ["sh", "-c", f"{guard}; exec {_COMMANDS[action.step]}"],
                    "env": env,
                    "securityContext": {"privileged": True},
                    "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "256Mi"}},
                }
            ],
        },
    }


def view_of(pod: Pod) -> StepView:
    """Return the pod in the form that `decide` uses."""
    session = pod.metadata.annotations.get(ANNOTATION_SESSION, "")
    phase = pod.status.phase or "Pending"
    return StepView(pod.name, pod.uid, phase, pod.spec.node_name, session)  # type: ignore[arg-type]
