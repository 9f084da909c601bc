"""The pod that acts on a machine: what it may, and when it does nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from muster.fleet.remediation.ladder.states import NodeCare, state_of
from muster.fleet.remediation.plan import RunStep
from muster.fleet.remediation.repairs.steps import StepSettings, step_pod, view_of
from muster.fleet.remediation.snapshot import RemediationNode
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import decode, encode
from tests.unit.remediation.remediationworld import World


def pod_of(step: str, **more: object) -> dict[str, object]:
    node = RemediationNode(name="n0", uid="u")
    action = RunStep(name=f"muster-{step}-u-3", node=node, session="n0-u", step=step, boot_id="this-boot", **more)  # type: ignore[arg-type]
    return step_pod(action, StepSettings(namespace="muster-system", image="tools"))


def test_it_is_on_that_node_whatever_its_taints_with_no_token_and_for_a_bounded_time() -> None:
    spec = pod_of("reboot")["spec"]
    assert isinstance(spec, dict)
    assert spec["nodeName"] == "n0"
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] > 0


def test_it_is_known_again() -> None:
    seen = view_of(decode(encode(pod_of("reset")), Pod))
    assert (seen.session, seen.node, seen.phase) == ("n0-u", "n0", "Pending")


@pytest.mark.parametrize(("step", "said"), [("reboot", "systemctl reboot"), ("reset", "nvidia-smi --gpu-reset -i A,B")])
def test_it_does_nothing_in_another_boot_than_it_was_made_for(tmp_path: Path, step: str, said: str) -> None:
    """The command itself, with a stand-in for nsenter."""
    tool = tmp_path / "nsenter"
    tool.write_text('#!/bin/sh\necho "$@"\n')
    tool.chmod(0o755)
    spec = pod_of(step, gpus=("A", "B"))["spec"]
    assert isinstance(spec, dict)
    [container] = spec["containers"]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for here, expected in (("another-boot", ""), (boot, said)):
        env = {each["name"]: each["value"] for each in container["env"]} | {
            "BOOT": here,
            "PATH": f"{tmp_path}:/bin:/usr/bin",
        }
        ran = subprocess.run(container["command"], env=env, capture_output=True, text=True, check=True)
        assert expected in ran.stdout
        assert bool(ran.stdout) is bool(expected)


def test_a_node_has_one_state_in_a_word() -> None:
    world = World()
    assert state_of(None) is NodeCare.NONE
    world.fault("n0", "reboot")
    seen = []
    for _ in range(12):
        world.step()
        if world.sessions:
            seen.append(state_of(world.session("n0")))
    world.finish_steps()
    world.settle(1.0)
    seen.append(state_of(world.session("n0")))
    world.test("n0")
    world.settle()
    seen.append(state_of(world.session("n0")))
    assert list(dict.fromkeys(seen)) == [
        NodeCare.QUARANTINED,
        NodeCare.DRAINING,
        NodeCare.TESTING,
        NodeCare.REBOOTING,
        NodeCare.NONE,
    ]
