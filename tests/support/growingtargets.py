"""Targets of a small cluster, as Prometheus scrapes them: nodes, kube-state-metrics, and a mesh that grows squared."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.support.prometheus import write_config

PODS_PER_NODE: Final = 3


def node_page(node: str) -> str:
    """A page of a node exporter."""
    lines = [f'node_uname_info{{nodename="{node}"}} 1']
    lines += [f'node_cpu_seconds_total{{cpu="{cpu}",mode="{mode}"}} 1' for cpu in range(4) for mode in ("idle", "user")]
    return "\n".join(lines) + "\n"


def cluster_page(nodes: int) -> str:
    """A page of kube-state-metrics: one target for the whole cluster."""
    lines = [f'kube_node_info{{node="node-{node}"}} 1' for node in range(nodes)]
    for pod in range(nodes * PODS_PER_NODE):
        labels = f'namespace="team",pod="job-{pod}",uid="uid-{pod}"'
        lines += [
            f"kube_pod_info{{{labels}}} 1",
            *(f'kube_pod_phase{{{labels},phase="{phase}"}} 1' for phase in "abcde"),
        ]
    lines += [f'build_steps_total{{step="{step}"}} 1' for step in range(40)]
    return "\n".join(lines) + "\n"


def mesh_page(node: str, nodes: int) -> str:
    """A page of a prober that measures the way from its node to each other node."""
    return "".join(f'mesh_ping_seconds{{source="{node}",destination="node-{to}"}} 1\n' for to in range(nodes))


def _handler(nodes: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            node = parse_qs(parts.query).get("node", [""])[0]
            pages = {"/node": lambda: node_page(node), "/mesh": lambda: mesh_page(node, nodes)}
            body = pages.get(parts.path, lambda: cluster_page(nodes))().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    return Handler


class _Server(ThreadingHTTPServer):
    """Takes many connections at once: each target is one."""

    request_queue_size = 128


@contextlib.contextmanager
def serving(folder: Path, nodes: int, interval_s: float) -> Iterator[None]:
    """Serve the pages of a cluster, and write the configuration of a server that scrapes them."""
    server = _Server(("127.0.0.1", 0), _handler(nodes))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"

    def for_each_node(job: str, path: str) -> dict[str, Any]:
        targets = [
            {"targets": [address], "labels": {"__param_node": f"node-{node}", "instance": f"node-{node}:9100"}}
            for node in range(nodes)
        ]
        return {"job_name": job, "metrics_path": path, "static_configs": targets}

    jobs = [for_each_node("node-exporter", "/node"), for_each_node("mesh", "/mesh")]
    write_config(folder, {"kube-state-metrics": [address]}, interval_s, more={"scrape_configs": jobs})
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
