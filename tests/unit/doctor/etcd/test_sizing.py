"""Settings for a planned size."""

from __future__ import annotations

import pytest

from muster.doctor.etcd.access import base_url
from muster.doctor.etcd.sizing import QUOTA_DEFAULT, QUOTA_MOST, Settings, Size, settings_for
from muster.doctor.etcd.snippets import apiserver_flags, command, static_pod, systemd_unit


def quotas(settings: Settings) -> list[int]:
    return [int(cluster.flags["quota-backend-bytes"]) for cluster in settings.clusters]


def test_small_cluster_keeps_the_defaults() -> None:
    settings = settings_for(Size(100, 3000, 5))
    assert (settings.split_events, quotas(settings), settings.warnings) == (False, [QUOTA_DEFAULT], ())
    assert apiserver_flags(settings) == ["--etcd-compaction-interval=5m0s"]


@pytest.mark.parametrize("size", [Size(1000, 10, 0), Size(10, 10, 50)], ids=["nodes", "events"])
def test_events_are_split_from_a_size_on(size: Size) -> None:
    settings = settings_for(size)
    assert [cluster.name for cluster in settings.clusters] == ["main", "events"]
    assert "--etcd-servers-overrides=/events#https://EVENTS_HOST:2382" in apiserver_flags(settings)


def test_quota_grows_with_the_plan_and_is_at_most_8_gib() -> None:
    sizes = [Size(nodes, 30 * nodes, nodes / 20) for nodes in (1_000, 7_500, 50_000)]
    mains = [quotas(settings_for(size))[0] for size in sizes]
    assert mains == sorted(mains)
    assert mains[0] < mains[-1] == QUOTA_MOST
    assert settings_for(sizes[0]).warnings == ()
    assert "should not be above 8 GiB" in settings_for(sizes[-1]).warnings[0]


def test_busy_etcd_gets_a_disk_for_its_log() -> None:
    main, events = settings_for(Size(7_500, 200_000, 375)).clusters
    assert (main.separate_wal_disk, events.separate_wal_disk) == (True, False)
    assert "--wal-dir=/var/lib/etcd-wal" in command(main)
    paths = {volume["hostPath"]["path"] for volume in static_pod(main)["spec"]["volumes"]}
    assert {"/var/lib/etcd", "/var/lib/etcd-wal"} <= paths


def test_both_clusters_fit_on_one_machine() -> None:
    main, events = settings_for(Size(1000, 0, 0)).clusters
    own = ("--name=", "--initial-cluster=")
    shared = {word for word in {*command(main)} & {*command(events)} if "://" in word or "/var/lib" in word}
    assert shared == {word for word in shared if word.startswith(own)} == set()
    assert systemd_unit(events)["Service"]["ExecStart"].endswith(" ".join(command(events)[1:]))


@pytest.mark.parametrize("text", ["https://a:2379/metrics", "https://a:2379", "https://a:2379/"])
def test_address_of_metrics_may_have_their_path(text: str) -> None:
    assert base_url(text) == "https://a:2379"


@pytest.mark.parametrize("text", ["a:2379", "https://", "https://a/x", "https://a?x=1", "https://user@a", "ftp://a"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="etcd's metrics"):
        base_url(text)
