"""Finds the node caches of a cluster, and asks several of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from muster.cli.data.links import Link, local_link, pod_link
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.program import prefix

if TYPE_CHECKING:
    from muster.cli.target import Cluster
    from muster.kube.client import Client
    from muster.kube.objects.pod import Pod

SELECTOR = "app.kubernetes.io/name=muster,app.kubernetes.io/component=cache"
MOST_NODES = 256
"""Nodes that one command asks without --node: each is an exec through the API server."""
_AT_ONCE = 16
T = TypeVar("T")


class NodeCache(NamedTuple):
    """The cache of a node.

    Attributes:
        node: the node's name.
        problem: why the cache cannot be asked; "" if it runs.
        open: opens a connection to it.
    """

    node: str
    problem: str
    open: Callable[[], AbstractAsyncContextManager[Link]]


class Outcome(NamedTuple, Generic[T]):
    """The result for one node: a value, or the error."""

    node: str
    value: T | None
    error: CliError | None


async def find_caches(cluster: Cluster, client: Client, namespace: str, names: Iterable[str] = ()) -> list[NodeCache]:
    """Return the caches of the named nodes, or of all nodes, by name.

    Raises:
        CliError: the cluster has no caches, a named node has none, or there are too many nodes to ask all of them.
    """
    if cluster.embedded is not None:
        found = _local(cluster)
    else:
        found = await _in_pods(client, namespace)
    wanted = list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in found]
    if missing:
        raise CliError(
            f"no node cache on {', '.join(missing)}",
            f"{prefix()} data status lists the nodes with a cache",
            ExitCode.NOT_FOUND,
        )
    if not wanted and len(found) > MOST_NODES:
        raise BadInput(
            f"{len(found)} nodes have a cache, and a command asks at most {MOST_NODES} without --node",
            "name nodes with --node, or read the caches' metrics (docs/data.md)",
        )
    return [found[name] for name in (wanted or sorted(found))]


def _local(cluster: Cluster) -> dict[str, NodeCache]:
    """The caches of a cluster on this machine. A node without a request for its cache has none."""
    layout = cluster.embedded
    assert layout is not None
    spec = layout.read_spec()
    if spec is None or not spec.has_caches:
        raise CliError(
            f"{cluster.description} was started without data caches",
            f"start it again: {prefix()} down, then {prefix()} up --cache 2Gi",
            ExitCode.NOT_FOUND,
        )
    found = {}
    for node in spec.node_names():
        control = layout.cache(node).control
        if control.parent.is_dir():
            found[node] = NodeCache(node, "", partial(local_link, control))
    if not found:
        raise CliError(
            "no node has a data cache yet: it starts with the first job that reads from an object store",
            f"{prefix()} run --data s3://BUCKET/PREFIX ... starts one on the job's nodes",
            ExitCode.NOT_FOUND,
        )
    return found


async def _in_pods(client: Client, namespace: str) -> dict[str, NodeCache]:
    from muster.kube.objects.pod import Pod

    pods = [
        pod
        for pod in (await client.list(Pod, namespace, label_selector=SELECTOR)).items
        if pod.spec.node_name and pod.metadata.deletion_timestamp is None
    ]
    if not pods:
        raise CliError(
            f"namespace {namespace} has no pods of the node data cache",
            "the operator enables it with data.cache.enabled in Muster's chart (docs/data.md); if Muster is in another "
            "namespace, name it with --system-namespace",
            ExitCode.NOT_FOUND,
        )
    return {
        pod.spec.node_name: NodeCache(pod.spec.node_name, _problem(pod), partial(pod_link, client, pod)) for pod in pods
    }


def _problem(pod: Pod) -> str:
    """Why the cache's pod cannot be asked; "" if it runs."""
    from muster.cli.jobs.pods import state_of

    running = any(each.state is not None and each.state.running is not None for each in pod.status.container_statuses)
    return "" if running else f"its pod {pod.name} is {state_of(pod)}"


async def ask_each(
    caches: Iterable[NodeCache], work: Callable[[NodeCache, Link], Awaitable[T]], at_once: int = _AT_ONCE
) -> list[Outcome[T]]:
    """Connect to each cache and run `work`; some at the same time. An error of one node does not end the others."""
    places = asyncio.Semaphore(at_once)

    async def one(cache: NodeCache) -> Outcome[T]:
        if cache.problem:
            return Outcome(cache.node, None, CliError(cache.problem))
        async with places:
            try:
                async with cache.open() as link:
                    return Outcome(cache.node, await work(cache, link), None)
            except CliError as error:
                return Outcome(cache.node, None, error)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(cache)) for cache in caches]
    return [task.result() for task in tasks]
