"""The process of the kubelet of one node: its arguments, its start and its end."""

from __future__ import annotations

import argparse
import fcntl
import sys
from pathlib import Path

import uvloop

from muster.api.names import CACHE_DIRECTORY
from muster.embedded.kubelet.kubelet import Kubelet
from muster.embedded.kubelet.pods.network import NetworkError
from muster.embedded.kubelet.settings import FIRST_OCTET, LOG_MIN_BYTES, LOG_MIN_FILES, Settings, node_address
from muster.kube.connection.config import load_config
from muster.kube.errors import ConfigError
from muster.kube.objects.node import Taint
from muster.kube.objects.quantity import QuantityError, parse_quantity, to_int
from muster.kube.running import log_to_stderr, stop_on_signals


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m muster.embedded.kubelet", description="The kubelet of one node.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--node", required=True, help="the node's name")
    add("--kubeconfig", required=True, help="kubeconfig file for the API server")
    add("--state-dir", required=True, type=Path, help="the node's folder: pods, logs, boot ID")
    add("--cluster-id", required=True, help="ID of the cluster, a marker of every process of the node's pods")
    add(
        "--index",
        type=int,
        help="number K of the node: it has the address 127.(10+K).0.1, and its pods are in 127.(10+K).0.0/16 "
        "(with --network netns in 10.(10+K).0.0/16)",
    )
    add("--address", help="the node's own address; overrides the one of --index")
    add("--pod-cidr", help="the range of the pods' addresses; overrides the one of --index")
    add("--port", type=int, default=0, help="port of the kubelet's own HTTPS server; default: a free one")
    add(
        "--network",
        choices=("host", "netns"),
        default="host",
        help="host: pods have loopback addresses; netns: each pod has a network namespace (needs root)",
    )
    add("--gpus", type=int, default=0, help="number of GPUs that the node declares")
    add("--gpu-resource", default="nvidia.com/gpu", help="resource name of these GPUs; default: %(default)s")
    add("--cpus", default="8", help="CPUs that the node declares; default: %(default)s")
    add("--memory", default="32Gi", help="memory that the node declares; default: %(default)s")
    add("--max-pods", type=int, default=110, help="maximum number of pods on the node; default: %(default)s")
    add("--labels", action="append", default=[], metavar="K=V,...", help="labels of the node; repeatable")
    add("--label", action="append", default=[], dest="labels", metavar="K=V", help="one label; repeatable")
    add("--taints", action="append", default=[], metavar="K=V:EFFECT,...", help="taints of a new node; repeatable")
    add("--lease-period-s", type=float, default=10.0, help="seconds between renewals of the lease; default: 10")
    add("--status-period-s", type=float, default=300.0, help="seconds between unchanged status reports; default: 300")
    add("--sync-period-s", type=float, default=60.0, help="seconds between reads of mounted ConfigMaps; default: 60")
    add("--restart-backoff-s", type=float, default=10.0, help="first delay of CrashLoopBackOff; default: 10")
    add("--pod-pids-limit", type=int, default=0, help="maximum number of processes in a container; default: no limit")
    add(
        "--container-log-max-size",
        default="10Mi",
        metavar="QUANTITY",
        help="size at which a container's log is rotated; default: %(default)s",
    )
    add(
        "--container-log-max-files",
        type=int,
        default=5,
        metavar="COUNT",
        help="maximum number of files kept of a container's log; the value must be 2 or more; default: %(default)s",
    )
    add(
        "--cache-socket-dir",
        type=Path,
        metavar="DIR",
        help=f"folder that a hostPath volume {CACHE_DIRECTORY} is on this node; created for the first pod that has one",
    )
    add("--new-boot", action="store_true", help="get a new boot ID, as after a reboot of the machine")
    add(
        "--kubelet-token-file",
        type=Path,
        help="file with a bearer token; clients with this token may read logs and execute commands",
    )
    add(
        "--client-ca-file",
        type=Path,
        help="CA file; clients with a certificate from this CA may read logs and execute commands",
    )
    add(
        "--client-name",
        action="append",
        help="common name that such a client certificate must have; repeatable; default: kube-apiserver-kubelet-client",
    )
    add("--serving-ca", type=Path, help="folder with the ca.crt and ca.key that sign the server's certificate")
    return parser


def _settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings from the flags. Raises ValueError, whose message names the flag to change."""
    address, cidr = arguments.address, arguments.pod_cidr
    if arguments.index is not None:
        if not 0 <= arguments.index <= 255 - FIRST_OCTET:
            raise ValueError(
                f"--index must be between 0 and {255 - FIRST_OCTET}; for more nodes give --address and --pod-cidr"
            )
        octet = FIRST_OCTET + arguments.index
        address = address or node_address(arguments.index)
        cidr = cidr or (f"10.{octet}.0.0/16" if arguments.network == "netns" else f"127.{octet}.0.0/16")
    if not address or not cidr:
        raise ValueError("give --index, or both --address and --pod-cidr")
    quantities = (
        ("--cpus", arguments.cpus),
        ("--memory", arguments.memory),
        ("--container-log-max-size", arguments.container_log_max_size),
    )
    for flag, quantity in quantities:
        try:
            parse_quantity(quantity)
        except QuantityError as error:
            raise ValueError(f"{flag}: {error}") from None
    log_max_bytes = to_int(arguments.container_log_max_size)
    if log_max_bytes < LOG_MIN_BYTES:
        raise ValueError(f"--container-log-max-size must be at least {LOG_MIN_BYTES >> 10}Ki")
    if arguments.container_log_max_files < LOG_MIN_FILES:
        raise ValueError(f"--container-log-max-files must be at least {LOG_MIN_FILES}")
    return Settings(
        node=arguments.node,
        cluster_id=arguments.cluster_id,
        state_dir=arguments.state_dir.absolute(),
        address=address,
        port=arguments.port,
        pod_cidr=cidr,
        network=arguments.network,
        gpus=arguments.gpus,
        gpu_resource=arguments.gpu_resource,
        cpus=arguments.cpus,
        memory=arguments.memory,
        max_pods=arguments.max_pods,
        labels=dict(_pair(part) for part in _split(arguments.labels)),
        taints=[_taint(part) for part in _split(arguments.taints)],
        lease_period_s=arguments.lease_period_s,
        status_period_s=arguments.status_period_s,
        sync_period_s=arguments.sync_period_s,
        restart_backoff_s=arguments.restart_backoff_s,
        pod_pids_limit=arguments.pod_pids_limit,
        container_log_max_bytes=log_max_bytes,
        container_log_max_files=arguments.container_log_max_files,
        new_boot=arguments.new_boot,
        cache_socket_dir=arguments.cache_socket_dir and arguments.cache_socket_dir.absolute(),
        token_file=arguments.kubelet_token_file,
        client_ca_file=arguments.client_ca_file,
        client_names=arguments.client_name or Settings.client_names,
        serving_ca=arguments.serving_ca,
    )


def _split(values: list[str]) -> list[str]:
    return [part for value in values for part in value.split(",") if part]


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--labels {text!r}: write KEY=VALUE")
    return key, value


def _taint(text: str) -> Taint:
    pair, colon, effect = text.rpartition(":")
    if not colon or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise ValueError(f"--taints {text!r}: write KEY=VALUE:NoSchedule (or PreferNoSchedule, NoExecute)")
    key, _, value = pair.partition("=")
    return Taint(key=key, value=value, effect=effect)


async def _run(kubelet: Kubelet) -> None:
    stop = stop_on_signals()
    await kubelet.run(stop)


def main() -> int:
    """Run the kubelet of one node until SIGTERM or SIGINT. Returns the exit status."""
    arguments = _parser().parse_args()
    log_to_stderr()
    try:
        settings = _settings(arguments)
        config = load_config(arguments.kubeconfig)
    except (ValueError, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    with (settings.state_dir / "kubelet.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"error: another kubelet uses {settings.state_dir}; stop it first", file=sys.stderr)
            return 5
        try:
            uvloop.run(_run(Kubelet(settings, config)))
        except (OSError, NetworkError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0
