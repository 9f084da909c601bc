from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.controlplane.clusteraccess import ClusterAccess
from tests.support.apiserver import Api, EmbeddedServer
from tests.support.kubectl import kubectl_program


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    server = EmbeddedServer(tmp_path_factory.mktemp("embedded"), "--node-monitor-grace-s", "1000000")
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def kubectl(embedded: Api, tmp_path_factory: pytest.TempPathFactory) -> ClusterAccess:
    return ClusterAccess(embedded.kubeconfig, tmp_path_factory.mktemp("kubectl"), kubectl_program())
