"""Mistakes in the section `traffic`: each has a line that says what to change."""

from __future__ import annotations

import pytest

from muster.api.configtext import ConfigTextError
from muster.network.config import parse_config


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{keepDays: .nan}", "traffic.keepDays: nan is not possible; write 0 or more"),
        ("{uplinkInterfaces: [eth0, 'eth1 -j DROP']}", "traffic.uplinkInterfaces[1]: 'eth1 -j DROP' is not possible"),
        ("{uplinkInterfaces: [a-name-that-is-too-long]}", "write the name of a link, such as eth0"),
        ("{uplinkInterfaces: ['']}", "traffic.uplinkInterfaces[0]: '' is not possible"),
        ("{runtimeCgroup: /system.slice/crio.service}", "write it as system.slice/containerd.service"),
        ("{runtimeCgroup: ../cgroup}", "traffic.runtimeCgroup: '../cgroup' is not possible"),
        ("{runtimeCgroup: .}", "traffic.runtimeCgroup: '.' is not possible"),
        ("{dataCache: {socket: control.sock}}", "traffic.dataCache.socket: 'control.sock' is not possible"),
        ("{dataCache: {marks: true}}", "write the path of the cache's control socket"),
    ],
)
def test_mistake_is_named_with_what_to_change(section: str, message: str) -> None:
    with pytest.raises(ConfigTextError) as error:
        parse_config(f"traffic: {section}")
    assert message in str(error.value)


def test_values_at_the_limits_are_accepted() -> None:
    text = "{keepDays: 0, periodSeconds: 0.2, uplinkInterfaces: [bond0.100, ens5], runtimeCgroup: a/b.service}"
    assert parse_config(f"traffic: {text}").traffic.uplink_interfaces == ("bond0.100", "ens5")
