"""`muster doctor` on the embedded cluster."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.apiserver import ApiServer
from tests.support.musterprogram import Muster


def test_embedded_cluster_has_no_finding_and_says_what_cannot_be_seen(
    embedded_server: ApiServer, tmp_path: Path
) -> None:
    muster = Muster(tmp_path)
    report = json.loads(muster.ok("doctor", "-o", "json", "--window=1", f"--kubeconfig={embedded_server.kubeconfig}"))
    assert report["findings"] == []
    unseen = {each["what"] for each in report["unseen"]}
    assert {"which users keep the API server busy", "latency of requests", "sizes of lists"} <= unseen
