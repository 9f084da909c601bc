"""The names of cgroups: both drivers, both versions, nodes that are containers, static pods."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.network.localpods.cgroups import Cgroups

UID = "0a1b2c3d-1111-2222-3333-444455556666"
SLICE = UID.replace("-", "_")


@pytest.mark.parametrize(
    "folder",
    [
        f"kubepods/pod{UID}",
        f"kubepods/burstable/pod{UID}",
        f"kubepods/besteffort/pod{UID}",
        f"kubepods.slice/kubepods-pod{SLICE}.slice",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice",
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{SLICE}.slice",
        f"kubelet/kubepods/burstable/pod{UID}",
    ],
)
def test_pod_is_found_with_either_driver_and_below_other_folders(folder: str, tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    for other in range(50):
        (tmp_path / f"system.slice/unit{other}.service").mkdir(parents=True)
    cgroups = Cgroups(tmp_path)
    assert cgroups.find(UID) == ()
    (tmp_path / folder).mkdir(parents=True)
    assert cgroups.find(UID) == (folder,)
    assert cgroups.find("another") == ()


def test_hybrid_host_has_version_2_first_and_one_folder_for_each_hierarchy(tmp_path: Path) -> None:
    for hierarchy in ("net_cls,net_prio", "unified", "memory"):
        (tmp_path / hierarchy / f"kubepods/burstable/pod{UID}").mkdir(parents=True)
    (tmp_path / "net_cls").symlink_to("net_cls,net_prio")
    found = Cgroups(tmp_path).find(UID)
    assert found[:2] == (f"unified/kubepods/burstable/pod{UID}", f"net_cls,net_prio/kubepods/burstable/pod{UID}")
    assert len({(tmp_path / each).resolve() for each in found}) == 2


def test_uid_of_one_pod_does_not_match_another_one_that_it_begins_with(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / f"kubepods/pod{UID}x").mkdir(parents=True)
    assert Cgroups(tmp_path).find(UID) == ()


def test_pods_without_a_group_do_not_each_search_the_hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / f"kubepods/pod{UID}").mkdir(parents=True)
    cgroups = Cgroups(tmp_path)
    assert cgroups.find(UID)
    looked: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: looked.append(str(folder)) or scandir(folder))
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    assert [cgroups.find(f"gone-{number}") for number in range(500)] == [()] * 500
    assert 0 < len(looked) < 20
