"""A real containerd with its own folders, and sandboxes that the test starts over CRI, as the kubelet does."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from muster.kube.connection import grpcunix
from muster.network.addresses.reconcile.runtime import look_at_runtime
from tests.support.cninode import CniNode
from tests.support.waiting import eventually

PROGRAMS: Final = ("containerd", "ctr", "runc", "busybox")
IMAGE: Final = "docker.io/local/pause:1"
_TIMEOUT_S: Final = 60.0

_CONFIG: Final = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/cri.sock"
[ttrpc]
  address = "{folder}/ttrpc.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{bin_dir}"
  conf_dir = "{conf_dir}"
"""


def need_containerd() -> None:
    """Skip the test where a program is missing; fail it under MUSTER_REQUIRE_REAL=1."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if os.geteuid() != 0:
        missing.append("root")
    if missing and os.environ.get("MUSTER_REQUIRE_REAL") == "1":
        pytest.fail(f"MUSTER_REQUIRE_REAL=1 and there is no {', '.join(missing)}", pytrace=False)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


class CriRuntime:
    """containerd in the network namespace of a node's host.

    Attributes:
        socket: of CRI.
        log: what it writes.
    """

    def __init__(self, node: CniNode, folder: Path) -> None:
        self.socket = folder / "cri.sock"
        self.log = folder / "containerd.log"
        self._node = node
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        config = _CONFIG.format(folder=folder, image=IMAGE, bin_dir=node.plugins, conf_dir=node.configurations)
        (folder / "config.toml").write_text(config)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = f"exec containerd --config {self._folder}/config.toml --log-level warn >>{self.log} 2>&1"
        self._process = self._node.node.host.start("sh", "-c", command)
        eventually("containerd answers", lambda: asyncio.run(look_at_runtime(self.socket)) is not None)

    def kill(self) -> None:
        """End it at once. Its sandboxes stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_TIMEOUT_S)
            self._process = None

    def import_image(self) -> None:
        """Give it an image for sandboxes."""
        archive = self._folder / "pause.tar"
        archive.write_bytes(_image())
        command = ["ctr", "-a", str(self.socket), "-n", "k8s.io", "images", "import", "--snapshotter", "native"]
        subprocess.run(
            [*command, str(archive)], check=True, capture_output=True, timeout=_TIMEOUT_S, env={"PATH": _path()}
        )

    def run_sandbox(self, name: str) -> str:
        """Start a sandbox and return its ID. Raises CallError if the runtime refuses."""
        metadata = _text(1, name) + _text(2, f"uid-{name}") + _text(3, "team")
        config = _bytes(1, metadata) + _text(3, str(self._folder / "logs")) + _bytes(8, b"")
        answer = self._call("RunPodSandbox", _bytes(1, config))
        return next(
            value.decode() for number, value in grpcunix.fields_of(answer) if number == 1 and isinstance(value, bytes)
        )

    def remove_sandbox(self, sandbox: str) -> None:
        """Stop and remove a sandbox."""
        self._call("StopPodSandbox", _text(1, sandbox))
        self._call("RemovePodSandbox", _text(1, sandbox))

    def _call(self, method: str, message: bytes) -> bytes:
        frame = b"\0" + len(message).to_bytes(4, "big") + message
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grpcunix, "_EMPTY_MESSAGE", frame)
            call = grpcunix.call(str(self.socket), f"/runtime.v1.RuntimeService/{method}", _TIMEOUT_S)
            try:
                return asyncio.run(call)
            except grpcunix.CallError as error:
                raise AssertionError(f"{method}: {error}\n{self.log.read_text()[-4000:]}") from None


@contextlib.contextmanager
def cri_runtime(node: CniNode, folder: Path) -> Iterator[CriRuntime]:
    """Yield a running containerd with an image for sandboxes. Removes all sandboxes at the end."""
    folder.mkdir()
    runtime = CriRuntime(node, folder)
    try:
        runtime.start()
        runtime.import_image()
        yield runtime
    finally:
        if runtime.socket.exists():
            with contextlib.suppress(AssertionError):
                for sandbox in asyncio.run(look_at_runtime(runtime.socket)) or ():
                    runtime.remove_sandbox(sandbox)
        runtime.kill()


def _path() -> str:
    return os.environ["PATH"] + ":/usr/sbin:/sbin"


def _image() -> bytes:
    """An image in Docker's format: one layer with a static busybox, which sleeps."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        program = shutil.which("busybox", path=_path())
        assert program is not None
        tar.add(program, "bin/busybox")
    content = layer.getvalue()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/busybox", "sleep", "3600"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": ["local/pause:1"], "Layers": ["layer.tar"]}]
    files = {
        "layer.tar": content,
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _bytes(number: int, value: bytes) -> bytes:
    size, length = len(value), b""
    while size >= 0x80:
        length += bytes((size & 0x7F | 0x80,))
        size >>= 7
    return bytes((number << 3 | 2,)) + length + bytes((size,)) + value


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode())
