"""The network node of tests/support/everymetric.py: the network agent with all parts, in network namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.api.names import LABEL_TEAM
from muster.controlplane.children import Child
from muster.network.uplink.program import AGENT_ACCOUNT
from muster.network.uplink.wire import AUDIENCE
from tests.support.apiserver import Api
from tests.support.cninode import need_cni
from tests.support.everyconfig import JOBS, MERGE, SYSTEM, Json, token
from tests.support.netnsrelay import exposed, relayed
from tests.support.networknamespaces import Namespace, Network, Node, need_namespaces
from tests.support.waiting import LONG_TIMEOUT_S, eventually

NODE: Final = "net-0"
_INTERNET: Final = "198.51.100.7"
_PROGRAM: Final = """
import socket, sys
from pathlib import Path
from muster.cli.main import main
from muster.network.cni import part
part.SHIM = Path(sys.argv.pop(1))
look_up = socket.getaddrinfo
socket.getaddrinfo = lambda host, *more, **named: look_up("127.0.0.1" if host == "{hub}" else host, *more, **named)
sys.exit(main())
"""
"""The agent with the shim of a test instead of its image's. The hub's name stands for loopback: there is no DNS."""


class Ports(NamedTuple):
    """Ports on 127.0.0.1: of the agent's metrics, of the API server, and of the uplink's hub."""

    metrics: int
    server: int
    hub: int


_NEIGHBOURS: Final = ("sys", "net", "ipv4", "neigh", "default")
"""The folder below /proc with sizes of the neighbour table."""
_SIZES: Final = {"gc_thresh1": 128, "gc_thresh2": 512, "gc_thresh3": 1024}


def need_programs() -> tuple[Path, Path]:
    """Return the folder of CNI's programs, and the shim. Without them, or without namespaces, the test is skipped."""
    need_namespaces("nft", "iptables", "tc")
    return need_cni()


def create_objects(api: Api, pods: Sequence[Sequence[str]]) -> None:
    """Create the node, its pods with these addresses, a pool of addresses, and the agent's account."""
    api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    pool = {"apiVersion": "muster.dev/v1alpha1", "kind": "AddressPool", "metadata": {"name": "four"}}
    spec = {"cidr": "10.20.0.0/16", "blockPrefix": 28}
    api.create("/apis/muster.dev/v1alpha1/addresspools", {**pool, "spec": spec})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": AGENT_ACCOUNT}}
    api.create(f"/api/v1/namespaces/{SYSTEM}/serviceaccounts", account)
    labels, path = {"muster.dev/gang": "train", LABEL_TEAM: JOBS}, f"/api/v1/namespaces/{JOBS}/pods"
    default = f"/api/v1/namespaces/{JOBS}/serviceaccounts/default"  # without it, the API server refuses pods
    eventually("the namespace has a service account", lambda: api.send("GET", default)[0] == 200)
    for number, addresses in enumerate(pods):
        name = f"train-{number}"
        api.create(path, _pod(name, labels=labels))
        status = {"phase": "Running", "podIP": addresses[0], "podIPs": [{"ip": each} for each in addresses]}
        api.send("PATCH", f"{path}/{name}/status", {"status": status}, content_type=MERGE)


def hub_token(api: Api) -> str:
    """A token as the kubelet of the node asks for it."""
    pod = api.create(f"/api/v1/namespaces/{SYSTEM}/pods", _pod("network-0", serviceAccountName=AGENT_ACCOUNT))
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return token(api, AGENT_ACCOUNT, audiences=[AUDIENCE], boundObjectRef=bound)


def _pod(name: str, labels: Mapping[str, str] | None = None, **spec: Any) -> Json:
    body = {"nodeName": NODE, "containers": [{"name": "c", "image": "image:1"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": body}


class NetworkNode:
    """A node with two pods that move bytes, and the agent on it.

    Args:
        folder: of its files.
        ports: of the agent and of what it calls.
        kubeconfig: for the agent.
        hub: name of the hub's Service.
        uplink: the section of the configuration that the hub has too.
    """

    def __init__(self, folder: Path, ports: Ports, kubeconfig: Path, hub: str, uplink: Mapping[str, Any]) -> None:
        self._programs, self._shim = need_programs()
        self._folder = folder
        self._ports = ports
        self._kubeconfig = kubeconfig
        self._hub = hub
        self._uplink = uplink
        self._network = Network()
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._hub_lost = asyncio.Event()
        self.port = ports.metrics
        self.node: Node

    @property
    def hub_files(self) -> tuple[Path, Path]:
        """Where the agent reads the hub's authorities and its own token."""
        return self._folder / "hub-ca.crt", self._folder / "hub-token"

    def make(self) -> None:
        """Make the namespaces, and the relays to and from them."""
        self._folder.mkdir(parents=True)
        self._network.__enter__()
        self.node = self._network.node(pods=2)
        self.node.outside_address(_INTERNET)
        ready = threading.Event()

        async def relay() -> None:
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(relayed(self.node.host, self._ports.server))
                await stack.enter_async_context(exposed(self.node.host, self.port))
                async with relayed(self.node.host, self._ports.hub):
                    ready.set()
                    await self._hub_lost.wait()
                await self._ended.wait()

        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(relay(),), daemon=True)
        self._thread.start()
        assert ready.wait(LONG_TIMEOUT_S)

    def start(self, log: Path) -> Child:
        """Start the agent."""
        for name in ("bin", "net.d"):
            (self._folder / name).mkdir()
        for each in self._programs.iterdir():
            (self._folder / "bin" / each.name).symlink_to(each)
        config = self._folder / "network.yaml"
        config.write_text(json.dumps(self._config()))
        options = (
            f"--node={NODE} --config={config} --kubeconfig={self._kubeconfig} --state-dir={self._folder}/state "
            f"--run-dir={self._folder}/run --listen=127.0.0.1:{self.port} --proc={self._proc}"
        )
        self._make_proc()
        program = _PROGRAM.replace("{hub}", self._hub)
        command = (sys.executable, "-c", program, str(self._shim), "network", "agent", *options.split())
        enter, *arguments = self.node.host.argv(*command)
        return Child([shutil.which(enter) or enter, *arguments], log, {**os.environ, **self._environment})

    @property
    def _proc(self) -> Path:
        return self._folder / "proc"

    def _make_proc(self) -> None:
        """Link /proc, with sizes of the neighbour table: the kernel shows them in its first network namespace only."""
        real, folder = Path("/proc"), self._proc
        for name in _NEIGHBOURS:
            folder.mkdir()
            for each in real.iterdir() if real.is_dir() else ():
                if each.name != name:
                    (folder / each.name).symlink_to(each)
            real, folder = real / name, folder / name
        folder.mkdir()
        for name, value in _SIZES.items():
            (folder / name).write_text(f"{value}\n")

    def reset_neighbour_sizes(self) -> None:
        """Another program, such as sysctl, sets the sizes of the neighbour table that the kernel has by default."""
        for name, value in _SIZES.items():
            self._proc.joinpath(*_NEIGHBOURS, name).write_text(f"{value}\n")

    @property
    def _environment(self) -> dict[str, str]:
        return {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}

    def _config(self) -> dict[str, Any]:
        authorities, token = self.hub_files
        addresses = {"families": ["IPv4"], "cooldownSeconds": 0, "targets": {"warm": 2, "minimum": 4, "maximum": 64}}
        return {
            "traffic": {"enabled": True, "periodSeconds": 0.5, "uplinkInterfaces": ["eth0"], "pods": True},
            "uplink": self._uplink,
            "shaping": {
                "enabled": True,
                "policing": False,
                "interfaces": ["pod*"],
                "hub": {"address": f"{self._hub}:{self._ports.hub}", "ca": str(authorities), "token": str(token)},
            },
            "tuning": {"enabled": True, "periodSeconds": 1, "neighbours": {"ipv4": [1024, 2048, 4096]}},
            "pods": {
                "enabled": True,
                "cniVersion": "1.1.0",
                "socket": f"{self._folder}/run/cni.sock",
                "binDir": f"{self._folder}/bin",
                "netDir": f"{self._folder}/net.d",
                "addresses": addresses,
            },
        }

    def addresses(self, pod: int) -> tuple[str, ...]:
        """Addresses of a pod."""
        return self.node.addresses(pod)

    def download(self, pod: int, count: int = 50) -> None:
        """Send datagrams from the outside to a pod."""
        there = self.node.pods[pod]
        with (
            there.socket(kind=socket.SOCK_DGRAM) as receiver,
            self.node.outside.socket(kind=socket.SOCK_DGRAM) as sender,
        ):
            receiver.bind((self.node.addresses(pod)[0], 0))
            sender.bind((_INTERNET, 0))
            for _ in range(count):
                sender.sendto(bytes(972), receiver.getsockname())
                receiver.recv(2048)

    def attach(self, name: str) -> Namespace:
        """Give a new pod its network with cnitool, as the container runtime does."""
        pod = self._network.namespace(name)
        eventually("an address is free", self._has_address, LONG_TIMEOUT_S)
        self.attach_to(pod.path)
        return pod

    def _has_address(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/addresses", timeout=30) as page,
        ):
            return bool(json.load(page)["status"]["free"])
        return False

    def attach_to(self, path: str) -> None:
        """Ask for the network of a pod with this network namespace. Raises what `Namespace.run` raises."""
        eventually("the list is installed", lambda: list((self._folder / "net.d").glob("*muster*")), LONG_TIMEOUT_S)
        environment = {
            "CNI_PATH": str(self._folder / "bin"),
            "NETCONFPATH": str(self._folder / "net.d"),
            "XDG_CACHE_HOME": str(self._folder),
        }
        self.node.host.run(str(self._programs / "cnitool"), "add", "muster", path, env=environment)

    def lose_hub(self) -> None:
        """The hub cannot be reached from the node any more."""
        self._loop.call_soon_threadsafe(self._hub_lost.set)

    def stop(self) -> None:
        """Remove the namespaces; the agent has ended."""
        if hasattr(self, "_thread"):
            self.lose_hub()
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(LONG_TIMEOUT_S)
        self._loop.close()
        self._network.__exit__(None, None, None)
