"""The chart mounts the kernel's settings writable only for parts that change them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.deploy.conftest import Helm
from tests.scenarios.deploy.test_network_agent import network, rendered

TUNING = {"tuning": {"enabled": True, "conntrack": {"max": 1048576}}}


@pytest.mark.slow
@pytest.mark.parametrize(("config", "writable"), [({}, False), (TUNING, True)])
def test_settings_of_the_kernel_are_writable_only_with_tuning(
    offline_helm: Helm, tmp_path: Path, config: dict[str, Any], writable: bool
) -> None:
    pod = rendered(offline_helm, tmp_path, network(**config))["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert mounts["/host/proc"]["readOnly"] is True
    assert ("/host/proc/sys/net" in mounts) == writable
    if writable:
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert volumes[mounts["/host/proc/sys/net"]["name"]]["hostPath"]["path"] == "/proc/sys/net"
        assert pod["hostNetwork"] is True
