"""What the daemon exports about itself."""

from __future__ import annotations

import contextlib
import os
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from muster.controlplane.ports import free_port
from muster.data.cache.accounts import OTHER, Account
from muster.data.cache.metrics import MAX_LABELS, METRICS, labelled
from tests.support.nodecache import SECRET, node_cache
from tests.support.waiting import eventually
from tests.unit.data.cache.conftest import Bench


@pytest.mark.slow
def test_metrics_count_bytes_by_job_and_source(running: Bench, tmp_path: Path) -> None:
    port = free_port()
    with node_cache(tmp_path / "metrics", "--size=1Gi", "--floor=0", f"--metrics-port={port}") as cache:
        counted = running._replace(cache=cache)

        def get(path: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=20) as answer:
                return str(answer.read().decode())

        def healthy() -> bool:
            with contextlib.suppress(OSError):
                return get("healthz") == "ok\n"
            return False

        eventually("it is healthy", healthy)
        key = counted.put(b"x" * 500)
        for _ in range(3):
            assert counted.read(key) == b"x" * 500
        text = get("metrics")
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert {re.sub("_total$", "", metric.name) for metric in METRICS} <= families.keys()
        read = {tuple(sample.labels.values()): sample.value for sample in families["muster_cache_read_bytes"].samples}
        job = f"uid:{os.getuid()}"
        assert (read[job, "bucket"], read[job, "disk"], read[job, "peer"]) == (500, 1000, 0)
        results = {sample.labels["result"]: sample.value for sample in families["muster_cache_blocks"].samples}
        assert results == {"hit": 2, "miss": 1}
        assert [sample.labels["loop"] for sample in families["muster_progress_age_seconds"].samples] == ["sweep"]
        assert SECRET not in text


def test_series_of_jobs_are_bounded_and_named_once() -> None:
    accounts = {f"uid-{number}": Account(f"ns/job-{number % 100}", bucket=number) for number in range(300)}
    found = labelled({OTHER: Account(), **accounts})
    names = [account.name for account in found]
    assert len(names) == len(set(names)) <= MAX_LABELS + 1
    assert found[0].name == OTHER
    assert found[-1].bucket == 299
