"""`muster controller` as a process of its own, with nothing more than the chart's rules allow."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from muster.api.names import API_VERSION, SYSTEM_NAMESPACE
from muster.controlplane.chart import CHART, rendered
from muster.controlplane.children import Child
from muster.controlplane.clusteraccess import ClusterAccess
from muster.kube.client import Client
from muster.kube.errors import NotFound

_TEMPLATES = ("serviceaccount", "rbac", "flowschema")


@asynccontextmanager
async def controller(
    access: ClusterAccess,
    client: Client,
    directory: Path,
    *,
    templates: Sequence[str] = (),
    values: Sequence[str] = (),
    options: Sequence[str] = (),
    token_s: int = 3600,
) -> AsyncIterator[Child]:
    """Install the chart's CRDs and rules, and run the controller under them; its log is in `directory`.

    Args:
        access: to the cluster.
        client: an administrator's.
        directory: for its log.
        templates: of the chart, beside those that are always there.
        values: NAME=VALUE that the chart is rendered with.
        options: of the program, beside the usual ones.
        token_s: how long its token is valid, in seconds.
    """
    access.kubectl("create", "namespace", SYSTEM_NAMESPACE)
    access.kubectl("apply", "--server-side", "-f", str(CHART / "files" / "crds"))
    access.kubectl("apply", "-f", "-", stdin=_rendered([*_TEMPLATES, *templates], values))
    for plural in ("trainingjobs", "placements"):
        await served(client, f"/apis/{API_VERSION}/{plural}")
    kubeconfig = access.service_account_kubeconfig(SYSTEM_NAMESPACE, "muster-controller", duration_s=token_s)
    port, metrics_port = _free_ports(2)
    command = [
        sys.executable,
        "-m",
        "muster.cli.main",
        "controller",
        f"--namespace={SYSTEM_NAMESPACE}",
        f"--listen=127.0.0.1:{port}",
        f"--advertise-url=https://127.0.0.1:{port}",
        f"--metrics-listen=127.0.0.1:{metrics_port}",
        "--muster-image=muster",
        *options,
    ]
    child = Child(command, directory / "muster-controller.log", {**os.environ, "KUBECONFIG": str(kubeconfig)})
    try:
        yield child
    except TimeoutError as error:
        error.add_note(f"the controller's log ends with:\n{child.log_tail()}")
        raise
    finally:
        child.stop()


async def served(client: Client, path: str, *, timeout_s: float = 30.0) -> None:
    """Wait until the API server serves a new kind."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                await client.request("GET", path)
                return
            except NotFound:
                await asyncio.sleep(0.1)


def _rendered(templates: Sequence[str], values: Sequence[str]) -> str:
    return str(yaml.safe_dump_all(rendered(templates, namespace=SYSTEM_NAMESPACE, values=values)))


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
