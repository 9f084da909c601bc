"""The embedded API server as a process of its own, and a plain HTTP client for any API server."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import http.client
import json
import os
import ssl
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import yaml

from muster.controlplane.children import Child
from muster.controlplane.ports import free_port
from tests.support.waiting import eventually

SOURCE = Path(__file__).resolve().parents[2] / "src"


class Api:
    """Requests to one API server, with the credentials of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        context = next(item["context"] for item in config["contexts"] if item["name"] == config["current-context"])
        cluster = next(item["cluster"] for item in config["clusters"] if item["name"] == context["cluster"])
        user = next(item["user"] for item in config["users"] if item["name"] == context["user"])
        self.kubeconfig = kubeconfig
        self.server = urlsplit(cluster["server"])
        ca = _pem(cluster, "certificate-authority", kubeconfig)
        self.context = ssl.create_default_context(cadata=ca.decode())
        self.headers: dict[str, str] = {}
        if user.get("token"):
            self.headers["Authorization"] = f"Bearer {user['token']}"
        if "client-certificate-data" in user or "client-certificate" in user:
            with tempfile.NamedTemporaryFile(suffix=".pem") as file:
                file.write(_pem(user, "client-certificate", kubeconfig) + b"\n" + _pem(user, "client-key", kubeconfig))
                file.flush()
                self.context.load_cert_chain(file.name)

    def open(self, timeout_s: float = 30.0) -> http.client.HTTPSConnection:
        assert self.server.hostname
        return http.client.HTTPSConnection(
            self.server.hostname, self.server.port, context=self.context, timeout=timeout_s
        )

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> tuple[int, Any, list[str]]:
        """Return the code, the decoded body (text where it is not JSON) and the warnings."""
        connection = self.open()
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            sent = {"Accept": "application/json", "Content-Type": content_type, **self.headers, **(headers or {})}
            connection.request(method, _target(path, query), data, sent)
            response = connection.getresponse()
            raw = response.read()
            warnings = response.headers.get_all("Warning") or []
            try:
                return response.status, json.loads(raw), warnings
            except ValueError:
                return response.status, raw.decode(), warnings
        finally:
            connection.close()

    def get(self, path: str, **query: Any) -> Any:
        code, body, _ = self.send("GET", path, **query)
        assert code == 200, body
        return body

    def create(self, path: str, body: Any, **query: Any) -> Any:
        code, made, _ = self.send("POST", path, body, **query)
        assert code == 201, made
        return made

    @contextlib.contextmanager
    def watch(self, path: str, timeout_s: float = 10.0, **query: Any) -> Iterator[Iterator[Any]]:
        """Open a watch; iterate its events until the server ends it. A silence of `timeout_s` raises TimeoutError."""
        connection = self.open(timeout_s)
        try:
            connection.request("GET", _target(path, {"watch": "true", **query}), headers=self.headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield (json.loads(line) for line in response)
        finally:
            connection.close()


def _pem(section: dict[str, Any], name: str, kubeconfig: Path) -> bytes:
    if f"{name}-data" in section:
        data: str = section[f"{name}-data"]
        return base64.b64decode(data)
    path: str = section[name]
    return (kubeconfig.parent / path).read_bytes()


def _target(path: str, query: dict[str, Any]) -> str:
    text = urlencode({key.rstrip("_"): value for key, value in query.items()}, quote_via=quote)
    return f"{path}{'&' if '?' in path else '?'}{text}" if text else path


@dataclasses.dataclass(frozen=True)
class ApiServer:
    """An API server to test on."""

    kind: str
    """"embedded" or "real"."""
    kubeconfig: Path
    kubelet_flags: tuple[str, ...]
    """What process kubelets need to serve it; none where they cannot, since it is on no network of theirs."""


class EmbeddedServer:
    """`python -m muster.embedded.apiserver` on a state folder; it never outlives us (`controlplane/children.py`)."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        # Reserved by this process, so that the server finds it free when it starts again.
        self.arguments = arguments if "--port" in arguments else ("--port", str(free_port()), *arguments)
        self.kubeconfig = folder / "kubeconfig"
        self.kubelet_flags = (f"--kubelet-token-file={folder / 'kubelet-token'}", f"--serving-ca={folder}")
        self.ready: dict[str, Any] = {}
        self._child: Child | None = None

    def command(self) -> list[str]:
        return [sys.executable, "-m", "muster.embedded.apiserver", "--state-dir", str(self.folder), *self.arguments]

    def start(self) -> Api:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self.folder / "log"
        child = self._child = Child(self.command(), log, {**os.environ, "PYTHONPATH": str(SOURCE)})

        def ready() -> dict[str, Any]:
            assert child.exit_code is None, f"the server ended with {child.exit_code}: {child.log_tail()}"
            lines = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
            said = [json.loads(line) for line in lines if line.startswith('{"ready"')]
            return next((each for each in said if each["pid"] == child.pid), {})  # an earlier server's are there too

        try:
            self.ready = eventually(f"the API server is ready, see {log}", ready)
        except BaseException:
            child.stop(grace_s=0)
            raise
        return Api(self.kubeconfig)

    @property
    def runs(self) -> bool:
        """Whether it was started, and neither killed nor stopped since."""
        return self._child is not None

    def kill(self) -> None:
        self._end(0)

    def stop(self) -> int:
        """End it and return its exit code."""
        return self._end(10)

    def log(self, lines: int = 50) -> str:
        """The last lines of what it said."""
        return self._child.log_tail(lines) if self._child else ""

    def _end(self, grace_s: float) -> int:
        assert self._child
        self._child.stop(grace_s)
        code = self._child.exit_code
        assert code is not None
        self._child = None
        return code
