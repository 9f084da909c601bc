"""Targets for Prometheus with many series: what the pods of a GPU cluster export, 100 series each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

PER_POD: Final = 100
HANDLERS: Final = ("push", "pull", "step", "health", "metrics")
BUCKETS: Final = ("0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf")
CONTAINERS: Final = ("trainer", "sidecar", "exporter")
CONTAINER_METRICS: Final = (
    "container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_memory_rss_bytes",
    "container_network_receive_bytes_total", "container_network_transmit_bytes_total", "container_fs_reads_bytes_total",
    "container_fs_writes_bytes_total", "container_threads", "container_processes", "container_file_descriptors",
)  # fmt: skip
HISTOGRAM: Final = "http_request_duration_seconds"
NAMESPACES: Final = 50
PODS_PER_NODE: Final = 4
_VALUE, _TIME = b"@V", b"@T"


def pod_lines(pod: int) -> list[str]:
    """The exposition of one pod, with placeholders for what changes from round to round."""
    labels = (
        f'namespace="team-{pod % NAMESPACES}",pod="job-{pod // 8}-worker-{pod % 8}",node="gpu-{pod // PODS_PER_NODE}"'
    )
    lines = []
    for handler in HANDLERS:
        own = f'{labels},handler="{handler}"'
        lines += [f'{HISTOGRAM}_bucket{{{own},le="{le}"}} {rank + 1}@V@T' for rank, le in enumerate(BUCKETS)]
        lines += [f"{HISTOGRAM}_{part}{{{own}}} {len(BUCKETS)}@V@T" for part in ("sum", "count")]
    for rank, name in enumerate(CONTAINER_METRICS):
        lines += [f'{name}{{{labels},container="{container}"}} {rank + 1}@V@T' for container in CONTAINERS]
    return lines


def page(pods: Sequence[int]) -> bytes:
    """The exposition of several pods, with placeholders."""
    return "\n".join(line for pod in pods for line in pod_lines(pod)).encode() + b"\n"


@dataclass
class Target:
    """One target. Without `history` each scrape sees values of now; else round after round, and then nothing.

    Attributes:
        template: a page with placeholders.
        history: the time of each round, in seconds; each is served once.
        served: how many scrapes have had a whole page; one that was cut gets the same round again.
    """

    template: bytes
    history: Sequence[float] = ()
    served: int = 0

    def page(self) -> bytes:
        """The page of the next scrape."""
        number = self.served
        if self.history and number >= len(self.history):
            return b""
        at = b" %d" % int(self.history[number] * 1000) if self.history else b""
        return self.template.replace(_VALUE, b"%03d" % (number % 1000)).replace(_TIME, at)

    @property
    def exhausted(self) -> bool:
        """Whether a scrape has come after the last round, so that every round has been read."""
        return bool(self.history) and self.served > len(self.history)


def _handler(target: Target) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = target.page()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)
                target.served += 1

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    return Handler


@contextlib.contextmanager
def serving(series: int, targets: int = 1, history: Sequence[float] = ()) -> Iterator[dict[str, Target]]:
    """Serve so many series (a multiple of 100 is best) on so many ports; yields each target by its `host:port`."""
    pods = [range(number, max(1, series // PER_POD), targets) for number in range(targets)]
    with serving_targets([Target(page(each), history) for each in pods]) as found:
        yield found


@contextlib.contextmanager
def serving_targets(targets: Sequence[Target]) -> Iterator[dict[str, Target]]:
    """Serve each target on a port; yields them by `host:port`."""
    servers: list[ThreadingHTTPServer] = []
    found: dict[str, Target] = {}
    try:
        for target in targets:
            server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(target))
            server.daemon_threads = True
            servers.append(server)
            found[f"127.0.0.1:{server.server_address[1]}"] = target
            threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
