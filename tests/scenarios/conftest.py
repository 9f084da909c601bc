"""The API servers every scenario runs on."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from muster.kube.connection.config import ClusterConfig, load_config
from tests.support.apiserver import ApiServer, EmbeddedServer
from tests.support.controlplane import RealCluster

_SERVER = pytest.StashKey[EmbeddedServer]()


@pytest.fixture(scope="session")
def embedded_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An embedded API server in a process of its own, for the whole session."""
    server = EmbeddedServer(tmp_path_factory.mktemp("apiserver"))
    server.start()
    pytestconfig.stash[_SERVER] = server
    try:
        yield ApiServer("embedded", server.kubeconfig, server.kubelet_flags)
    finally:
        del pytestconfig.stash[_SERVER]
        server.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed on the embedded API server shows what that one said."""
    report = yield
    server = item.config.stash.get(_SERVER, None)
    if report.failed and server and "embedded_server" in getattr(item, "funcargs", {}):
        report.sections.append(("The embedded API server's log", server.log()))
    return report


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real)])
def api_server(request: pytest.FixtureRequest) -> ApiServer:
    """The embedded API server, then the real one."""
    if request.param == "embedded":
        embedded: ApiServer = request.getfixturevalue("embedded_server")
        return embedded
    real: RealCluster = request.getfixturevalue("real_control_plane")
    plane = real.control_plane
    return ApiServer("real", real.kubeconfig, (f"--client-ca-file={plane.ca_path}",) if plane else ())


@pytest.fixture
def api_server_for_kubelets(api_server: ApiServer) -> ApiServer:
    """The API server, which process kubelets can serve."""
    if not api_server.kubelet_flags:
        pytest.skip("a user's cluster: its API server does not share a network with this machine's loopback")
    return api_server


@pytest.fixture(scope="session")
def scheduler_config() -> str:
    """Text of the ConfigMap muster-scheduler; "" for none. A folder may have another one."""
    return ""


@pytest.fixture
def cluster_config(api_server: ApiServer) -> ClusterConfig:
    """An administrator's way to the API server."""
    return load_config(api_server.kubeconfig)
