"""`muster health`: shows faulty nodes, and which line of the policy decides the action."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from muster.cli.errors import BadInput, ExitCode
from muster.cli.health.check import command as check
from muster.cli.health.check import read_policy_file
from muster.cli.names import node_argument
from muster.cli.output import note, output_option, print_data, say
from muster.cli.table_group import system_namespace, table_group
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.cli.target import Cluster
    from muster.fleet.health.finding import Finding
    from muster.fleet.health.policy import Policy
    from muster.fleet.health.replay import Step

_PIECE_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
"""The first bytes of a gzip file: a rotated log may have any name."""


@table_group
async def command(cluster: Cluster, namespace: str, output: str) -> int:
    """Show faulty nodes: the action that the policy decides, and what Muster does."""
    from muster.cli.health.views import show

    return await show(cluster, namespace, output)


command.add_command(check)


def _policy_options(command: Any) -> Any:
    command = click.option(
        "--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label of the node; labels select the pool."
    )(command)
    return click.option("--policy", metavar="FILE", help="Use this policy instead of the default one.")(command)


@command.command()
@click.argument("log", metavar="LOGFILE")
@_policy_options
@click.option("--all", "everything", is_flag=True, help="Also show findings that change no decision.")
@output_option("json", "yaml")
def replay(log: str, policy: str | None, labels: tuple[str, ...], everything: bool, output: str) -> int:
    """Replay a recorded kernel log: findings, the action at each moment, and the line of the policy that decides.

    LOGFILE is the output of dmesg or journalctl -k, or a kern.log, also with gzip; - is standard input.
    """
    from msgspec import to_builtins

    from muster.fleet.health.replay import timeline

    decides = _policy(policy, labels)
    hosts, lines = _findings(log)
    steps = {host: list(timeline(found, decides)) for host, found in hosts.items()}
    if output:
        print_data(
            {
                "policy": decides.revision,
                "lines": lines,
                "nodes": [{"node": host, "steps": to_builtins(each)} for host, each in sorted(steps.items())],
            },
            output,
        )
        return ExitCode.DONE
    for host, each in sorted(steps.items()):
        for text in _timeline(host, each, everything):
            say(text)
    note(f"{lines:,} lines, {sum(map(len, hosts.values())):,} findings, policy {decides.revision}")
    return ExitCode.DONE


@command.command()
@node_argument(metavar="[NODE]", default="")
@click.option("--log", metavar="LOGFILE", help="Instead of NODE: a recorded kernel log, as for `muster health replay`.")
@_policy_options
@system_namespace
@output_option("json", "yaml")
@cluster_options()
def explain(
    name: str,
    log: str | None,
    policy: str | None,
    labels: tuple[str, ...],
    system_namespace: str,
    output: str,
    target: Target,
) -> int:
    """Explain the action for NODE, or for the state at the end of a recorded log.

    Shows the evidence, and what NVIDIA and cloud vendors advise.
    """
    if name and log:
        raise BadInput("a node or a log, not both", "leave out one of them")
    if not (name or log):
        raise BadInput("name a node, or a log", "muster health explain gpu-node-17")
    if log is not None:
        return _explain_log(log, policy, labels, output)
    if policy or labels:
        raise BadInput("--policy and --label go with --log", "a node's policy is the one in the cluster")
    from muster.cli.health.views import explain_node

    return asyncio.run(explain_node(resolve(target), system_namespace, name, output))


def _explain_log(log: str, policy: str | None, labels: Sequence[str], output: str) -> int:
    from msgspec import to_builtins

    from muster.fleet.health.explain import lines
    from muster.fleet.health.replay import timeline

    decides = _policy(policy, labels)
    hosts, _ = _findings(log)
    last = {host: list(timeline(found, decides))[-1].decision for host, found in sorted(hosts.items())}
    if output:
        print_data([{"node": host, **to_builtins(decision)} for host, decision in last.items()], output)
        return ExitCode.DONE
    for host, decision in last.items():
        say(f"{host or 'this node'}:")
        for text in lines(decision, decides):
            say(text, head="  ")
    if not last:
        click.echo("nothing was found")
    return ExitCode.DONE


def _policy(file: str | None, labels: Sequence[str]) -> Policy:
    from muster.fleet.health.policytext import default_policy

    pairs = [label.partition("=") for label in labels]
    if any(not key or not equals for key, equals, _ in pairs):
        raise BadInput("--label needs KEY=VALUE", "--label muster.dev/pool=h100")
    policy = read_policy_file(file) if file else default_policy()
    return policy.of_node({key: value for key, _, value in pairs})


def _findings(log: str) -> tuple[dict[str, Sequence[Finding]], int]:
    import zlib

    from muster.fleet.health.headers import LogClock
    from muster.fleet.health.nolog import NoKernelLog
    from muster.fleet.health.replay import findings_of

    try:
        written_s = time.time() if log == "-" else os.stat(log).st_mtime
        clock = LogClock(now_s=written_s, zone=datetime.now().astimezone().tzinfo or UTC)
        hosts, lines = findings_of(_pieces(log), clock)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"cannot read {log}: {getattr(error, 'strerror', None) or error}") from error
    except NoKernelLog as error:
        raise BadInput(f"{'<stdin>' if log == '-' else log} {error.what}", error.hint) from error
    return dict(hosts), lines


def _pieces(log: str) -> Iterator[bytes]:
    import gzip

    if log == "-":
        while piece := sys.stdin.buffer.read(_PIECE_BYTES):
            yield piece
        return
    with open(log, "rb") as file:
        packed = file.peek(2)[:2] == _GZIP
    with gzip.open(log, "rb") if packed else open(log, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _timeline(host: str, steps: Sequence[Step], everything: bool) -> Iterator[str]:
    from muster.fleet.health.explain import time_text

    yield f"{host or 'this node'}:"
    for step in steps:
        finding, decision = step.finding, step.decision
        if not (step.changed or everything):
            continue
        times = f" x{finding.count:,}" if finding.count > 1 else ""
        what = f"{finding.check} {finding.code} {finding.component}".rstrip()
        yield f"  {time_text(finding.first_s)}  {what}{times}: {finding.message}"
        if step.changed:
            job = f", {decision.job}" if decision.job else ""
            rule = f"{decision.rule} ({decision.where})" if decision.rule else "nothing that counts"
            loud = "  UNKNOWN CODE" if decision.unknown else ""
            why = f": {decision.why}; {decision.fault} fault" if decision.rule else ""
            yield f"    -> {decision.action}{job}: {rule}{why}{loud}"
    hidden = sum(not step.changed for step in steps)
    if hidden and not everything:
        yield f"  {hidden} more findings changed nothing (--all shows them)"
