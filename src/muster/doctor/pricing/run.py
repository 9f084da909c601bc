"""Records a DaemonSet on a canary, or reads what a log already shows about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from muster.api.reader import Reader
from muster.doctor.costs.collect import objects_of, read_owners
from muster.doctor.costs.cost import Population
from muster.doctor.costs.logfiles import read_requests
from muster.doctor.costs.owners import Owners, PodFacts
from muster.doctor.costs.tally import Observed, Tally
from muster.doctor.pricing.canary import Canary, choose_nodes, running
from muster.doctor.pricing.manifest import Manifest
from muster.doctor.pricing.records import Records, read_population, records_of
from muster.doctor.pricing.sidecar import CONTAINER, with_sidecar
from muster.doctor.samples import Page, parse
from muster.kube.client import Client
from muster.kube.errors import ApiError
from muster.kube.loglines import Reading
from muster.kube.objects.meta import OwnerReference
from muster.kube.objects.pod import Pod
from muster.kube.requestlog import RequestLine

_CPU: Final = "process_cpu_seconds_total"
_LOG_MAX_BYTES: Final = 64 << 20


class Recording(NamedTuple):
    """What was recorded.

    Attributes:
        records: requests of the DaemonSet.
        population: what existed in the cluster.
        seconds: length of the recording.
        pods: pods that were recorded, 0 if the log says.
        broken: lines of logs that could not be read.
        cpu_cores: processor use of the API server that came with the canary; None if unknown.
    """

    records: Records
    population: Population
    seconds: float
    pods: int
    broken: int
    cpu_cores: float | None = None


async def from_logs(reader: Reader, manifest: Manifest, files: Sequence[Path]) -> Recording:
    """Read the requests of a DaemonSet that already runs. Raises LogFileError."""
    owners, nodes = await read_owners(reader)

    def read() -> tuple[Observed, int]:
        reading = Reading()
        tally = Tally(owners, nodes.__contains__)
        for line in read_requests(files, reading):
            tally.add(line)
        return tally.finish(), reading.broken

    observed, broken = await asyncio.to_thread(read)
    return await _recording(reader, manifest, observed, broken)


async def from_canary(
    reader: Reader,
    manifest: Manifest,
    *,
    pods: int,
    seconds: float,
    files: Sequence[Path] = (),
    image: str = "",
    baseline_s: float,
    progress: Callable[[str], None] = lambda text: None,
) -> Recording:
    """Run the DaemonSet on a few nodes and record its requests.

    Args:
        reader: the cluster.
        manifest: the DaemonSet.
        pods: number of nodes.
        seconds: how long to record once the pods run.
        files: logs to read the requests from.
        image: image of Muster for the recorder, used if `files` is empty.
        baseline_s: how long to measure the API server's other use of processors before, to subtract it.
        progress: receives a short text about the current step.

    Raises:
        CanaryError, LeftOverError: see `running`.
        LogFileError: a log cannot be read.
    """
    client = reader.client
    nodes = await choose_nodes(client, manifest, pods)
    sizes = {path: _position(path) for path in files}
    progress(f"measuring the API server for {baseline_s:g} s before the canary")
    before = await _cpu_cores(reader, baseline_s)
    shown = manifest if files else with_sidecar(manifest, image)
    progress(f"starting a canary on {', '.join(nodes)}")
    async with running(client, shown, nodes, seconds=seconds) as canary:
        progress(f"{canary.name} runs on {len(canary.pods)} nodes; recording for {seconds:g} s")
        during = await _cpu_cores(reader, seconds)
        ended = time.time()
        facts = await _facts(client, canary)
        own = [] if files else await _sidecar_lines(client, canary)
    progress("the canary is removed; reading what was recorded")
    owners = Owners(facts)
    # Other workloads may use the same account, so its requests count only by pod.
    names = {fact.node for fact in facts}

    def read() -> tuple[Observed, int]:
        reading = Reading()
        tally = Tally(owners, names.__contains__)
        lines = read_requests(files, reading, since=sizes) if files else iter(own)
        for line in lines:
            if canary.started - 1 <= line.time <= ended:
                tally.add(line)
        return tally.finish(), reading.broken

    observed, broken = await asyncio.to_thread(read)
    renamed = manifest._replace(
        daemonset={**manifest.daemonset, "metadata": {"name": canary.name, "namespace": canary.namespace}}
    )
    found = await _recording(reader, renamed, observed, broken)
    cores = max(during - before, 0.0) if before is not None and during is not None else None
    return found._replace(pods=len(canary.pods), cpu_cores=cores)


async def _recording(reader: Reader, manifest: Manifest, observed: Observed, broken: int) -> Recording:
    records = records_of(observed, manifest.namespace, manifest.name, manifest.account)
    population = await read_population(reader, observed.changes, objects_of(records.usages))
    pods = max((usage.instances for usage in records.usages), default=0)
    return Recording(records, population, observed.seconds, pods, broken)


async def _facts(client: Client, canary: Canary) -> list[PodFacts]:
    owner = OwnerReference(api_version="apps/v1", kind="DaemonSet", name=canary.name, uid="", controller=True)
    facts = []
    for name in canary.pods:
        pod = await client.get(Pod, name, canary.namespace)
        account = pod.spec.service_account_name or "default"
        facts.append(PodFacts(canary.namespace, name, account, pod.spec.node_name, owner, pod.status.pod_ip))
    return facts


async def _sidecar_lines(client: Client, canary: Canary) -> list[RequestLine]:
    decode = msgspec.json.Decoder(RequestLine).decode
    lines: list[RequestLine] = []
    for name in canary.pods:
        path = Pod.RESOURCE.object_path(canary.namespace, name, "log")
        params = {"container": CONTAINER, "limitBytes": str(_LOG_MAX_BYTES)}
        body = await client.request("GET", path, params=params)
        for data in body.split(b"\n"):
            try:
                lines.append(decode(data))
            except msgspec.MsgspecError:
                continue  # the recorder's own messages
    lines.sort(key=lambda line: line.time)
    return lines


async def _cpu_cores(reader: Reader, seconds: float) -> float | None:
    """Mean processor use of the API server in cores; None if its metrics cannot be read or another one answers."""
    clock = asyncio.get_running_loop().time
    began, first = clock(), await _page(reader)
    await asyncio.sleep(seconds)
    second = await _page(reader)
    if first is None or second is None or first.start != second.start:
        return None
    old, new = (_value(page.series) for page in (first, second))
    return (new - old) / (clock() - began) if old is not None and new is not None else None


async def _page(reader: Reader) -> Page | None:
    try:
        body = await reader.client.request("GET", "/metrics", headers={"Accept": "text/plain"})
    except ApiError:
        return None
    return parse(body.decode("utf-8", "replace"), {_CPU})


def _value(series: Mapping[str, Mapping[Any, float]]) -> float | None:
    return next(iter(series.get(_CPU, {}).values()), None)


def _position(path: Path) -> tuple[int, int]:
    """Inode and size of a log now."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_size
