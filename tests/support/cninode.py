"""A node whose pods get their network from the CNI plugin: the real shim, cnitool and reference plugins."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from muster.controlplane.goprograms import NotBuiltError, find_built
from muster.network.addresses.addresses import Addresses
from muster.network.addresses.block import Block, Family
from muster.network.addresses.bootclock import BootClock
from muster.network.cni.answers import answer
from muster.network.cni.interfaces.kinds import make_kinds
from muster.network.cni.operations import Operations
from muster.network.cni.server import CniServer
from tests.support.networknamespaces import Namespace, Network, Node

IPV4_BLOCK: Final = "10.1.8.0/24"
IPV6_BLOCK: Final = "fd00:8::/64"
NETWORK: Final = "pods"
_TIMEOUT_S: Final = 60.0


class CniFailed(AssertionError):
    """A plugin printed an error.

    Attributes:
        code: of the CNI specification.
        error: the whole object.
    """

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.code = int(error.get("code", -1))
        self.error = error


def need_cni() -> tuple[Path, Path]:
    """Return the folder of cnitool and the reference plugins, and the shim. Skips the test where they are not built."""
    try:
        return find_built("cni"), find_built("cni-shim") / "cni-shim"
    except NotBuiltError as error:
        if os.environ.get("MUSTER_REQUIRE_REAL") == "1":
            pytest.fail(f"MUSTER_REQUIRE_REAL=1 and {error}", pytrace=False)
        pytest.skip(str(error))


class CniNode:
    """A host, an outside, and the daemon that serves the host's CNI requests, in threads of this process.

    Attributes:
        node: the namespaces.
        store: the store of addresses.
        operations: what the daemon calls.
        network: the namespaces of the test.
        problem: why pods may have lost connections, for STATUS.
    """

    def __init__(self, network: Network, folder: Path, *, families: Sequence[Family], cooldown_s: float = 30.0) -> None:
        programs, shim = need_cni()
        self.network = network
        self.node: Node = network.node()
        self.folder = folder
        self.plugins = folder / "bin"
        self.plugins.mkdir(parents=True)
        for each in programs.iterdir():
            (self.plugins / each.name).symlink_to(each)
        (self.plugins / "muster-cni").symlink_to(shim)
        self.configurations = folder / "net.d"
        self.configurations.mkdir()
        self.socket = folder / "cni.sock"
        self._families, self._cooldown_s = tuple(families), cooldown_s
        self.store = self.open_store()
        for block in (IPV4_BLOCK, IPV6_BLOCK):
            self.store.put_block(Block(cidr=block))
        self.problem = ""
        self.operations = Operations(self.store, make_kinds(), lambda: self.problem)
        self._server = self.make_server()

    def open_store(self) -> Addresses:
        """Open the store. One process has it at a time."""
        folder = self.folder / "addresses"
        return Addresses(folder, BootClock(), families=self._families, cooldown_s=self._cooldown_s)

    def make_server(self) -> CniServer:
        """Return a server of the operations."""
        operations = self.operations
        return CniServer(self.socket, lambda invocation: answer(operations, invocation))

    def start(self) -> None:
        """Start the daemon."""
        self.node.host.call(self._server.start)  # threads inherit the namespace of the thread that starts them

    def stop(self) -> None:
        """Stop the daemon and close the store."""
        self.stop_server()
        self.store.close()

    def stop_server(self) -> None:
        """Stop answering, and keep the store open."""
        self._server.stop()

    def restart(self) -> None:
        """Start a daemon that knows only what is on disk."""
        self.node.host.call(self.restart_here)

    def restart_here(self) -> None:
        """The same in the network namespace of the calling thread."""
        self.store = self.open_store()
        self.operations = Operations(self.store, make_kinds(), lambda: self.problem)
        self._server = self.make_server()
        self._server.start()

    def configure(self, *more: dict[str, Any], version: str = "1.1.0", name: str = NETWORK, **fields: Any) -> None:
        """Write the list of plugins: ours with these fields, and more."""
        ours = {"type": "muster-cni", "socket": str(self.socket), **fields}
        self.configure_list(ours, *more, version=version, name=name)

    def configure_list(self, *plugins: dict[str, Any], version: str = "1.1.0", name: str = NETWORK) -> None:
        """Write a list of plugins."""
        text = json.dumps({"cniVersion": version, "name": name, "plugins": plugins})
        (self.configurations / f"{name}.conflist").write_text(text)

    def cnitool(
        self, verb: str, pod: Namespace | str, *, name: str = NETWORK, ifname: str = "eth0", args: str = "", **env: str
    ) -> dict[str, Any]:
        """Run cnitool in the host. The container's ID follows from the pod's namespace. Returns what it printed.

        Raises:
            CniFailed: the plugin printed an error.
        """
        path = pod if isinstance(pod, str) else pod.path
        done = self.process(
            [str(self.plugins / "cnitool"), verb, name, path],
            CNI_PATH=str(self.plugins),
            NETCONFPATH=str(self.configurations),
            CNI_IFNAME=ifname,
            CNI_ARGS=args,
            XDG_CACHE_HOME=str(self.folder / "cache"),
            **env,
        )
        if done.returncode != 0:
            raise CniFailed({"msg": done.stdout + done.stderr})
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def plugin(
        self, verb: str, pod: Namespace | str, container_id: str, *, ifname: str = "eth0", args: str = "", **fields: Any
    ) -> dict[str, Any]:
        """Run the shim alone in the host, as a runtime does. `fields` are of the plugin's configuration.

        Raises:
            CniFailed: it printed an error.
        """
        conf = {"cniVersion": "1.1.0", "name": NETWORK, "type": "muster-cni", "socket": str(self.socket), **fields}
        done = self.process(
            [str(self.plugins / "muster-cni")],
            input=json.dumps(conf),
            CNI_COMMAND=verb,
            CNI_CONTAINERID=container_id,
            CNI_NETNS=pod if isinstance(pod, str) else pod.path,
            CNI_IFNAME=ifname,
            CNI_ARGS=args,
            CNI_PATH=str(self.plugins),
        )
        printed = json.loads(done.stdout) if done.stdout.strip() else {}
        if done.returncode != 0:
            raise CniFailed(printed)
        return dict(printed)

    def process(
        self, command: Sequence[str], *, input: str | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the host's network namespace."""
        return subprocess.run(
            self.node.host.argv(*command),
            input=input,
            env={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", **env},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def links(self) -> list[str]:
        """Return the names of the host's interfaces for pods."""
        shown = json.loads(self.node.host.run("ip", "-j", "link"))
        return sorted(each["ifname"] for each in shown if each["ifname"].startswith("mus"))


@contextlib.contextmanager
def cni_node(
    folder: Path, *, families: Sequence[Family] = (Family.IPV4, Family.IPV6), cooldown_s: float = 30.0
) -> Iterator[CniNode]:
    """Yield a node with a running daemon and a list of our plugin alone."""
    with Network() as network:
        made = CniNode(network, folder, families=families, cooldown_s=cooldown_s)
        made.configure()
        made.start()
        try:
            yield made
        finally:
            made.stop()
            shutil.rmtree(folder, ignore_errors=True)
