"""`muster data status`: what the data caches of nodes hold, and where the bytes of jobs came from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from muster.cli.data.nodes import NodeCache, Outcome, ask_each, find_caches
from muster.cli.data.sizes import share, size
from muster.cli.errors import ExitCode
from muster.cli.jobs.job_names import JOB_NAMES, job_names
from muster.cli.names import NODE_NAMES
from muster.cli.output import note, output_option, print_data, print_table
from muster.cli.table_group import system_namespace
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.cli.data.links import Link
    from muster.cli.target import Cluster
    from muster.kube.client import Client
    from muster.sdk.data.wire import Message

HEADERS = ("NODE", "STATE", "USED", "SIZE", "PROTECTED", "HITS", "BUCKET", "PEERS", "DISK", "READERS")
OPTIONAL = ("PROTECTED", "READERS", "SIZE")
JOB_HEADERS = ("JOB", "NODES", "HITS", "BUCKET", "PEERS", "DISK", "READERS", "LIMIT")
JOB_OPTIONAL = ("LIMIT", "READERS", "NODES")
SOURCES = ("bucket", "peer", "disk")
_ANSWER_S = 10.0


@click.command("status")
@click.option("--node", "nodes", multiple=True, metavar="NAME", callback=NODE_NAMES, help="Only this node; repeatable.")
@click.option("--job", default="", metavar="NAME", callback=JOB_NAMES, shell_complete=job_names, help="Only this job.")
@system_namespace
@output_option("json", "yaml")
@cluster_options()
def status_command(nodes: tuple[str, ...], job: str, system_namespace: str, output: str, target: Target) -> int:
    """Show the data cache of each node, and the bytes of each job by source: bucket, peers, disk.

    Counters begin with the start of each cache. HITS is the share of bytes that did not come from the bucket. Exit
    status 1: a cache did not answer.
    """
    return asyncio.run(_status(resolve(target), nodes, job, system_namespace, output))


async def _status(cluster: Cluster, nodes: Iterable[str], job: str, namespace: str, output: str) -> int:
    async with cluster.client() as client:
        only = await _uid(client, cluster, job) if job else ""
        caches = await find_caches(cluster, client, namespace, nodes)
        outcomes = await ask_each(caches, _ask)
    answers = {each.node: each.value for each in outcomes if each.value is not None}
    jobs = by_job(answers, only)
    if output:
        print_data(_data(outcomes, jobs, only), output)
    else:
        print_table(HEADERS, [_row(each, only) for each in outcomes], OPTIONAL)
        if jobs:
            click.echo()
            print_table(JOB_HEADERS, [_job_row(each) for each in jobs.values()], JOB_OPTIONAL)
        for outcome in outcomes:
            reason = str(outcome.error) if outcome.error else str((outcome.value or {}).get("reason") or "")
            if reason:
                note(f"{outcome.node}: {reason}")
    return ExitCode.DONE if len(answers) == len(outcomes) else ExitCode.FAILED


async def _ask(cache: NodeCache, link: Link) -> Message:
    return await link.ask({"op": "status"}, _ANSWER_S)


async def _uid(client: Client, cluster: Cluster, job: str) -> str:
    from muster.cli.jobs.watch import get_job

    return (await get_job(client, cluster.namespace, job)).uid


def by_job(answers: dict[str, Message], only: str = "") -> dict[str, dict[str, Any]]:
    """Sum the figures of each job over the nodes: {UID: {name, nodes, readers, bytes, rate_bytes_per_s}}."""
    found: dict[str, dict[str, Any]] = {}
    for answer in answers.values():
        for each in _jobs(answer, only):
            none = {"nodes": 0, "readers": 0, "bytes": dict.fromkeys(SOURCES, 0), "rate_bytes_per_s": 0}
            total = found.setdefault(each["job"], {"name": each["name"], **none})
            total["nodes"] += 1
            total["readers"] += each["readers"]
            total["rate_bytes_per_s"] += each["rate_bytes_per_s"]
            for source in SOURCES:
                total["bytes"][source] += each["bytes"][source]
    return {uid: each for uid, each in sorted(found.items()) if each["readers"] or any(each["bytes"].values())}


def _jobs(answer: Message, only: str) -> list[dict[str, Any]]:
    return [each for each in answer["jobs"] if not only or each["job"] == only]


def _row(outcome: Outcome[Message], only: str) -> Sequence[str]:
    answer = outcome.value
    if answer is None:
        return (outcome.node, "no answer", *["-"] * (len(HEADERS) - 2))
    jobs = _jobs(answer, only)
    counts = {source: sum(each["bytes"][source] for each in jobs) for source in SOURCES}
    return (
        outcome.node,
        answer["state"],
        size(answer["used_bytes"]),
        size(answer["size_bytes"]),
        size(answer["protected_bytes"]),
        *_bytes(counts),
        str(sum(each["readers"] for each in jobs)),
    )


def _job_row(each: dict[str, Any]) -> Sequence[str]:
    rate = each["rate_bytes_per_s"]
    limit = f"{size(rate)}/s" if rate else "-"
    return (each["name"], str(each["nodes"]), *_bytes(each["bytes"]), str(each["readers"]), limit)


def _bytes(counts: dict[str, int]) -> tuple[str, ...]:
    """The columns HITS, BUCKET, PEERS and DISK."""
    return (share(counts["peer"] + counts["disk"], sum(counts.values())), *(size(counts[each]) for each in SOURCES))


def _data(outcomes: Sequence[Outcome[Message]], jobs: dict[str, dict[str, Any]], only: str) -> dict[str, Any]:
    nodes = []
    for outcome in outcomes:
        answer = {name: value for name, value in (outcome.value or {}).items() if name not in ("ok", "jobs")}
        if outcome.value is not None:
            answer["jobs"] = _jobs(outcome.value, only)
        nodes.append({**answer, "node": outcome.node, **({"error": str(outcome.error)} if outcome.error else {})})
    return {"nodes": nodes, "jobs": [{"job": uid, **each} for uid, each in jobs.items()]}
