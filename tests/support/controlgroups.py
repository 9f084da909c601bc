"""Whether process kubelets of these tests can limit the memory of a container."""

from __future__ import annotations

import uuid

import pytest

from muster.embedded.kubelet.containers.cgroups import ControlGroups


def need_control_groups() -> None:
    """Skip the test where this user may make no control groups."""
    groups = ControlGroups(uuid.uuid4().hex, "probe")
    group = groups.container("probe", 1 << 30, 0)
    group.remove()
    groups.remove()
    if not group.folders:
        pytest.skip("no control groups for this user")
