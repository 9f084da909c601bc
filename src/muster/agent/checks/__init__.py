"""The checks of the agent, by name. Only enabled checks are imported, to save memory."""

from __future__ import annotations

from typing import Final

CHECKS: Final[dict[str, str]] = {
    "disk": "muster.agent.checks.disk:make",
    "gpu": "muster.agent.checks.gpu:make",
    "kernel-log": "muster.agent.checks.kernellog:make",
    "kubelet": "muster.agent.checks.kubelet:make",
    "maintenance": "muster.agent.checks.maintenance:make",
    "network": "muster.agent.checks.network:make",
    "nic": "muster.agent.checks.nic:make",
    "reach": "muster.agent.checks.reach:make",
}
"""MODULE:FUNCTION that creates the check from its `Setup`."""
