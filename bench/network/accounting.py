"""What counting traffic costs at 10,000 pods: CPU time per packet, and reading the counters.

A pod sends small datagrams through the host to an outside, all in network namespaces. The same packets pass without
accounting, with each backend, and with 10,000 linear rules of legacy iptables. Rounds alternate, because the machine is
never alone. The time is that of the sending thread: the kernel forwards its packets in it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from bench.report import Goal, at_most, spread
from muster.network.traffic.backend import Backend, Subject
from muster.network.traffic.backends.legacy import LegacyBackend
from muster.network.traffic.backends.nftables import NftablesBackend
from muster.network.traffic.classes import Classes
from muster.network.traffic.interfaces import Interfaces
from tests.support.networknamespaces import Namespace, Network, Node

PODS = 10_000
PACKETS = 30_000
COUNTERS = 10_000
EXTRA_PERCENT_MAX = 5.0
READ_MS_MAX = 50.0
OUTSIDE = "198.51.100.7"
LINKS = Interfaces(("eth0",))


def addresses(count: int, version: int = 4) -> list[str]:
    """Return addresses of pods; the first is that of the pod that sends."""
    if version == 6:
        return [Node.addresses(0)[1], *(f"fd00:2::{n + 1:x}" for n in range(count - 1))]
    return [Node.addresses(0)[0], *(f"10.{64 + n // 62500}.{n // 250 % 250}.{n % 250 + 1}" for n in range(count - 1))]


def subjects(count: int, versions: Sequence[int] = (4,)) -> list[Subject]:
    """Return a subject for each pod, with an address of each version of IP."""
    pods = zip(*(addresses(count, version) for version in versions), strict=True)
    return [Subject(f"0b9d0f7e-6f0c-4a55-9d3e-{n:012d}", pod) for n, pod in enumerate(pods)]


@contextlib.contextmanager
def counting(host: Namespace, backend: Backend, count: int) -> Iterator[None]:
    """Count for that many pods within the block."""
    host.call(backend.setup, Classes())
    host.call(backend.put, subjects(count))
    yield
    host.call(backend.teardown)


@contextlib.contextmanager
def linear(host: Namespace, count: int) -> Iterator[None]:
    """Count by one rule for each pod in one chain, as in the first clusters that accounted traffic."""
    rules = [f'-A FORWARD -s {address}/32 -m comment --comment "{address}"' for address in reversed(addresses(count))]
    host.run("iptables-legacy-restore", input="\n".join(("*mangle", *rules, "COMMIT", "")))
    yield
    host.run("iptables-legacy", "-t", "mangle", "-F")


@contextlib.contextmanager
def sending(source: Namespace, target: Namespace, address: str, sender: str = "") -> Iterator[socket.socket]:
    """Yield a socket that sends datagrams from an address of the source to one of the target, which drops them."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with target.socket(family, socket.SOCK_DGRAM) as server, source.socket(family, socket.SOCK_DGRAM) as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # what it does not read is dropped
        server.bind((address, 0))
        client.bind((sender, 0))
        client.connect(server.getsockname())
        yield client


def packet_ns(send: Callable[[bytes], int], packets: int, warm_up: int = 1000) -> float:
    """Return the CPU time to send one packet, after some that warm up."""
    data = bytes(64)
    for _ in range(warm_up):
        send(data)
    began = time.thread_time_ns()
    for _ in range(packets):
        send(data)
    return (time.thread_time_ns() - began) / packets


def milliseconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def cpu_milliseconds(call: Callable[[], object]) -> float:
    """Return the CPU time of a call in this thread, with what the kernel does for it."""
    began = time.thread_time()
    call()
    return (time.thread_time() - began) * 1000


def cost_of_packets(node: Node, rounds: int) -> dict[str, list[float]]:
    """Return nanoseconds per packet by what counts; each round has all of them."""
    ways: Mapping[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
        "none": contextlib.nullcontext,
        "nftables": lambda: counting(node.host, NftablesBackend(LINKS), PODS),
        "legacy_buckets": lambda: counting(node.host, LegacyBackend(LINKS), PODS),
        "legacy_linear": lambda: linear(node.host, PODS),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            with way(), sending(node.pods[0], node.outside, OUTSIDE) as client:
                times[name].append(packet_ns(client.send, PACKETS if name != "legacy_linear" else PACKETS // 10))
    return times


def cost_of_reading(host: Namespace, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds to read 10,000 counters: 2,500 pods, two classes, both directions."""
    names = ("read_nftables", "read_nftables_cpu", "read_nft_json", "read_legacy", "read_legacy_save")
    times: dict[str, list[float]] = {name: [] for name in names}
    count = COUNTERS // 4
    nft, legacy = NftablesBackend(LINKS), LegacyBackend(LINKS)
    with counting(host, nft, count):
        for _ in range(rounds):
            times["read_nftables"].append(milliseconds(lambda: host.call(nft.read)))
            times["read_nftables_cpu"].append(host.call(cpu_milliseconds, nft.read))
            times["read_nft_json"].append(milliseconds(lambda: host.run("nft", "-j", "list", "ruleset")))
    with counting(host, legacy, count):
        for _ in range(rounds):
            times["read_legacy"].append(milliseconds(lambda: host.call(legacy.read)))
            times["read_legacy_save"].append(
                milliseconds(lambda: host.run("iptables-legacy-save", "-t", "mangle", "-c"))
            )
    return times


def measure(repetitions: int) -> tuple[dict[str, float], list[Goal]]:
    """Return figures and goals: nanoseconds of CPU time per packet, milliseconds to read 10,000 counters."""
    with Network() as network:
        node = network.node(pods=1)
        node.outside_address(OUTSIDE)
        packet = cost_of_packets(node, repetitions)
        read = cost_of_reading(node.host, repetitions)
    figures: dict[str, float] = {}
    for name, values in packet.items():
        spread(f"packet_{name}_ns", values, figures)
    for name in packet.keys() - {"none"}:
        extra = [100 * (each / base - 1) for each, base in zip(packet[name], packet["none"], strict=True)]
        spread(f"packet_{name}_extra_percent", extra, figures)
    for name, values in read.items():
        spread(f"{name}_10000_ms", values, figures)
    return figures, [
        at_most(
            "accounting: extra CPU time per packet, %", EXTRA_PERCENT_MAX, figures["packet_nftables_extra_percent"]
        ),
        at_most("accounting: reading 10,000 counters, ms", READ_MS_MAX, figures["read_nftables_10000_ms"]),
    ]
