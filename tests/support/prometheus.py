"""A real Prometheus server for tests: Debian's, or the one in the folder that PROMETHEUS_BIN names."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from muster.controlplane.ports import free_port

START_S: Final = 60.0
_STOP_S: Final = 30.0
_POLL_S: Final = 0.05


def program(name: str = "prometheus") -> str:
    """The path of `prometheus` or `promtool`; without one the test is skipped, or fails with MUSTER_REQUIRE_REAL=1."""
    folder = os.environ.get("PROMETHEUS_BIN")
    found = shutil.which(name, path=folder) if folder else shutil.which(name)
    if found is None:
        why = f"there is no {name}: run tools/ci-packages, or set PROMETHEUS_BIN"
        if os.environ.get("MUSTER_REQUIRE_REAL") == "1":
            pytest.fail(f"MUSTER_REQUIRE_REAL=1 and {why}", pytrace=False)
        pytest.skip(why)
    return found


@dataclass
class Prometheus:
    """A running server.

    Attributes:
        url: where it answers, without a slash at the end.
        folder: its configuration, its log (prometheus.log) and its data (data/).
        process: the server.
    """

    url: str
    folder: Path
    process: subprocess.Popen[bytes]

    def get(self, path: str, timeout_s: float = 30.0, **params: str | Sequence[str]) -> Any:
        """Ask the API without code of ours, and return `data` of the answer. `match` stands for `match[]`."""
        named = {"match[]" if name == "match" else name: value for name, value in params.items()}
        query = urllib.parse.urlencode(named, doseq=True)
        with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=timeout_s) as answer:
            return json.load(answer)["data"]

    def page(self) -> str:
        """The server's own metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            text: str = answer.read().decode()
            return text

    def rss_bytes(self, peak: bool = False) -> int:
        """Resident memory now, or its peak since the last `reset_peak`."""
        name = "VmHWM:" if peak else "VmRSS:"
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the server has ended")

    def reset_peak(self) -> None:
        """Forget the peak of memory (proc(5), clear_refs)."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def cpu_s(self) -> float:
        """CPU seconds that the server has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the server and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            self.process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def write_config(
    folder: Path,
    targets: Mapping[str, Sequence[str]],
    interval_s: float = 1.0,
    rules: Sequence[Path] = (),
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write prometheus.yml.

    Args:
        folder: of the server.
        targets: per job the `host:port` of its targets, scraped at /metrics.
        interval_s: between scrapes, and between evaluations of rules.
        rules: files of rules.
        more: other keys at the top of the file; `scrape_configs` in it are added.
    """
    config: dict[str, Any] = {
        "global": {
            "scrape_interval": f"{int(interval_s * 1000)}ms",
            "evaluation_interval": f"{int(interval_s * 1000)}ms",
        },
        "rule_files": [str(each) for each in rules],
        **(more or {}),
    }
    jobs = [{"job_name": job, "static_configs": [{"targets": list(each)}]} for job, each in targets.items()]
    config["scrape_configs"] = [*jobs, *config.get("scrape_configs", [])]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config, sort_keys=False))


@contextlib.contextmanager
def running(
    folder: Path, options: Sequence[str] = (), env: Mapping[str, str] | None = None, port: int = 0
) -> Iterator[Prometheus]:
    """Start a server on `folder` (write_config made it, and data/ may hold blocks), wait until it is ready, end it.

    Raises:
        RuntimeError: it ended at once, or was not ready in time; with the end of its log.
    """
    path, port = program(), port or free_port()
    url = f"http://127.0.0.1:{port}"
    if not (folder / "prometheus.yml").exists():
        write_config(folder, {})
    with (folder / "prometheus.log").open("ab") as log:
        process = subprocess.Popen(
            [
                path, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}", *options,
            ],
            stdout=log, stderr=log, env={**os.environ, **(env or {})},
        )  # fmt: skip
    server = Prometheus(url, folder, process)
    try:
        _wait_ready(server)
        yield server
    finally:
        server.stop()


def _wait_ready(server: Prometheus) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{server.url}/-/ready", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(_POLL_S)
    end = (server.folder / "prometheus.log").read_text()[-2000:]
    raise RuntimeError(f"Prometheus did not become ready (code {server.process.poll()}):\n{end}")


def add_history(folder: Path, openmetrics: str) -> None:
    """Make blocks of data from OpenMetrics text (with timestamps, and `# EOF` at the end) before the server starts."""
    text = folder / "history.txt"
    folder.mkdir(parents=True, exist_ok=True)
    text.write_text(openmetrics)
    command = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
    text.unlink()
