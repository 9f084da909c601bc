"""The API servers every scenario runs on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.kube.config import ClusterConfig, load_config


@pytest.fixture(scope="session")
def embedded_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An embedded API server in a process of its own, for the whole session."""
    folder = tmp_path_factory.mktemp("apiserver")
    command = [sys.executable, "-m", "muster.embedded.apiserver", "--state-dir", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline() or b"{}")
            assert ready.get("ready"), (folder / "log").read_text()
            yield Path(ready["kubeconfig"])
        finally:
            process.terminate()
            process.wait(10)
            process.stdout.close()


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real)])
def cluster_config(request: pytest.FixtureRequest) -> ClusterConfig:
    """An administrator's way to the embedded API server, then to the real one."""
    if request.param == "embedded":
        return load_config(request.getfixturevalue("embedded_kubeconfig"))
    return load_config(request.getfixturevalue("real_control_plane").kubeconfig)
