"""`muster telemetry unused` with a real Prometheus: the configuration that it proposes changes no answer."""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.telemetry.prometheus.probe import PROBE_MATCHER
from muster.telemetry.promql.matcher import Matcher, Op
from muster.telemetry.usage.pattern import matches
from tests.support.exposition import pages
from tests.support.prometheus import Prometheus, program, running
from tests.support.telemetrycommand import Ended, telemetry
from tests.support.waiting import eventually

SEED = 17
JOBS = ("node", "api", "batch")
INTERVAL_S = 3
"""A scrape may take as long, which is time enough on a busy machine. A failed one ends the series of its target."""
WINDOW = "30m"
"""More than the tests take. One as long as they took so far would lack their first queries when the command looks."""
BEGIN = {"params": {"query": "vector(0)"}, "ts": "%Y-%m-%dT%H:%M:%S.000Z"}
"""The line with which the query log begins, an hour ago. Prometheus appends its own."""
SCRAPED = "count(scrape_samples_scraped > 0) == 3"
CONFIG = """\
# The configuration of a team. Its comments must stay.
global:
  scrape_interval: {interval}s   # quick, for the test
  evaluation_interval: 1s
  query_log_file: {folder}/query.log
rule_files: [{rules}]
scrape_configs:
- job_name: node   # machines
  metrics_path: /node
  static_configs: [{{targets: ['{address}']}}]
  metric_relabel_configs:
  # Kept since 2019.
  - source_labels: [device]
    regex: nothing
    action: drop

- metrics_path: /api
  job_name: api
  static_configs:
  - targets:
    - '{address}'   # the only one
- {{job_name: batch, metrics_path: /batch, static_configs: [{{targets: ['{address}']}}]}}
"""


@dataclass
class Universe:
    """Random metrics of jobs, queries about them, and the server that scrapes them."""

    server: Prometheus
    folder: Path
    address: str
    names: list[str]
    queries: list[str]
    dashboards: Path

    def unused(self, *more: str | Path) -> Ended:
        return telemetry(
            "unused", "--prometheus", self.server.url, "--dashboards", self.dashboards,
            "--query-log", self.folder / "query.log", *more,
        )  # fmt: skip


def names_of(chance: random.Random) -> list[str]:
    words = ("cpu", "memory", "disk", "net", "requests", "errors", "latency", "queue", "cache", "gc")
    starts = ("node", "app", "go", "x:y")
    made = {"_".join((chance.choice(starts), *chance.choices(words, k=chance.randint(1, 3)))) for _ in range(120)}
    return sorted(made)


def page_of(chance: random.Random, names: list[str]) -> str:
    """A page with some of the names: counters, gauges and histograms."""
    lines = []
    for name in names:
        if chance.random() < 0.5:
            continue
        if chance.random() < 0.2:
            lines.append(f"# TYPE {name} histogram")
            lines += [f'{name}_bucket{{le="{le}"}} {count}' for le, count in (("0.5", 3), ("+Inf", 7))]
            lines += [f"{name}_sum 4.5", f"{name}_count 7"]
            continue
        lines.append(f"# TYPE {name} {chance.choice(('counter', 'gauge', 'untyped'))}")
        lines += [
            f'{name}{{code="{code}",device="d{code}"}} {chance.randint(0, 99)}' for code in range(chance.randint(1, 3))
        ]
    return "\n".join(lines) + "\n"


def query_of(chance: random.Random, names: list[str]) -> str:
    """A query as people write them; `$` stands for a variable of the dashboard."""
    name, other = chance.choice(names), chance.choice(names)
    job = chance.choice(JOBS)
    return chance.choice(
        (
            f"sum by (code) ({name})",
            f"rate({name}[$__rate_interval])",
            f'{name}{{job="{job}"}} / on () group_left sum({other}{{job=~"{job}|nothing"}})',
            f'histogram_quantile(0.9, sum by (le) (rate({name}_bucket{{job="$job"}}[5m])))',
            f"{name}_sum / {name}_count",
            f'{{__name__=~"{name[:-2]}.*",job="{job}"}}',
            f'max_over_time({name}{{job!="{job}"}}[2m:1s]) or vector(0)',
            f'label_replace({name}, "a", "$1", "job", "(.*)") unless {other} offset 1s',
            f'count({{__name__=~"{name}|{other}"}})' if chance.random() < 0.1 else f"absent({name})",
            f"topk($limit, {name}) # {other} is only in this comment",
        )
    )


def rendered(query: str) -> str:
    """A query with its variables replaced as Grafana does."""
    values = {"$__rate_interval": "1m", "$job": "api", "$limit": "3"}
    return re.sub(r"\$[a-z_]+", lambda found: values.get(found[0], found[0]), query)


def dashboard_of(queries: list[str]) -> dict[str, Any]:
    variables = [
        {"name": "job", "type": "query", "query": "label_values(up, job)"},
        {"name": "limit", "type": "custom", "query": "3,5", "options": [{"value": "3"}, {"value": "5"}]},
    ]
    panels = [{"id": n, "title": f"panel {n}", "targets": [{"expr": each}]} for n, each in enumerate(queries)]
    return {"title": "all", "schemaVersion": 39, "templating": {"list": variables}, "panels": panels}


@pytest.fixture(scope="module")
def universe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Universe]:
    folder = tmp_path_factory.mktemp("before")
    chance = random.Random(SEED)
    names = names_of(chance)
    texts = {job: page_of(chance, names) for job in JOBS}
    queries = [query_of(chance, names) for _ in range(45)]
    dashboards, rules = folder / "dashboards", folder / "rules.yml"
    dashboards.mkdir()
    (dashboards / "all.json").write_text(json.dumps(dashboard_of(queries[:30])))
    records = [{"record": f"team:{n}", "expr": rendered(each)} for n, each in enumerate(queries[30:36])]
    alerts = [{"alert": f"Alert{n}", "expr": rendered(each)} for n, each in enumerate(queries[36:40])]
    chain = [
        {"record": "team:used", "expr": "sum(team:1) + sum(team:2)"},
        {"alert": "Chain", "expr": "team:used > 1e9"},
    ]
    rules.write_text(yaml.safe_dump({"groups": [{"name": "team", "rules": [*records, *chain, *alerts]}]}))
    with pages(texts) as address:
        (folder / "prometheus.yml").write_text(
            CONFIG.format(folder=folder, rules=rules, address=address, interval=INTERVAL_S)
        )
        began = datetime.now(UTC) - timedelta(hours=1)
        (folder / "query.log").write_text(began.strftime(json.dumps(BEGIN)) + "\n")
        with running(folder) as server:
            eventually("the jobs are scraped", lambda: server.get("/api/v1/query", query=SCRAPED)["result"])
            for each in queries[40:]:
                server.get("/api/v1/query", query=rendered(each))
            used = [*map(rendered, queries[:30]), *(each["expr"] for each in alerts), *map(rendered, queries[40:])]
            yield Universe(server, folder, address, names, used, dashboards)


def answers(server: Prometheus, queries: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in queries:
        try:
            result = server.get("/api/v1/query", query=each)["result"]
            found[each] = sorted((sorted(one["metric"].items()), one["value"][1]) for one in result)
        except urllib.error.HTTPError as error:
            found[each] = error.code
    return found


def differences(universe: Universe, server: Prometheus) -> dict[str, Any]:
    """Queries to which two servers give different answers. They need some scrapes before rates are the same."""
    before, after = (answers(each, universe.queries) for each in (universe.server, server))
    return {each: (before[each], after[each]) for each in universe.queries if before[each] != after[each]}


def only_added(before: str, after: str) -> bool:
    """Whether every line of a text is still there, in its order; one in braces may be longer."""
    rest = iter(after.splitlines())
    return all(any(each.startswith(line.removesuffix("}")) for each in rest) for line in before.splitlines())


def test_proposed_configuration_changes_no_answer_of_any_input(universe: Universe, tmp_path: Path) -> None:
    config = universe.folder / "prometheus.yml"
    done = universe.unused("--window", WINDOW, "--config", config, "-o", "diff")
    assert done.returncode == 0, done
    after = tmp_path / "prometheus.yml"
    after.write_text(config.read_text())
    subprocess.run(["patch", "-s", str(after)], input=done.stdout, text=True, check=True)
    subprocess.run([program("promtool"), "check", "config", str(after)], check=True, stdout=subprocess.DEVNULL)
    assert only_added(config.read_text(), after.read_text())
    with running(tmp_path) as server:
        eventually("the jobs are scraped", lambda: answers(server, [SCRAPED])[SCRAPED])
        deadline = time.monotonic() + 30
        while (different := differences(universe, server)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert different == {}, f"seed {SEED}"
        stored = set(server.get("/api/v1/label/__name__/values"))
    dropped = set(universe.server.get("/api/v1/label/__name__/values")) - stored
    assert len(dropped) > 20


def report(universe: Universe, *more: str | Path) -> dict[str, Any]:
    done = universe.unused("--window", WINDOW, "-o", "json", *more)
    assert done.returncode == 0, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_report_counts_the_series_that_the_server_has(universe: Universe) -> None:
    first = report(universe)
    names = {each["metric"] for each in first["unused"]}
    query = f'count by (__name__, job) ({{__name__=~"{"|".join(names)}",{PROBE_MATCHER}}})'
    counts = universe.server.get("/api/v1/query", query=query)
    real = {(each["metric"]["__name__"], each["metric"]["job"]): int(each["value"][1]) for each in counts["result"]}
    assert {(each["metric"], each["job"]): each["series"] for each in first["unused"]}.items() <= real.items()
    assert sum(each["series"] for each in first["dropRules"]) == sum(each["series"] for each in first["unused"]) > 100
    # A sample has 1.5 bytes.
    assert first["unused"][0]["bytesPerDay"] == pytest.approx(first["unused"][0]["series"] * 86400 / INTERVAL_S * 1.5)
    # The counting queries of the first run are in the query log now.
    assert report(universe)["unused"] == first["unused"]
    assert {each["record"] for each in first["unusedRules"]} == {"team:0", "team:3", "team:4", "team:5"}


def test_deleted_rules_free_their_inputs(universe: Universe) -> None:
    before, after = report(universe), report(universe, "--rules-deleted")
    freed = {each["metric"] for each in after["unused"]} - {each["metric"] for each in before["unused"]}
    assert freed == {each["metric"] for each in before["onlyUnusedRules"]} - {
        each["metric"] for each in before["unused"]
    }
    assert freed


def test_values_of_a_label_keep_the_metrics_that_have_it(universe: Universe, tmp_path: Path) -> None:
    def unused(label: str) -> set[str]:
        variable = {"name": "x", "type": "query", "query": f"label_values({label})"}
        (tmp_path / "x.json").write_text(json.dumps({"templating": {"list": [variable]}}))
        return {each["metric"] for each in report(universe, "--dashboards", tmp_path)["unused"]}

    assert unused("instance") == {each["metric"] for each in report(universe)["unused"]}
    with_le = {name for name in unused("le") if name.endswith("_bucket")}
    assert with_le == set()
    assert unused("le")


def test_query_log_that_is_too_short_says_how_much_it_covers(universe: Universe) -> None:
    done = universe.unused()
    assert done.returncode == 2
    assert re.match(r"error: the query logs cover \d+m of the 30d before now\n", done.stderr)
    assert "--window " in done.stderr


def test_bad_input_and_missing_servers_have_their_exit_codes(universe: Universe) -> None:
    dashboards = ("--dashboards", universe.dashboards)
    cases: list[tuple[tuple[str | Path, ...], int, str]] = [
        (("--prometheus", universe.server.url), 2, "everything is unused"),
        (("--prometheus", universe.server.url, *dashboards, "-o", "diff"), 2, "--config prometheus.yml"),
        (("--prometheus", universe.server.url, *dashboards, "--keep", "sum(a)"), 2, "is not a selector"),
        (("--prometheus", universe.server.url, *dashboards, "--window", "3 days"), 2, "--window"),
        (("--prometheus", "http://127.0.0.1:1", *dashboards), 3, "cannot be reached"),
    ]
    for arguments, code, message in cases:
        done = telemetry("unused", *arguments)
        assert (done.returncode, message in done.stderr) == (code, True), done


OPS: tuple[Op, ...] = ("=~", "!~")
PATTERNS = (
    "node_.*|go_gc", "[[:alpha:]]+_cpu", "(?i)NODE_.+", "(node|app)_(cpu|memory).*", r"node_\w+_[a-d]\w+",
    "(?:node_)?.*_gc", ".*(cpu|disk)$", "^app_[^_]+", r"x:y\x5f.*", "node_(c|d)(p|i).{1,3}.*", r"\pL+_cpu", "(?s)app.+",
    ".{8}", "a??p+_.*?",
)  # fmt: skip


def test_patterns_match_at_least_what_the_server_matches(universe: Universe) -> None:
    names = universe.server.get("/api/v1/label/__name__/values")
    for pattern in PATTERNS:
        for op in OPS:
            selector = f'{{__name__{op}{json.dumps(pattern)},job!=""}}'
            real = universe.server.get("/api/v1/label/__name__/values", match=selector)
            assert set(real) <= {each for each in names if matches(Matcher("__name__", op, pattern), each)}, pattern
    exact = Matcher("__name__", "=~", PATTERNS[3])
    real = universe.server.get("/api/v1/label/__name__/values", match=f'{{__name__=~"{PATTERNS[3]}"}}')
    assert set(real) == {each for each in names if matches(exact, each)}


def test_other_readers_keep_what_they_read(universe: Universe, tmp_path: Path) -> None:
    def jobs(*more: str | Path) -> set[str]:
        return {each["job"] for each in report(universe, *more)["unused"]}

    (tmp_path / "global.yml").write_text(
        "scrape_configs: [{job_name: f, metrics_path: /federate, params: {'match[]': ['{job=\"api\"}']}}]"
    )
    (tmp_path / "local.yml").write_text("remote_write: [{url: 'http://h'}]\nscrape_configs: [{job_name: node}]")
    guard = {"queries": [{"query": '{job="node"}', "kind": "series", "panelTitle": "P"}]}
    (tmp_path / "guard.json").write_text(json.dumps(guard))
    assert jobs() == {"node", "api", "batch"}
    assert jobs("--keep", '{job=~"bat.*"}') == {"node", "api"}
    assert jobs("--federated-by", tmp_path / "global.yml") == {"node", "batch"}
    assert jobs("--guard-queries", tmp_path / "guard.json") == {"api", "batch"}
    assert jobs("--guard-queries", tmp_path / "guard.json", "--ignore", '{job="node"}') == {"node", "api", "batch"}
    assert jobs("--config", tmp_path / "local.yml") == set()
    assert jobs("--config", tmp_path / "local.yml", "--remote-write-covered") == {"node", "api", "batch"}


def test_diff_that_lacks_a_job_names_it_and_fails(universe: Universe, tmp_path: Path) -> None:
    (tmp_path / "node.yml").write_text("scrape_configs:\n- job_name: node\n")
    done = universe.unused("--window", WINDOW, "--config", tmp_path / "node.yml", "-o", "diff")
    assert done.returncode == 1
    assert "+  metric_relabel_configs:" in done.stdout
    assert re.findall(r"scrape pool (\w+) are not in the diff", done.stderr) == ["api", "batch"]


def test_table_shows_savings_rules_and_broad_queries(universe: Universe) -> None:
    done = universe.unused("--window", WINDOW, "--keep", '{__name__=~"go_.*"}')
    first = r"\d+ of \d+ metrics are not read: \d+ of \d+ series, [\d.]+ MiB a day on disk \(estimate\)\.\n"
    assert re.match(first, done.stdout)
    assert re.search(r"^METRIC +JOB +SERIES +BYTES/DAY$", done.stdout, re.MULTILINE)
    assert "team:0 (group team)" in done.stdout
    assert '{__name__=~"go_.*"} in another reader' in done.stdout


def test_printed_command_applies_a_diff_with_absolute_names(
    universe: Universe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "a folder" / "prometheus.yml"
    config.parent.mkdir()
    config.write_text((universe.folder / "prometheus.yml").read_text().replace("\n", "\r\n"), newline="")
    options = ("--window", WINDOW, "--config", config)
    plain = yaml.safe_load(universe.unused(*options, "-o", "yaml").stdout)
    for folder in (tmp_path / "a folder", Path("/proc/self")):
        monkeypatch.chdir(folder)
        done = universe.unused(*options, "-o", "diff")
        found = re.search(r"saved as drop\.patch: (patch .*) < drop\.patch", " ".join(done.stderr.split()))
        assert found is not None
        command = [*found[1].split(), "-s"]
        subprocess.run([*command, "--dry-run"], input=done.stdout.encode(), check=True)
    subprocess.run(command, input=plain["diff"].encode(), check=True)
    assert b"metric_relabel_configs:\r\n" in config.read_bytes()
