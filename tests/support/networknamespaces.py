"""Network namespaces that a test makes: no name, no process and no mount outlives the test.

A namespace is held by a file descriptor of the test process. Sockets are made in it by a thread that has entered it, so
that a test sends and receives without processes of its own.

    with Network() as network:
        node = network.node(pods=2)                       # a host with forwarding, two pods, and an outside
        with connected(node.outside, "192.0.2.2", node.pods[0]) as (server, client):
            transfer(client, server, 1_000_000)
        node.host.run("nft", "list", "ruleset")
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import ipaddress
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

import pytest

P = ParamSpec("P")
T = TypeVar("T")

_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_TIMEOUT_S: Final = 30.0
_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin:" + os.environ.get("PATH", "/usr/bin:/bin")


def need_namespaces(*programs: str) -> None:
    """Skip the test where namespaces or one of the programs are missing; fail it with MUSTER_REQUIRE_REAL=1."""
    missing = [program for program in ("ip", "nsenter", *programs) if shutil.which(program, path=_PATH) is None]
    reason = f"missing {', '.join(missing)}: run tools/ci-packages" if missing else ""
    if not reason:
        try:
            with Network() as network:
                network.namespace("probe")
        except PermissionError as error:
            reason = f"this user may make no network namespaces: {error}"
    if reason and os.environ.get("MUSTER_REQUIRE_REAL") == "1":
        pytest.fail(f"MUSTER_REQUIRE_REAL=1 and {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)


def _checked(result: int, doing: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{doing}: {os.strerror(number)}")


class Namespace:
    """One network namespace with its loopback up.

    Attributes:
        name: for messages and names of links only.
        path: a file that `setns`, `nsenter --net=` and `ip link set ... netns` take.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=f"netns-{name}")
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._descriptor = self._thread.submit(self._make).result(_TIMEOUT_S)
        except BaseException:
            self._thread.shutdown()
            raise
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self.run("ip", "link", "set", "lo", "up")
        self.sysctl("ipv6/conf/default/accept_dad", "0")  # its second of waiting is of no use on a veth of a test

    @staticmethod
    def _make() -> int:
        _checked(_LIBC.unshare(_NEWNET), "unshare the network")
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Stop the processes that were started in it, and let the kernel remove the namespace with its links."""
        for process in self._processes:
            process.kill()
            process.wait(_TIMEOUT_S)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self._thread.shutdown()
        os.close(self._descriptor)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the function's result. It runs in a thread of this process that is in the namespace.

        Sockets that it makes (netlink too) stay in the namespace, whatever thread uses them. So does what /proc/sys/net
        and /proc/thread-self/net show to it; /sys does not (`counters` reads what the links counted).
        """
        return self._thread.submit(function, *args, **kwargs).result(_TIMEOUT_S * 2)

    def argv(self, *command: str) -> list[str]:
        """Return the command line that runs the command in this namespace. Mounts and cgroups stay as they are."""
        return ["nsenter", f"--net={self.path}", "--", *command]

    def run(self, *command: str, input: str | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run a command in the namespace until its end; return its output.

        Raises:
            AssertionError: it failed; the text holds its errors.
        """
        done = subprocess.run(
            self.argv(*command),
            input=input,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "PATH": _PATH, **(env or {})},
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}: {done.stderr or done.stdout}"
        return done.stdout

    def start(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a command in the namespace, with pipes. It is killed with the namespace."""
        process = subprocess.Popen(
            self.argv(*command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PATH": _PATH, **(env or {})},
        )
        self._processes.append(process)
        return process

    def socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM, protocol: int = 0) -> socket.socket:
        """Return a new socket of this namespace, with a timeout."""
        made = self.call(socket.socket, family, kind, protocol)
        made.settimeout(_TIMEOUT_S)
        return made

    def sysctl(self, name: str, value: str) -> None:
        """Set a value below /proc/sys/net that belongs to the namespace, e.g. `ipv4/ip_forward`."""
        self.call(Path("/proc/sys/net", name).write_text, value)

    def counters(self, link: str) -> dict[str, int]:
        """Return rx_bytes, tx_bytes, rx_packets, tx_packets of a link, as /sys/class/net/LINK/statistics has them."""
        lines = self.call(Path("/proc/thread-self/net/dev").read_text).splitlines()
        line = next(line for line in lines if line.split(":")[0].strip() == link)
        numbers = [int(each) for each in line.split(":", 1)[1].split()]
        return {"rx_bytes": numbers[0], "rx_packets": numbers[1], "tx_bytes": numbers[8], "tx_packets": numbers[9]}


@dataclass
class Node:
    """A host with pods on veths with routes, and an outside beyond its link `eth0`.

    Pod number n has 10.1.0.(10+n) and fd00:1::(10+n in hex) on its link `eth0`. The host's side is `podN`. The host has
    192.0.2.1 and 2001:db8::1, the outside 192.0.2.2 and 2001:db8::2 and whatever `outside_address` adds.
    """

    host: Namespace
    outside: Namespace
    pods: list[Namespace] = field(default_factory=list)

    @staticmethod
    def addresses(pod: int) -> tuple[str, str]:
        """Return the IPv4 and the IPv6 address of a pod."""
        return f"10.1.0.{10 + pod}", str(ipaddress.ip_address("fd00:1::") + 10 + pod)

    def outside_address(self, address: str) -> str:
        """Add an address to the outside, to which everything without a nearer route leads; return it."""
        bits = ipaddress.ip_address(address).max_prefixlen
        flags = ("nodad",) if bits == 128 else ()
        self.outside.run("ip", "address", "add", f"{address}/{bits}", "dev", "lo", *flags)
        return address


class Network:
    """The namespaces of a test; they go with the block."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def namespace(self, name: str) -> Namespace:
        """Return a new namespace."""
        made = Namespace(name)
        self._stack.callback(made.close)
        return made

    def veth(self, one: Namespace, name: str, other: Namespace, other_name: str, *, mtu: int = 1500) -> None:
        """Join two namespaces by a pair of links, both up."""
        one.run(
            *("ip", "link", "add", name, "mtu", str(mtu), "type", "veth"),
            *("peer", "name", other_name, "mtu", str(mtu), "netns", other.path),
        )
        one.run("ip", "link", "set", name, "up")
        other.run("ip", "link", "set", other_name, "up")

    def node(self, *, pods: int = 0) -> Node:
        """Return a host with pods and an outside, IPv4 and IPv6, without any rule of a firewall."""
        made = Node(self.namespace("host"), self.namespace("outside"))
        self.veth(made.host, "eth0", made.outside, "eth0")
        ours, theirs = "02:00:00:00:00:01", "02:00:00:00:00:02"
        _batch(made.host, f"link set eth0 address {ours}")
        _batch(made.outside, f"link set eth0 address {theirs}")
        made.host.sysctl("ipv4/ip_forward", "1")
        made.host.sysctl("ipv6/conf/all/forwarding", "1")
        _batch(made.host, "address add 192.0.2.1/24 dev eth0", "address add 2001:db8::1/64 dev eth0 nodad")
        _batch(made.outside, "address add 192.0.2.2/24 dev eth0", "address add 2001:db8::2/64 dev eth0 nodad")
        # permanent neighbours: their probes would be packets that no test sent
        for namespace, mac, peers in (
            (made.host, theirs, ("192.0.2.2", "2001:db8::2")),
            (made.outside, ours, ("192.0.2.1", "2001:db8::1")),
        ):
            _batch(namespace, *(f"neighbour add {peer} lladdr {mac} dev eth0 nud permanent" for peer in peers))
        _batch(made.host, "route add default via 192.0.2.2", "route add default via 2001:db8::2")
        _batch(made.outside, "route add default via 192.0.2.1", "route add default via 2001:db8::1")
        for _ in range(pods):
            self.pod(made)
        return made

    def pod(self, node: Node) -> Namespace:
        """Add a pod to the node; return its namespace."""
        number = len(node.pods)
        pod = self.namespace(f"pod{number}")
        four, six = node.addresses(number)
        self.veth(node.host, f"pod{number}", pod, "eth0")
        _batch(
            node.host,
            f"address add 169.254.1.1/32 dev pod{number}",
            f"address add fe80::1/64 dev pod{number} nodad",
            f"route add {four}/32 dev pod{number}",
            f"route add {six}/128 dev pod{number}",
        )
        _batch(
            pod,
            f"address add {four}/32 dev eth0",
            f"address add {six}/128 dev eth0 nodad",
            "route add 169.254.1.1/32 dev eth0",
            "route add default via 169.254.1.1 dev eth0",
            "route add default via fe80::1 dev eth0",
        )
        node.pods.append(pod)
        return pod


def _batch(namespace: Namespace, *commands: str) -> None:
    namespace.run("ip", "-batch", "-", input="\n".join(commands) + "\n")


@contextlib.contextmanager
def connected(
    server: Namespace, address: str, client: Namespace, *, mark: int = 0, port: int = 0
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield (server's socket, client's socket) of one TCP connection from the client to the address of the server."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with server.socket(family) as listening, client.socket(family) as dialing:
        listening.bind((address, port))
        listening.listen(1)
        if mark:
            dialing.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
        dialing.connect((address, listening.getsockname()[1]))
        accepted, _ = listening.accept()
        accepted.settimeout(_TIMEOUT_S)
        with accepted:
            yield accepted, dialing


def transfer(sender: socket.socket, receiver: socket.socket, size: int) -> None:
    """Send `size` bytes over a connection and receive them all."""
    chunk = bytes(min(size, 64 * 1024))
    left = size
    while left:
        sent = sender.send(chunk[: min(left, len(chunk))])
        left -= sent
        while sent:
            sent -= len(receiver.recv(sent))
