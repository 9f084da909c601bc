"""What is counted on a node and who is charged: pods, host-network pods, the data cache's jobs, image pulls."""

from __future__ import annotations

from typing import Any

from muster.network.localpods.pod import LocalPod
from muster.network.traffic.cachejobs import CacheJob
from muster.network.traffic.ledger.charges import Owner, Share
from muster.network.traffic.subjects import checked
from muster.network.traffic.wanted import Wanted, cache_shares, pull_shares, rdma_owner, wanted


def pod(name: str, job: str = "train", **more: Any) -> LocalPod:
    found = {"namespace": "ns", "phase": "Running", "addresses": (f"10.0.0.{len(name)}",), **more}
    return LocalPod(name=name, uid=f"uid-{name}", job=job, **found)


def counted(*pods: LocalPod, cgroups: dict[str, str] | None = None, jobs: tuple[CacheJob, ...] = ()) -> Wanted:
    known = cgroups or {}
    return wanted(pods, lambda each: [known[each.name]] if each.name in known else [], "/cg/containerd", jobs)


def test_pod_is_counted_by_its_addresses_and_a_host_network_pod_by_its_cgroup() -> None:
    both = pod("a", addresses=("10.0.0.1", "fd00::1")), pod("host", host_network=True, addresses=("192.0.2.1",))
    found = counted(*both, cgroups={"host": "/cg/pod-host"})
    by_owner = {found.owners[each.id].pod: each for each in found.subjects}
    assert by_owner["a"].addresses == ("10.0.0.1", "fd00::1")
    assert (by_owner["host"].addresses, by_owner["host"].cgroup) == ((), "/cg/pod-host")
    assert found.uncounted == ()


def test_backend_that_counts_by_cgroup_gets_those_of_all_pods() -> None:
    """Its address is then only what stays on the node. A pod without either is not counted yet."""
    groups = {"a": "/cg/pod-a", "host": "/cg/pod-host"}
    present = (pod("a"), pod("host", host_network=True), pod("new", addresses=()))
    found = wanted(present, lambda each: [groups[each.name]] if each.name in groups else [], "", (), all_by_cgroup=True)
    assert {each.cgroup: each.addresses for each in found.subjects} == {
        "/cg/pod-a": ("10.0.0.1",),
        "/cg/pod-host": (),
    }
    known = counted(pod("a"), cgroups=groups).subjects[0]
    assert (known.cgroup, known.addresses) == ("", ("10.0.0.1",))


def test_host_network_pod_without_a_cgroup_is_named_and_not_counted_by_the_address_of_the_node() -> None:
    found = counted(pod("host", host_network=True, addresses=("192.0.2.1",)))
    assert found.uncounted == ("ns/host",)
    assert not any(each.addresses for each in found.subjects)


def test_ended_pod_leaves_its_address_to_the_next_one() -> None:
    old, new = pod("x", phase="Succeeded", created_s=2.0), pod("y", created_s=1.0)
    found = counted(old, new)
    assert [found.owners[each.id].pod for each in found.subjects if each.addresses] == ["y"]


def test_newer_one_of_two_pods_with_an_address_has_it() -> None:
    old = pod("x", created_s=1.0, addresses=("10.0.0.1", "fd00::1"))
    found = counted(old, pod("y", created_s=2.0))
    assert {found.owners[each.id].pod: each.addresses for each in found.subjects if each.addresses} == {
        "x": ("fd00::1",),
        "y": ("10.0.0.1",),
    }


def test_id_of_a_subject_changes_with_its_addresses_and_not_with_the_order_of_pods() -> None:
    one, two = pod("a"), pod("bb")
    assert {each.id for each in counted(one, two).subjects} == {each.id for each in counted(two, one).subjects}
    moved = pod("a", addresses=("10.9.9.9",))
    assert {each.id for each in counted(one).subjects} != {each.id for each in counted(moved).subjects}


def test_mark_of_the_data_cache_is_charged_to_its_job_and_team() -> None:
    jobs = (CacheJob("ns", "train", 0x1001, 5), CacheJob("", "", 0x1002, 5), CacheJob("ns", "idle", 0, 9))
    found = counted(pod("a", team="vision"), jobs=jobs)
    marks = {each.mark: found.owners[each.id] for each in found.subjects if each.mark}
    assert marks == {0x1001: Owner("ns", "train", "vision"), 0x1002: Owner("", "(data-cache)", "")}


def test_image_pulls_are_shared_by_the_jobs_that_wait_by_number_of_images() -> None:
    waiting = [pod("a", pulling=("big:1",)), pod("b", pulling=("big:1",)), pod("c", "web", pulling=("web:1", "x:2"))]
    assert pull_shares(waiting, ()) == (Share(Owner("ns", "train", ""), 1), Share(Owner("ns", "web", ""), 2))
    assert pull_shares([pod("a")], waiting[:1]) == (Share(Owner("ns", "train", ""), 1),), "it ended since"
    assert pull_shares([pod("a")], ()) == ()


def test_cache_without_marks_is_shared_by_what_each_job_read_since() -> None:
    before = [CacheJob("ns", "train", 0, 1000), CacheJob("ns", "web", 0, 500)]
    now = [CacheJob("ns", "train", 0, 1300), CacheJob("ns", "web", 0, 500), CacheJob("", "", 0, 100)]
    assert cache_shares([pod("a", team="vision")], before, now) == (
        Share(Owner("", "(data-cache)", ""), 100),
        Share(Owner("ns", "train", "vision"), 300),
    )
    restarted = [CacheJob("ns", "train", 0, 40)]
    assert cache_shares([], before, restarted) == (Share(Owner("ns", "train", ""), 40),)


def test_rdma_ports_are_charged_to_the_one_job_that_may_use_them() -> None:
    train = [pod("a", rdma=True), pod("b", rdma=True)]
    assert rdma_owner([*train, pod("c", "web")]) == Owner("ns", "train", "")
    assert rdma_owner([pod("c", "web")], train) == Owner("ns", "train", ""), "it ended since the last reading"
    assert rdma_owner([*train, pod("c", "web", rdma=True)]) == Owner("", "(shared-rdma)", "")
    assert rdma_owner([pod("c", "web"), pod("a", rdma=True, phase="Failed")]) == Owner("", "(host)", "")


def test_mark_that_is_not_the_caches_or_that_two_jobs_have_does_not_end_the_counting() -> None:
    marks = [("a", 0x1001), ("b", 0x1001), ("c", 0x11001), ("d", 1), ("e", -1)]
    found = counted(jobs=tuple(CacheJob("ns", job, mark, 0) for job, mark in marks))
    checked(found.subjects)
    assert {each.mark: found.owners[each.id].job for each in found.subjects if each.mark} == {0x1001: "a"}
