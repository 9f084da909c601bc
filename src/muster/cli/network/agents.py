"""Reads pages of the network agents: through the API server, or from given addresses."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.program import prefix
from muster.cli.target import Target, resolve

if TYPE_CHECKING:
    from muster.kube.client import Client
    from muster.kube.objects.pod import Pod

T = TypeVar("T")

SELECTOR: Final = "app.kubernetes.io/name=muster,app.kubernetes.io/component=network"
CONTROLLERS: Final = "app.kubernetes.io/name=muster,app.kubernetes.io/component=controller"
MOST_NODES: Final = 512
"""Nodes that one command asks without --node: each request passes through the API server."""
_AT_ONCE: Final = 32
_ANSWER_S: Final = 10.0


class Agent(NamedTuple):
    """A network agent.

    Attributes:
        name: of its node, or its address.
        problem: why it cannot be asked; "" if it runs.
        read: returns a page, by its name.
    """

    name: str
    problem: str
    read: Callable[[str], Awaitable[bytes]]


class Answer(NamedTuple):
    """What an agent answered: the page, or why there is none."""

    name: str
    page: bytes
    problem: str

    def decoded(self, type_: type[T], what: str) -> tuple[T | None, str]:
        """Return the page and "", or None and why there is none. `what` names the page: `a page of addresses`."""
        import msgspec

        if self.problem:
            return None, self.problem
        try:
            return msgspec.json.decode(self.page, type=type_), ""
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return None, f"its answer is not {what}: {error}"


@contextlib.asynccontextmanager
async def open_agents(
    urls: Sequence[str], nodes: Iterable[str], namespace: str, target: Target
) -> AsyncIterator[list[Agent]]:
    """Yield the agents at these addresses, or those of the cluster while its client is open.

    Raises:
        CliError: see `find_agents`; or the cluster is an embedded one, which has no agents.
    """
    if urls:
        yield agents_at(urls)
        return
    cluster = resolve(target)
    if cluster.embedded is not None:
        raise CliError(
            "the embedded cluster has no network agents: its pods have no network of their own",
            "choose a cluster whose nodes run them with --kubeconfig or --context, or name an agent with --url "
            "(docs/network.md)",
            ExitCode.NOT_FOUND,
        )
    async with cluster.client() as client:
        yield await find_agents(client, namespace, nodes)


async def find_agents(client: Client, namespace: str, nodes: Iterable[str]) -> list[Agent]:
    """Return the agents of the named nodes, or of all nodes, by name.

    Raises:
        CliError: the cluster has none, a named node has none, or there are too many to ask all of them.
    """
    from muster.kube.objects.pod import Pod

    pods = (await client.list(Pod, namespace, label_selector=SELECTOR)).items
    pods.sort(key=lambda pod: pod.status.phase == "Running")  # the last one of a node counts: evicted ones may stay
    found = {pod.spec.node_name: _of_pod(client, pod) for pod in pods if pod.spec.node_name and not pod.terminating}
    if not found and pods:
        raise CliError(
            f"no pod of the network agent is on a node, of {len(pods)} in namespace {namespace}{_reason(pods)}",
            f"kubectl describe pods -n {namespace} -l {SELECTOR} shows why",
            ExitCode.NOT_FOUND,
        )
    if not found:
        raise CliError(
            f"namespace {namespace} has no pods of the network agent",
            "if Muster is in another namespace, name it with --system-namespace; if network.enabled is false in "
            "Muster's chart, or shadow is true, the operator enables the agent there (docs/network.md); if it is "
            "enabled, the namespace needs the label pod-security.kubernetes.io/enforce: privileged, and "
            f"kubectl describe daemonset muster-network -n {namespace} shows what else prevents pods",
            ExitCode.NOT_FOUND,
        )
    wanted = list(dict.fromkeys(nodes))
    missing = [name for name in wanted if name not in found]
    if missing:
        raise CliError(
            f"no network agent on {', '.join(missing)}",
            f"kubectl get pods -n {namespace} -l {SELECTOR} -o wide lists the nodes with one",
            ExitCode.NOT_FOUND,
        )
    if not wanted and len(found) > MOST_NODES:
        raise BadInput(
            f"{len(found)} nodes have a network agent, and a command asks at most {MOST_NODES} without --node",
            f"name nodes with --node, see {prefix()} network uplink, or read muster_network_bytes_total in Prometheus",
        )
    return [found[name] for name in (wanted or sorted(found))]


async def find_controllers(client: Client, namespace: str) -> list[Agent]:
    """Return the replicas of the controller, which have pages too. Raises CliError if there are no pods of it."""
    from muster.kube.objects.pod import Pod

    pods = (await client.list(Pod, namespace, label_selector=CONTROLLERS)).items
    found = [_of_pod(client, pod)._replace(name=pod.name) for pod in pods if not pod.terminating]
    if not found:
        raise CliError(
            f"namespace {namespace} has no pods of the controller",
            "if Muster is in another namespace, name it with --system-namespace; --url asks a controller without a pod",
            ExitCode.NOT_FOUND,
        )
    return found


def agents_at(urls: Sequence[str]) -> list[Agent]:
    """Return the agents at these addresses, such as http://10.0.0.7:9451. Raises BadInput."""
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise BadInput(f"--url {url!r} is not the address of an agent", "write it as http://HOST:PORT")
    return [Agent(url, "", _direct(url)) for url in dict.fromkeys(urls)]


async def read_pages(agents: Iterable[Agent], page: str) -> list[Answer]:
    """Ask each agent; some at the same time. An error of one does not end the others."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(agent: Agent) -> Answer:
        if agent.problem:
            return Answer(agent.name, b"", agent.problem)
        async with places:
            return await _answer(agent, page)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(agent)) for agent in agents]
    return [task.result() for task in tasks]


async def _answer(agent: Agent, page: str) -> Answer:
    import aiohttp

    from muster.kube.errors import ApiError

    try:
        async with asyncio.timeout(_ANSWER_S):
            return Answer(agent.name, await agent.read(page), "")
    except TimeoutError:
        return Answer(agent.name, b"", f"no answer within {_ANSWER_S:g} s")
    except ApiError as error:
        if error.status == HTTPStatus.NOT_FOUND and error.details.get("kind") == "pods":
            return Answer(agent.name, b"", "its pod has just been deleted; ask again")
        return Answer(agent.name, b"", _refused(error.status, error.message or str(error), page))
    except aiohttp.ClientResponseError as error:
        return Answer(agent.name, b"", _refused(error.status, error.message, page))
    except aiohttp.ClientConnectorError as error:
        number = error.os_error.errno
        reason = os.strerror(number) if number is not None and number > 0 else str(error.os_error)
        return Answer(agent.name, b"", f"it cannot be reached: {reason}")
    except (aiohttp.ClientError, OSError) as error:
        return Answer(agent.name, b"", f"it does not answer as a network agent: {str(error) or type(error).__name__}")


def _refused(status: int, message: str, page: str) -> str:
    """Return what a status other than success means. An agent answers 404 for the page of a part that is off."""
    if status == HTTPStatus.NOT_FOUND:
        return f"it has no page {page}: the part that makes it is off there (network.config in Muster's chart)"
    return f"it answers {status}: {message}"


def _reason(pods: Sequence[Pod]) -> str:
    """Return why the first pod is not on a node, if the scheduler wrote that."""
    for pod in pods:
        for each in pod.status.conditions:
            if each.type == "PodScheduled" and each.status == "False" and each.message:
                return f": {each.message}"
    return ""


def _of_pod(client: Client, pod: Pod) -> Agent:
    port = next((each.container_port for box in pod.spec.containers for each in box.ports if each.name == "metrics"), 0)
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}:{port}/proxy/v1/"
    problem = "" if port and pod.status.phase == "Running" else f"its pod {pod.name} is {pod.status.phase or 'Pending'}"

    async def read(page: str) -> bytes:
        return await client.request("GET", path + page, idempotent=False)

    return Agent(pod.spec.node_name, problem, read)


def _direct(url: str) -> Callable[[str], Awaitable[bytes]]:
    async def read(page: str) -> bytes:
        import aiohttp

        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.get(f"{url.rstrip('/')}/v1/{page}") as response,
        ):
            return await response.read()

    return read
