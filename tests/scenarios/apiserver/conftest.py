from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.drills.clusteraccess import ClusterAccess
from tests.support.apiserver import Api, EmbeddedServer


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    server = EmbeddedServer(tmp_path_factory.mktemp("embedded"), "--node-monitor-grace-s", "1000000")
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def kubectl(embedded: Api, tmp_path_factory: pytest.TempPathFactory) -> ClusterAccess:
    path = shutil.which("kubectl")
    if path is None:
        pytest.skip("no kubectl on PATH")
    return ClusterAccess(embedded.kubeconfig, tmp_path_factory.mktemp("kubectl"), Path(path))
