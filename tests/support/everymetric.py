"""One cluster in which Muster's real processes export every metric, and a real Prometheus that scrapes them.

The nodes are process kubelets.

    with every_metric(folder, plane) as scene:
        scene.jobs.train("steady")
        scene.jobs.kill_rank("steady")
        scene.server.get("/api/v1/query", query="muster_trainingjob_faults_total")
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from muster.network.uplink.program import SERVICE
from tests.support import everyconfig, everynetwork, prometheus
from tests.support.apiserver import Api
from tests.support.everyconfig import SYSTEM, UPLINK, Json
from tests.support.everyjob import Jobs
from tests.support.everynetwork import NetworkNode, Ports
from tests.support.everyprocess import Component, Processes
from tests.support.ownserver import OwnServer
from tests.support.waiting import LONG_TIMEOUT_S, eventually


class EveryMetric:
    """The cluster, and what a test does to it.

    Args:
        folder: of all files; an empty one.
        plane: the API server.

    Attributes:
        api: the API server, as an administrator.
        processes: that export metrics, and the kubelets.
        jobs: what users run.
        network: the node whose pods move bytes.
        server: the Prometheus that scrapes all components.
        began_s: when the first process started, in seconds since 1970.
    """

    server: prometheus.Prometheus

    def __init__(self, folder: Path, plane: OwnServer) -> None:
        self.folder = folder
        self.began_s = time.time()
        self._plane = plane
        self.api = Api(plane.kubeconfig)
        self.processes = Processes(folder, plane)
        self.jobs = Jobs(self.api, folder, self.processes.logs)
        port = self.api.server.port
        assert port is not None
        ports = Ports(self.processes.free_port(), port, self.processes.hub_port)
        hub = f"{SERVICE}.{SYSTEM}.svc"
        self.network = NetworkNode(folder / "network-0", ports, self.api.kubeconfig, hub, UPLINK)

    def query(self, expression: str) -> list[Json]:
        """The samples of an instant query."""
        found: list[Json] = self.server.get("/api/v1/query", query=expression)["result"]
        return found

    def until(self, expression: str, timeout_s: float = LONG_TIMEOUT_S) -> list[Json]:
        """Wait until a query has a sample, and return all of them."""

        def asked() -> list[Json]:
            for each in self.processes.components.values():
                assert each.child.exit_code is None, f"{each.name} ended: {each.child.log_tail(30)}"
            return self.query(expression)

        found: list[Json] = eventually(expression, asked, timeout_s)
        return found

    def exported(self) -> set[str]:
        """Names of Muster's samples that Prometheus has of the components, those of histograms with their suffix."""
        return {name for name in self.server.get("/api/v1/label/__name__/values") if name.startswith("muster_")}

    def start(self) -> None:
        """Start all processes; those that can start side by side do."""
        everyconfig.create_objects(self.api, real=self._plane.kind == "real")
        self.processes.start()
        self.network.make()
        everynetwork.create_objects(self.api, [self.network.addresses(pod) for pod in range(2)])
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/muster-controller"
        eventually("controller-0 leads", lambda: self.api.send("GET", lease)[0] == 200, LONG_TIMEOUT_S)
        self.processes.control("controller-1")
        authorities, token = self.network.hub_files
        published = f"/api/v1/namespaces/{SYSTEM}/configmaps/{SERVICE}"
        eventually("the hub has a certificate", lambda: self.api.send("GET", published)[0] == 200, LONG_TIMEOUT_S)
        authorities.write_text(self.api.get(published)["data"]["ca.crt"])
        token.write_text(everynetwork.hub_token(self.api))
        child = self.network.start(self.processes.log("network-0"))
        self.processes.components["network-0"] = Component("network", "network-0", child, self.network.port)

    def stop(self) -> None:
        """End all processes."""
        self.processes.stop()
        self.network.stop()

    # What happens

    def configure(self, name: str, content: Json | str) -> None:
        """Write one of the ConfigMaps."""
        everyconfig.configure(self.api, name, content)

    def lose_api_server(self) -> None:
        """Stop the API server for good."""
        self._plane.stop()

    def restart_api_server(self) -> None:
        """Stop the API server, and start it again with its objects."""
        self._plane.stop()
        self._plane.start()


@contextlib.contextmanager
def every_metric(folder: Path, plane: OwnServer, *, rules: Sequence[Path] = ()) -> Iterator[EveryMetric]:
    """Start the cluster and Prometheus, and wait until every target was scraped and accepts clients.

    Args:
        folder: of all files; an empty one.
        plane: the API server.
        rules: files of rules for Prometheus.
    """
    prometheus.program()
    everynetwork.need_programs()
    made = EveryMetric(folder, plane)
    try:
        made.start()
        config = {"scrape_configs": made.processes.scrape_configs()}
        prometheus.write_config(folder / "prometheus", {}, rules=rules, more=config)
        with prometheus.running(folder / "prometheus", port=made.processes.prometheus_port) as server:
            made.server = server
            try:
                made.until(f"count(up == 1) == {len(made.processes.components)}")
                eventually("each process accepts clients", made.processes.accept_clients, LONG_TIMEOUT_S)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{made.processes.logs()}") from None
            yield made
    finally:
        made.stop()
