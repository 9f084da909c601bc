"""`muster network agent`: the network agent of a node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from muster.api.names import LABEL_TEAM, SYSTEM_NAMESPACE
from muster.cli.errors import CliError, ExitCode
from muster.cli.names import namespace as namespace_name
from muster.cli.network.agentconfig import check_config
from muster.cli.processes.listening import address
from muster.kube.errors import BadConfig, ConfigError
from muster.kube.privilege import drop_privileges
from muster.kube.running import log_to_stderr, stop_on_signals
from muster.network.agent.cgroupnamespace import enter_host_cgroups
from muster.network.agent.part import HostPaths
from muster.network.agent.parts import REMOVAL_CAPABILITIES, capabilities, start_capabilities
from muster.network.agent.program import AgentOptions, node_name, read_config, run_agent
from muster.network.agent.removal import run_removal
from muster.network.agent.statelock import StateInUse
from muster.network.config import NetworkConfig

_PATHS = HostPaths()
_IN_USE = (
    "one agent runs per node; to remove its work, set network.remove=true in Muster's chart, which ends the agents "
    "first (docs/network.md); another agent needs a --state-dir of its own"
)


@click.command("agent")
@click.option("--node", default="", help="Name of the node (NODE_NAME).")
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="network.yaml; without it all parts are off."
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig of the cluster (as kubectl finds it).",
)
@click.option("--listen", callback=address, help="Address of /metrics, /healthz and the pages of parts (not served).")
@click.option(
    "--namespace", default=SYSTEM_NAMESPACE, show_default=True, callback=namespace_name, help="Muster's namespace."
)
@click.option("--team-key", default=LABEL_TEAM, show_default=True, help="Label of pods that names their team.")
@click.option(
    "--proc", type=click.Path(path_type=Path), default=_PATHS.proc, show_default=True, help="The node's /proc."
)
@click.option(
    "--sys", "sys_", type=click.Path(path_type=Path), default=_PATHS.sys, show_default=True, help="The node's /sys."
)
@click.option(
    "--cgroup",
    type=click.Path(path_type=Path),
    default=_PATHS.cgroup,
    show_default=True,
    help="The node's /sys/fs/cgroup.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=_PATHS.state,
    show_default=True,
    help="Folder that survives reboots.",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=_PATHS.run,
    show_default=True,
    help="Folder of sockets.",
)
@click.option("--read-cache", default="", metavar="URL", help="Read through this read cache.")
@click.option(
    "--read-cache-ca", type=click.Path(path_type=Path, dir_okay=False), help="Its authorities, PEM (the cluster's)."
)
@click.option(
    "--remove",
    is_flag=True,
    help="Undo what all parts set up on this node, and end. With --listen: repeat what failed, then wait.",
)
@click.option(
    "--check", is_flag=True, help="Check --config as the agent does, or values of the chart, and end. Needs no cluster."
)
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning"]), show_default=True)
def command(
    node: str,
    config: Path | None,
    kubeconfig: Path | None,
    listen: tuple[str, int] | None,
    namespace: str,
    team_key: str,
    proc: Path,
    sys_: Path,
    cgroup: Path,
    state_dir: Path,
    run_dir: Path,
    read_cache: str,
    read_cache_ca: Path | None,
    remove: bool,
    check: bool,
    log_level: str,
) -> int:
    """Run the parts of the network that need this node (the chart starts it).

    --remove needs no cluster, and no agent may run. It removes also parts that the configuration turned off since.
    Exit status 1: something could not be removed.
    """
    log_to_stderr(log_level)
    paths = HostPaths(proc=proc, sys=sys_, cgroup=cgroup, state=state_dir, run=run_dir)
    try:
        if check:
            click.echo(check_config(config))
            return ExitCode.DONE
        parts = read_config(config)
        if remove:
            drop_privileges(REMOVAL_CAPABILITIES)
            return ExitCode.DONE if asyncio.run(_remove(paths, parts, listen)) else ExitCode.FAILED
        options = AgentOptions(
            node=node_name(node),
            config=config,
            kubeconfig=kubeconfig,
            listen=listen,
            namespace=namespace,
            team_key=team_key,
            paths=paths,
            read_cache=read_cache,
            read_cache_ca=read_cache_ca,
        )
        if start_capabilities(parts):
            _enter_host_cgroups(proc)
        drop_privileges(capabilities(parts))
        asyncio.run(_main(options, parts))
        return ExitCode.DONE
    except BadConfig as error:
        raise CliError(str(error), exit_code=ExitCode.BAD_INPUT) from None
    except ConfigError as error:
        raise CliError(str(error), exit_code=ExitCode.NO_CLUSTER) from None
    except StateInUse as error:
        raise CliError(str(error), _IN_USE) from None
    except OSError as error:
        raise CliError(str(error)) from None


async def _remove(paths: HostPaths, config: NetworkConfig, listen: tuple[str, int] | None) -> bool:
    return await run_removal(paths, config, stop_on_signals(), lambda each: click.echo(str(each)), listen=listen)


def _enter_host_cgroups(proc: Path) -> None:
    try:
        enter_host_cgroups(proc)
    except OSError as error:
        raise CliError(
            str(error),
            "give the container SYS_ADMIN and SYS_PTRACE, as the chart does, or set traffic.hostNetworkPods to false",
        ) from None


async def _main(options: AgentOptions, config: NetworkConfig) -> None:
    await run_agent(options, config, stop_on_signals())
