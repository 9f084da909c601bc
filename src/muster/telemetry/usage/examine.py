"""Reads all inputs, asks the server what it scrapes, and finds what is not used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from muster.telemetry.prometheus.client import PrometheusClient
from muster.telemetry.prometheus.errors import PrometheusError
from muster.telemetry.usage.consumers import RemoteWrite, checked_selector, configs_of, federated_selectors
from muster.telemetry.usage.findings import Findings, add_rules, find
from muster.telemetry.usage.inputs.files import InputError, read_files
from muster.telemetry.usage.inputs.guardqueries import guard_questions
from muster.telemetry.usage.inputs.own import own_questions
from muster.telemetry.usage.inputs.querylog import LogReading, read_query_logs, selections_of_groups
from muster.telemetry.usage.inputs.question import Notes, Question
from muster.telemetry.usage.inputs.rules import Rule, server_rules
from muster.telemetry.usage.inventory import FRESH_S, Inventory, read_inventory
from muster.telemetry.usage.ledger import Broad, Ledger
from muster.telemetry.usage.pools import pools_of_configs
from muster.telemetry.usage.query import read_query

COVERED_LEAST: Final = 0.95
"""Part of the window that the query logs must cover."""
_GAP_NOTED_S: Final = 3600.0

Progress = Callable[[str], None]


class ShortLog(InputError):
    """The query logs cover less than the window.

    Attributes:
        covered_s: how much of the window they cover, in seconds.
    """

    def __init__(self, message: str, covered_s: float) -> None:
        """Store the message and the covered time."""
        super().__init__(message)
        self.covered_s = covered_s


@dataclass(frozen=True)
class Inputs:
    """Inputs that the user names.

    Attributes:
        files: dashboards and rules: files and folders.
        query_logs: log files.
        guard_queries: saved pages with the dearest queries of Muster's guard.
        window_s: length of the window before now that the query logs must cover.
        other_sources: names and UIDs of data sources of Grafana that are not this server.
        ignored: texts of queries that do not count as use.
        selectors: what other readers read.
        federated_by: configurations of servers that scrape /federate of this one.
        configs: texts of configurations of this server, by file; its `remote_write` counts as a reader.
        remote_write_covered: whether the other inputs contain the queries of servers that receive `remote_write`.
        rules_deleted: whether to find what is unused after the unused recording rules are deleted.
    """

    files: tuple[Path, ...] = ()
    query_logs: tuple[Path, ...] = ()
    guard_queries: tuple[Path, ...] = ()
    window_s: float = 0.0
    other_sources: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    selectors: tuple[str, ...] = ()
    federated_by: tuple[Path, ...] = ()
    configs: dict[str, str] = field(default_factory=dict)
    remote_write_covered: bool = False
    rules_deleted: bool = False


@dataclass
class Examined:
    """All that was found.

    Attributes:
        inventory: what the server scrapes.
        findings: what is not used.
        window: start and end in Unix seconds.
        files: number of files with dashboards and rules.
        queries: number of queries in them.
        rules: number of rules in them and in the server.
        log: what the query logs contained; None without any.
        notes: what was not read, and what the inputs cannot show.
    """

    inventory: Inventory
    findings: Findings
    window: tuple[float, float]
    files: int
    queries: int
    rules: int
    log: LogReading | None
    notes: Notes


async def examine(
    client: PrometheusClient, inputs: Inputs, now_s: float, progress: Progress = lambda stage: None
) -> Examined:
    """Find what is scraped and not used.

    Raises:
        InputError: an input cannot be read. ShortLog: the query logs cover less than the window.
        LogFileError: a query log cannot be read.
        PrometheusError: the server gives no usable answer.
    """
    notes = Notes()
    files = read_files(inputs.files, inputs.other_sources, notes, progress)
    files.questions += [question for path in inputs.guard_queries for question in guard_questions(path)]
    selectors = [*map(checked_selector, inputs.selectors), *_federated(inputs.federated_by)]
    configs = [each for name, text in inputs.configs.items() for each in configs_of(text, name)]
    inventory = await read_inventory(client, pools_of_configs(configs), progress)
    rules = _rules(inventory, files.rules, notes)
    recorded = {each.name for each in rules if each.records}
    ledger = Ledger(inventory.possible_names(), recorded, inventory.possible_parts())

    def ask(question: Question) -> None:
        if question.text not in inputs.ignored:
            ledger.add(question.query, question.source, question.text)

    for question in (*own_questions(), *files.questions):
        ask(question)
    for text in selectors:
        ledger.add(read_query(text), "another reader", text)
    window = (now_s - inputs.window_s, now_s)
    log = None
    if inputs.query_logs:
        known = selections_of_groups(rules)
        log = read_query_logs(inputs.query_logs, window, known, ask, progress)
        _check_coverage(log, window, notes)
    else:
        notes.add("without a query log, queries that no dashboard or rule contains are not known")
    await _remote_writes(client, inputs, inventory, ledger, notes)
    await _labels(client, ledger, inventory)
    unread = add_rules(ledger, rules)
    findings = find(inventory, ledger, unread, recorded)
    if inputs.rules_deleted:
        findings = findings.with_unused_rules_deleted()
    return Examined(inventory, findings, window, files.files, len(files.questions), len(rules), log, notes)


def _federated(files: Iterable[Path]) -> Iterable[str]:
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path}: {error}") from error
        found = [
            checked_selector(each) for config in configs_of(text, str(path)) for each in federated_selectors(config)
        ]
        if not found:
            raise InputError(f"{path} has no job that scrapes /federate with match[]")
        yield from found


def _rules(inventory: Inventory, of_files: list[Rule], notes: Notes) -> list[Rule]:
    if inventory.groups is None:
        notes.add("the server does not list its rules: name the files of all of them")
    elif not inventory.groups and not of_files:
        notes.add("the server has no rules, and no file contains any")
    return [*server_rules(inventory.groups or ()), *of_files]


def _check_coverage(log: LogReading, window: tuple[float, float], notes: Notes) -> None:
    start_s, end_s = window
    covered = log.covered_s(start_s, end_s)
    if covered < (end_s - start_s) * COVERED_LEAST:
        raise ShortLog("the query logs do not cover the window", covered)
    if log.gap_s > _GAP_NOTED_S:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(log.gap_start_s))
        notes.add(f"the query logs have no query for {log.gap_s / 3600:.1f} hours from {moment}")
    for each in log.files:
        if each.reading.broken:
            first = ", ".join(map(str, each.reading.broken_at))
            notes.add(f"{each.path}: {each.reading.broken} lines are not of a query log: line {first}")


async def _remote_writes(
    client: PrometheusClient, inputs: Inputs, inventory: Inventory, ledger: Ledger, notes: Notes
) -> None:
    """Count what is sent to other servers as used, unless the user says that their queries are among the inputs."""
    if inputs.remote_write_covered:
        return
    texts = dict(inputs.configs)
    try:
        texts["the server"] = await client.config()
    except PrometheusError as error:
        if not error.not_offered:
            raise
        notes.add("the server does not show its configuration: if it has remote_write, name the file with --config")
    for name, text in texts.items():
        remote = RemoteWrite(configs_of(text, name))
        if not remote.urls:
            continue
        sent = {each for each, jobs in inventory.series.items() if any(remote.sends(each, job) for job in jobs)}
        ledger.add_names(sent, Broad(f"remote_write of {name}", ", ".join(remote.urls), "queries there are not known"))


async def _labels(client: PrometheusClient, ledger: Ledger, inventory: Inventory) -> None:
    """Resolve queries for the values of a label: they read all metrics that have it, unless `up` has all values too."""
    start_s = time.time() - FRESH_S
    for label, readers in ledger.labels.items():
        try:
            values = await client.label_values(label, start_s=start_s)
            if set(values) <= set(await client.label_values(label, ["up"], start_s=start_s)):
                continue
            names = await client.label_values("__name__", [f'{{{label}!=""}}'], start_s=start_s)
        except PrometheusError:
            names = list(inventory.series)
        for each in readers.values():
            ledger.add_names(names, each)
