"""python -m bench.polls: thousands of supervisors' long polls on one controller.

The controller's server, its members and the directives are the real ones, over TLS; supervisors are simulated in
processes of their own. The API server is left out: tokens and pods are made up. There is no peer in this run.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import click
from rich.table import Table

from bench.polls import clients, server
from bench.report import Report, at_most, console, emit, spread

_IDLE_S = 30.0


@click.command()
@click.option("--members", default=7500, show_default=True, type=click.IntRange(2, 9000))
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1, 16), help="Of simulated supervisors.")
@click.option("--repetitions", default=5, show_default=True, type=click.IntRange(1, 50), help="Directives changed.")
@click.option("--json", "target", default="-", help="A file for the report; it is the last line of stdout in any case.")
def main(members: int, processes: int, repetitions: int, target: str) -> None:
    """Measure one controller under the polls of many supervisors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < 2 * members + 100:
        raise click.UsageError(
            f"{members} members need {2 * members + 100} open files, the limit is {hard} (ulimit -n)"
        )
    spawn = multiprocessing.get_context("spawn")
    loads = [os.getloadavg()[0]]
    ours, theirs = spawn.Pipe()
    started = [spawn.Process(target=server.serve, args=(theirs, members), daemon=True)]
    started[0].start()
    port, ca = ours.recv()
    empty = _ask(ours, "look")
    out = console()
    try:
        began = time.monotonic()
        pipes = []
        for number in range(processes):
            mine, other = spawn.Pipe()
            part = range(number * members // processes, (number + 1) * members // processes)
            started.append(spawn.Process(target=clients.poll, args=(other, port, ca, part), daemon=True))
            started[-1].start()
            pipes.append(mine)
        joined = _ask(ours, "joined", 1)
        join_s = time.monotonic() - began
        _last(pipes, 1)
        out.print(f"{members} joined within {join_s:.1f} s")
        time.sleep(2 * joined["poll_s"])  # both connections are there after two polls
        before, connected = _ask(ours, "look"), _connections(pipes)
        time.sleep(_IDLE_S)
        after = _ask(ours, "look")
        idle_cpu = (after["cpu_total_s"] - before["cpu_total_s"]) / (after["began"] - before["began"])
        heard, said, cpu = [], [], []
        for number in range(repetitions):
            change = _ask(ours, "direct", number + 2)
            heard.append(_last(pipes, number + 2) - change["began"])
            said.append(change["took_s"])
            cpu.append(change["cpu_s"])
            loads.append(os.getloadavg()[0])
            out.print(
                f"sent to all in {heard[-1]:.2f} s, heard from all after {said[-1]:.2f} s, {cpu[-1]:.2f} s of CPU"
            )
            time.sleep(2)
        connections = _connections(pipes)
    finally:
        for pipe, process in zip((*pipes, ours), (*started[1:], started[0]), strict=False):  # the server last
            pipe.send(None)
            process.join(20)
            process.kill()
    figures = {
        "members": float(members),
        "join_s": round(join_s, 3),
        "poll_s": joined["poll_s"],
        "connections": float(connected),
        "connections_made_later": float(connections - connected),
        "memory_mib": round(after["rss_bytes"] / 2**20, 1),
        "memory_per_member_kib": round((after["rss_bytes"] - empty["rss_bytes"]) / 1024 / members, 2),
        "idle_cpu_cores": round(idle_cpu, 4),
        "polls_open": after["polling"],
        "silent": after["silent"],
    }
    spread("directive_heard_by_all_s", heard, figures)
    spread("new_state_known_of_all_s", said, figures)
    spread("directive_cpu_s", cpu, figures)
    spread("load_average", loads, figures)
    goals = (
        at_most("memory per member (KiB)", 200, figures["memory_per_member_kib"]),
        at_most("idle CPU (cores)", 0.5, figures["idle_cpu_cores"]),
        at_most("a directive reaches all (s)", 5, median(heard)),
        at_most("connections made after the start", 0, figures["connections_made_later"]),
    )
    emit(Report("polls", figures, goals), target, [_table(figures)])


def _ask(pipe: Connection, what: str, number: int = 0) -> dict[str, Any]:
    pipe.send((what, number))
    answer: dict[str, Any] = pipe.recv()
    return answer


def _last(pipes: list[Connection], attempt: int) -> float:
    """Returns when the last of all supervisors received the attempt."""
    received = [pipe.recv() for pipe in pipes]
    assert all(number == attempt for number, _ in received)
    return float(max(moment for _, moment in received))


def _connections(pipes: list[Connection]) -> int:
    for pipe in pipes:
        pipe.send("connections")
    return sum(int(pipe.recv()) for pipe in pipes)


def _table(figures: dict[str, float]) -> Table:
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:g}")
    return table


if __name__ == "__main__":
    main()
