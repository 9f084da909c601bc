"""`muster network check`: findings about the address ranges of existing clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from muster.cli.errors import BadInput, CliError, ExitCode, from_api_error
from muster.cli.input_file import read_text
from muster.cli.network.findings import exit_code, print_findings
from muster.cli.output import note, output_option, print_data
from muster.kube.errors import ApiError, BadConfig, ConfigError

if TYPE_CHECKING:
    from muster.network.plan.clusters import Seen
    from muster.network.plan.estate import Estate
    from muster.network.plan.request import PodNetwork, Provider

_TIMEOUT_S = 120.0
_RETRY_S = 5.0


@click.command("check")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--provider", type=click.Choice(["aws", "azure", "metal"]), help="Whose limits count (by the nodes).")
@click.option(
    "--pod-network",
    type=click.Choice(["native", "routes", "overlay"]),
    help="How packets of pods travel (native in a cloud, otherwise routes).",
)
@output_option("json", "yaml")
def command(files: tuple[str, ...], provider: str | None, pod_network: str | None, output: str) -> int:
    """Check address ranges: overlaps, room, fragmentation, limits of the provider, kernels of nodes, MTU.

    Each FILE is an estate, a plan of `muster network plan`, or a kubeconfig, whose current context is read. All
    clusters of all files are compared. The exit status is 1 if a finding is an error.
    """
    from msgspec import to_builtins

    from muster.network.plan.check import check

    estate, notes = _estate(files, cast("Provider | None", provider), cast("PodNetwork | None", pod_network))
    findings = check(estate)
    if output:
        data: dict[str, Any] = {"findings": to_builtins(findings), "notes": list(notes), "estate": to_builtins(estate)}
        print_data(data, output)
    else:
        for each in notes:
            note(each)
        print_findings(findings)
    return exit_code(findings)


def _estate(
    files: Sequence[str], provider: Provider | None, pod_network: PodNetwork | None
) -> tuple[Estate, tuple[str, ...]]:
    """Return all clusters of all files, and notes about what could not be read."""
    from muster.network.plan.document import parse_document
    from muster.network.plan.merge import merge

    estates: list[tuple[str, Estate]] = []
    kubeconfigs: list[str] = []
    try:
        for file in files:
            found = parse_document(read_text(file), file)
            if found is None:
                if file == "-":
                    raise BadInput("a kubeconfig cannot be read from stdin", "write the name of its file")
                kubeconfigs.append(file)
            else:
                estates.append((file, found))
        seen = asyncio.run(_read(kubeconfigs)) if kubeconfigs else []
        return merge(estates, seen, provider, pod_network), tuple(text for _, each in seen for text in each.notes)
    except BadConfig as error:
        raise BadInput(str(error)) from None


async def _read(kubeconfigs: Sequence[str]) -> list[tuple[str, Seen]]:
    return list(await asyncio.gather(*map(_read_one, kubeconfigs)))


async def _read_one(file: str) -> tuple[str, Seen]:
    from muster.kube.client import Client
    from muster.kube.connection.config import load_config
    from muster.network.plan.clusters import read_cluster

    try:
        config = load_config(Path(file))
        async with asyncio.timeout(_TIMEOUT_S), Client(config, user_agent="muster-cli", retry_for_s=_RETRY_S) as client:
            return file, await read_cluster(client, Path(file).stem)
    except ConfigError as error:
        raise CliError(f"{file}: {error}", exit_code=ExitCode.NO_CLUSTER) from None
    except ApiError as error:
        translated = from_api_error(error)
        raise CliError(f"{file}: {translated.message}", translated.hint, translated.exit_code) from None
    except TimeoutError:
        raise CliError(f"{file}: the cluster did not answer in time", exit_code=ExitCode.TIMED_OUT) from None
