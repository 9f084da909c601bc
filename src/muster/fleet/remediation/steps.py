"""The pod that resets a node's GPUs or reboots it: made for one step, privileged, gone afterwards.

It acts on the machine through the namespaces of its process 1. It names the boot it was made for, and does nothing in
another one: a pod that is started again after the machine has come back reboots nothing.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from muster.api.names import LABEL_MANAGED_BY, MANAGED_BY
from muster.fleet.remediation.plan import RunStep
from muster.fleet.remediation.snapshot import StepView
from muster.kube.pod import Pod

LABEL_STEP: Final = "muster.dev/remediation"
"""On these pods: reset or reboot."""
ANNOTATION_SESSION: Final = "muster.dev/remediation-session"
DEADLINE_S: Final = 600
_ON_HOST: Final = "nsenter --target 1 --mount --uts --ipc --net --pid --"
_COMMANDS: Final = {
    "reset": f'{_ON_HOST} nvidia-smi --gpu-reset ${{GPUS:+-i "$GPUS"}}',
    "reboot": f"{_ON_HOST} systemctl reboot",
}


class StepSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where such pods run.

    Attributes:
        namespace: of Muster itself; pods there may be privileged (Pod Security).
        image: has a shell and nsenter, and nothing else is needed of it.
        service_account: has no rights at all.
    """

    namespace: str
    image: str
    service_account: str = "default"


def step_pod(action: RunStep, settings: StepSettings) -> dict[str, Any]:
    """Return the pod of a step."""
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
            "nodeName": action.node.name,  # no scheduler has to let it onto a node in quarantine
            "hostPID": True,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": DEADLINE_S,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "serviceAccountName": settings.service_account,
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
    """Return what is decided by."""
    session = pod.metadata.annotations.get(ANNOTATION_SESSION, "")
    phase = pod.status.phase or "Pending"
    return StepView(pod.name, pod.uid, phase, pod.spec.node_name, session)  # type: ignore[arg-type]
