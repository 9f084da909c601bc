"""Pods of a real containerd on the CNI plugin: `ctr run --cni`, with folders of CNI in a mount namespace of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.cninode import CniNode, cni_node
from tests.support.networknamespaces import need_namespaces
from tests.support.waiting import eventually

CONFIG: Final = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/containerd.sock"
"""
# ctr reads /etc/cni and /opt/cni only. What the machine has there stays as it is: these mounts end with the process.
MOUNTS: Final = """
set -e
mount -t tmpfs tmpfs /opt
mkdir -p /opt/cni/bin
mount --bind {plugins} /opt/cni/bin
mount -t tmpfs tmpfs {etc}
mkdir {etc}/upper {etc}/work
mount -t overlay overlay -o lowerdir=/etc,upperdir={etc}/upper,workdir={etc}/work /etc
mkdir -p /etc/cni/net.d
mount --bind {lists} /etc/cni/net.d
exec "$@"
"""
_TIMEOUT_S: Final = 60.0


@dataclass
class Runtime:
    """A containerd of the test."""

    node: CniNode
    folder: Path
    rootfs: Path

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a container with a shell script on the CNI network, until it ends."""
        etc = self.folder / "etc"
        etc.mkdir(exist_ok=True)
        mounts = MOUNTS.format(plugins=self.node.plugins, lists=self.node.configurations, etc=etc)
        ctr = ("ctr", "--address", f"{self.folder}/containerd.sock", "run", "--rm", "--cni", "--rootfs")
        name = f"muster-{uuid.uuid4().hex[:12]}"  # /run/containerd is shared by all containerds of a machine
        return self.node.process(
            [
                *("unshare", "--mount", "--propagation", "private", "sh", "-c", mounts, "sh"),
                *(*ctr, str(self.rootfs), name, "/bin/sh", "-c", script),
            ]
        )


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    need_namespaces("containerd", "ctr", "runc", "busybox")
    folder = tmp_path_factory.mktemp("containerd")
    rootfs = folder / "rootfs"
    for each in ("bin", "proc", "sys", "dev", "etc", "tmp"):
        (rootfs / each).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, rootfs / "bin/busybox")
    for each in ("sh", "ip", "nc", "cat"):
        (rootfs / "bin" / each).symlink_to("busybox")
    config = folder / "config.toml"
    config.write_text(CONFIG.format(folder=folder))
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    with cni_node(folder / "node", cooldown_s=0.0) as node, (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["containerd", "--config", str(config), "--log-level", "warn"],
            stdout=log,
            stderr=log,
            env={**os.environ, "PATH": path},
        )
        try:
            eventually("containerd listens", (folder / "containerd.sock").exists)
            node.configure(version="1.0.0")  # containerd 1.6 has no CNI 1.1.0
            yield Runtime(node, folder, rootfs)
        finally:
            ctr = ["ctr", "--address", f"{folder}/containerd.sock", "tasks"]
            left = subprocess.run([*ctr, "list", "--quiet"], capture_output=True, text=True, timeout=60, check=False)
            for each in left.stdout.split():
                subprocess.run([*ctr, "delete", "--force", each], capture_output=True, timeout=60, check=False)
            process.terminate()
            process.wait(_TIMEOUT_S)


def test_container_reaches_the_outside_and_leaves_nothing_behind(runtime: Runtime) -> None:
    heard: list[tuple[bytes, str]] = []
    with runtime.node.node.outside.socket() as listening:
        listening.bind(("192.0.2.2", 0))
        listening.listen(1)

        def listen() -> None:
            accepted, peer = listening.accept()
            with accepted:
                heard.append((accepted.recv(100), peer[0]))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        done = runtime.run(f"ip address show eth0; echo hello | nc -w 20 192.0.2.2 {listening.getsockname()[1]}")
        thread.join(_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    ((said, peer),) = heard
    assert said == b"hello\n"
    assert f"inet {peer}/32" in done.stdout
    assert "inet6 fd00:8:" in done.stdout
    assert runtime.node.store.all() == ()  # DEL came for a namespace whose process had ended
    assert runtime.node.links() == []


def test_container_is_refused_with_our_reason_while_the_agent_is_down(runtime: Runtime) -> None:
    runtime.node.stop()
    try:
        done = runtime.run("ip address")
    finally:
        runtime.node.restart()
    assert done.returncode != 0
    assert "the network agent of this node does not answer" in done.stderr
    assert runtime.run("ip address show eth0").returncode == 0
    assert runtime.node.store.all() == ()
